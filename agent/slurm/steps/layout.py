"""The tasks of a step on each host, their devices and the variables that they find.

Rule: the script runs on every host of the job, and so does each `srun` line in it; on each host a step has
the tasks that belong there, which may be none.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .hostlist import counts, hostnames
from .step import BadStep, Step


class Layout(NamedTuple):
    """The tasks of a step: on each host of the job so many, 0 on those that take no part."""

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
    """Lays out the tasks of a step over the job's hosts. Raises BadStep: a host was named that is none of the
    job's."""
    hosts = hostnames(env["SLURM_JOB_NODELIST"])
    usual = counts(env["SLURM_TASKS_PER_NODE"])
    chosen = _choose_hosts(step, hosts, env)
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


def _choose_hosts(step: Step, hosts: list[str], env: dict[str, str]) -> list[int]:
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
    """Returns the variables with what Slurm tells one task."""
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
    """Returns the variables that torch asks for; nothing for a task that is alone, and nothing where one task
    per host with more devices starts its ranks itself."""
    if plan.total == 1 or plan.total == len(plan.used) < devices:
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


def export_environment(step: Step, env: dict[str, str]) -> dict[str, str]:
    """Returns the environment that `--export` leaves to a step: `ALL`, `NONE`, names, settings."""
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
