"""What a step of a script is: its words read as `srun` reads them, and its tasks on each host; and lists of
hosts and of counts as Slurm writes them. Pure, but for looking up a host's name.

Rule: the script runs on every host of the job, and so does each `srun` line in it; on each host a step has
the tasks that belong there, which may be none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

# --- Lists of hosts and counts ---------------------------------------------------------------------


_RANGES = re.compile(r"^(.*?)\[([\d,-]+)\](.*)$")


def hostnames(text: str) -> list[str]:
    """`gpu[01-03,7],login` one by one."""
    found: list[str] = []
    for part in re.split(r",(?![^\[]*\])", text):
        match = _RANGES.match(part)
        if match is None:
            found += [part] if part else []
            continue
        for each in match[2].split(","):
            first, _, last = each.partition("-")
            for number in range(int(first), int(last or first) + 1):
                found.append(f"{match[1]}{number:0{len(first)}d}{match[3]}")
    return found


def counts(text: str) -> list[int]:
    """`2(x3),1` one by one."""
    found: list[int] = []
    for part in text.split(","):
        number, _, times = part.partition("(x")
        found += [int(number)] * int(times.rstrip(")") or 1)
    return found


def address(host: str, env: dict[str, str]) -> str:
    """Where a host of the job is reached: its name, if names are resolved here; the first one's address is
    known in any case."""
    import socket

    try:
        socket.getaddrinfo(host, None)
    except OSError:
        is_first = host == env.get("SLURM_JOB_NODELIST", "").split(",")[0]
        return env.get("SLURM_LAUNCH_NODE_IPADDR", host) if is_first else host
    return host


# --- Steps -----------------------------------------------------------------------------------------


NAMES = {
    "-n": "ntasks",
    "-N": "nodes",
    "-w": "nodelist",
    "-x": "exclude",
    "-o": "output",
    "-e": "error",
    "-D": "chdir",
    "-G": "gpus",
    "-c": "cpus-per-task",
    "-l": "label",
    "-J": "job-name",
    "-K": "kill-on-bad-exit",
    "--tasks-per-node": "ntasks-per-node",
    "--gpus-per-node": "gres",
}
"""Short names, and others for the same thing."""
SWITCHES = frozenset(
    (
        "label",
        "unbuffered",
        "exclusive",
        "exact",
        "overlap",
        "oversubscribe",
        "overcommit",
        "quiet",
        "verbose",
        "pty",
        "preserve-env",
        "no-kill",
        "immediate",
        "kill-on-bad-exit",
        "disable-status",
    )
)
SHORT_SWITCHES = "luQvsOEkIK"
VALUES = frozenset((
    "ntasks", "nodes", "nodelist", "exclude", "output", "error", "input", "chdir", "gpus", "gres",
    "cpus-per-task", "job-name", "ntasks-per-node", "gpus-per-task", "export", "time", "mem", "mem-per-cpu",
    "mem-per-gpu", "cpus-per-gpu", "cpu-bind", "gpu-bind", "mem-bind", "mpi", "account", "partition", "qos",
    "distribution", "relative", "constraint", "wait", "comment", "threads-per-core", "hint", "jobid",
    "signal", "ntasks-per-gpu", "ntasks-per-socket", "cores-per-socket", "reservation",
))  # fmt: skip
REFUSED = {
    "multi-prog": "start each program with an srun of its own",
    "container-image": "containers are not supported yet: install the environment on the hosts instead",
}


class BadStep(Exception):
    """The words are no step that can be started here."""


class Step(NamedTuple):
    """What was asked for."""

    flags: dict[str, str]
    """By long name; a switch is `yes`."""
    command: list[str]

    def number(self, name: str) -> int | None:
        text = self.flags.get(name)
        if text is None:
            return None
        match = re.match(r"^([0-9]+)(-[0-9]+)?$", text)
        if match is None:
            raise BadStep(f"--{name}: {text!r} is no number")
        return int(match[1])

    def gpus(self, name: str) -> int | None:
        """`4`, `a100:4`, `gpu:4`, `gpu:a100:4`, `none`."""
        text = self.flags.get(name)
        if text is None:
            return None
        last = text.split(":")[-1]
        if text == "none":
            return 0
        if not (last.isascii() and last.isdigit()):
            if text.startswith("gpu"):
                return 1
            raise BadStep(f"--{name}: {text!r} is no number of GPUs")
        return int(last)


def read(words: Sequence[str]) -> Step:
    """The flags, and the command behind them.

    Raises:
        BadStep: no command, or a flag that changes what would be started.
    """
    flags: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        word = rest.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = NAMES.get("--" + name, name)
            takes = name not in SWITCHES
            if takes and not equals and name not in VALUES and name not in REFUSED:
                raise BadStep(f"{word} is not known here: leave it out, or write {word}=VALUE")
        else:
            name, value = NAMES.get(word[:2], word[1]), word[2:]
            equals, takes = value, word[1] not in SHORT_SWITCHES
            if not takes and value and not value.isdigit():  # `-lu` is two of them.
                rest.insert(0, "-" + value)
                value = equals = ""
        if name in REFUSED:
            raise BadStep(f"--{name} is not possible here: {REFUSED[name]}")
        if takes and not equals:
            if not rest:
                raise BadStep(f"{word} needs a value")
            value = rest.pop(0)
        flags[name] = value if takes or equals else "yes"
    command = rest[1:] if rest[:1] == ["--"] else rest
    if not command:
        raise BadStep("no command was given")
    return Step(flags, command)


class Layout(NamedTuple):
    """Its tasks: on each host of the job so many, 0 on those that take no part."""

    hosts: list[str]
    tasks: list[int]

    @property
    def total(self) -> int:
        return sum(self.tasks)

    @property
    def used(self) -> list[int]:
        """The numbers of the hosts that take part."""
        return [at for at, number in enumerate(self.tasks) if number]

    def first(self, host: int) -> int:
        """The number of the first task there."""
        return sum(self.tasks[:host])


def layout(step: Step, env: dict[str, str]) -> Layout:
    """Raises BadStep: a host was named that is none of the job's."""
    hosts = hostnames(env["SLURM_JOB_NODELIST"])
    usual = counts(env["SLURM_TASKS_PER_NODE"])
    chosen = _chosen(step, hosts, env)
    per_host, total = step.number("ntasks-per-node"), step.number("ntasks")
    nodes = step.number("nodes")
    if nodes is not None:
        chosen = chosen[:nodes]
    if total is not None and per_host is None:
        chosen = chosen[:total]
        each = [total // len(chosen) + (at < total % len(chosen)) for at in range(len(chosen))]
    elif per_host is not None:
        each = [per_host] * len(chosen)
        if total is not None:
            each = [min(per_host, max(0, total - per_host * at)) for at in range(len(chosen))]
    else:
        each = [usual[at] for at in chosen]
    by_host = dict(zip(chosen, each))
    return Layout(hosts, [by_host.get(at, 0) for at in range(len(hosts))])


def _chosen(step: Step, hosts: list[str], env: dict[str, str]) -> list[int]:
    """Numbers of the hosts that may take part."""
    wanted = hostnames(step.flags.get("nodelist", ""))
    first = env.get(
        "SLURM_LAUNCH_NODE_IPADDR"
    )  # What `scontrol show hostnames` says where names lead nowhere.
    known = {
        **{name: at for at, name in enumerate(hosts)},
        **({first: 0} if first and first not in hosts else {}),
    }
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise BadStep(f"host {unknown[0]} is none of this job's: {', '.join(hosts)}")
    left_out = {known.get(name) for name in hostnames(step.flags.get("exclude", ""))}
    numbers = [known[name] for name in wanted] or list(range(len(hosts)))
    found = [at for at in dict.fromkeys(numbers) if at not in left_out]
    if not found:
        raise BadStep("no host is left for it")
    return found


class StepGpus(NamedTuple):
    """What the tasks of one host see."""

    here: int | None
    """So many in all; None: all that the job has."""
    each: int
    """So many, of its own, for each task; 0: all the same."""


def gpus(step: Step, plan: Layout, host: int, env: dict[str, str]) -> StepGpus:
    tasks = plan.tasks[host]
    each = step.gpus("gpus-per-task")
    bind = re.match(r"^(?:verbose,)?single:1$", step.flags.get("gpu-bind", ""))
    total, per_host = step.gpus("gpus"), step.gpus("gres")
    if each is None and total is None and per_host is None:
        each = int(env.get("COTENANT_GPUS_PER_TASK", "0")) or (1 if bind else None)
    if each:
        return StepGpus(each * tasks, each)
    if total is not None:
        at = plan.used.index(host)
        return StepGpus(total // len(plan.used) + (at < total % len(plan.used)), 1 if bind else 0)
    return StepGpus(per_host, 1 if bind else 0)


def task_words(plan: Layout, host: int, local: int, step_id: int) -> dict[str, str]:
    """What Slurm tells one task."""
    used, number = plan.used, str(plan.first(host) + local)
    tasks = [plan.tasks[at] for at in used]
    per_host = ",".join(map(str, tasks))
    if len(set(tasks)) == 1 and len(tasks) > 1:
        per_host = f"{tasks[0]}(x{len(tasks)})"
    return {
        "SLURM_PROCID": number,
        "SLURM_LOCALID": str(local),
        "SLURM_NODEID": str(used.index(host)),
        "SLURM_NTASKS": str(plan.total),
        "SLURM_NPROCS": str(plan.total),
        "SLURM_NNODES": str(len(used)),
        "SLURM_STEP_ID": str(step_id),
        "SLURM_STEPID": str(step_id),
        "SLURM_STEP_NUM_NODES": str(len(used)),
        "SLURM_STEP_NUM_TASKS": str(plan.total),
        "SLURM_STEP_NODELIST": ",".join(plan.hosts[at] for at in used),
        "SLURM_STEP_TASKS_PER_NODE": per_host,
        "SLURM_TASKS_PER_NODE": per_host,
    }


def rank_words(plan: Layout, host: int, local: int, devices: int) -> dict[str, str]:
    """What torch asks for; nothing where one task per host with more devices starts its ranks itself."""
    if plan.total == len(plan.used) < devices:
        return {}
    return {
        "RANK": str(plan.first(host) + local),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(plan.total),
        "LOCAL_WORLD_SIZE": str(plan.tasks[host]),
        "GROUP_RANK": str(plan.used.index(host)),
    }


def may_speak(plan: Layout, devices: int) -> bool:
    """Whether the step may be the whole job, and not a part of it or something beside it: a task per device,
    or one per host that starts them."""
    return plan.total == devices or plan.tasks == [1] * len(plan.hosts)


def exported(step: Step, env: dict[str, str]) -> dict[str, str]:
    """`--export`: `ALL`, `NONE`, names, settings."""
    text = step.flags.get("export")
    if text is None or text == "ALL":
        return env
    parts = text.split(",")
    kept = env if "ALL" in parts else {n: v for n, v in env.items() if _always(n) or n in parts}
    settings: list[tuple[str, str]] = []
    for part in parts:
        name, equals, value = part.partition("=")
        settings += [(name, value)] if equals else []
    return {**kept, **dict(settings)}


def _always(name: str) -> bool:
    return name in ("PATH", "HOME", "USER", "PYTHONPATH", "CUDA_VISIBLE_DEVICES") or name.startswith(
        ("SLURM_", "COTENANT_", "MASTER_", "PET_", "NCCL_", "GLOO_", "CUDA_MPS_", "PYTHON")
    )
