"""What `#SBATCH` lines mean here.

Rule: every option of sbatch stands in one of the tables. What cannot matter here (a site's partitions,
binding) is left out with a note; what would change what runs, where or when, and cannot be honoured, is
refused with what to do instead. All problems of a script are found, not only the first.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from cotenant.controller.domain import PRIORITY_MAX, SlurmScript, split_words, texts
from cotenant.controller.present.problem import suggestion
from cotenant.controller.submission.options import (
    BY_KEY,
    CONTAINERS,
    BadSubmission,
    Given,
    Options,
    flag_values,
    merge_options,
    read,
)
from cotenant.controller.submission.quantities import count, quoted_text, size_mib

LONG: Final = {
    "-a": "--array", "-A": "--account", "-b": "--begin", "-B": "--extra-node-info", "-c": "--cpus-per-task",
    "-C": "--constraint", "-d": "--dependency", "-D": "--chdir", "-e": "--error", "-F": "--nodefile",
    "-G": "--gpus", "-H": "--hold", "-i": "--input", "-J": "--job-name", "-k": "--no-kill",
    "-L": "--licenses", "-m": "--distribution", "-M": "--clusters", "-n": "--ntasks", "-N": "--nodes",
    "-o": "--output", "-O": "--overcommit", "-p": "--partition", "-q": "--qos", "-Q": "--quiet",
    "-s": "--oversubscribe", "-S": "--core-spec", "-t": "--time", "-v": "--verbose", "-w": "--nodelist",
    "-W": "--wait", "-x": "--exclude", "--tasks-per-node": "--ntasks-per-node",
}  # fmt: skip
"""Another name of a flag -> the one by which the other tables know it."""
SAME: Final = {
    "--time": "time",
    "--job-name": "name",
    "--chdir": "workdir",
    "--array": "array",
    "--constraint": "constraint",
    "--begin": "begin",
}
"""Slurm's flag -> our option, with a value that means the same."""
LABELS: Final = {"--partition": "SLURM_JOB_PARTITION", "--qos": "SLURM_JOB_QOS"}
SIGNAL_BEFORE_S: Final = 60.0
"""Where `--signal` does not say how long before the limit: Slurm's."""
SWITCHES: Final = frozenset((
    "--hold", "--exclusive", "--nice", "--requeue", "--no-requeue", "--parsable", "--quiet", "--verbose",
    "--contiguous", "--spread-job", "--use-min-nodes", "--overcommit", "--oversubscribe", "--no-kill",
    "--get-user-env", "--ignore-pbs", "--wait", "--test-only", "--reboot",
))  # fmt: skip
"""Without a value, or with one that may be missing."""
LEFT_OUT: Final = frozenset((
    "--comment", "--requeue", "--no-requeue", "--open-mode", "--wckey", "--parsable", "--quiet", "--verbose",
    "--cpu-bind", "--gpu-bind", "--mem-bind", "--hint", "--distribution", "--threads-per-core",
    "--cores-per-socket", "--sockets-per-node", "--ntasks-per-socket", "--ntasks-per-core",
    "--extra-node-info", "--mincpus", "--tmp", "--priority", "--profile", "--acctg-freq", "--propagate",
    "--get-user-env", "--kill-on-invalid-dep", "--no-kill", "--oversubscribe", "--overcommit", "--time-min",
    "--switches", "--contiguous", "--spread-job", "--use-min-nodes", "--gpu-freq", "--cpu-freq", "--power",
    "--core-spec", "--thread-spec", "--delay-boot", "--reservation", "--licenses", "--network", "--mpi",
    "--ignore-pbs", "--clusters", "--bb", "--bbf", "--gres-flags", "--mcs-label", "--wait",
    "--wait-all-nodes",
))  # fmt: skip
REFUSED: Final = {
    "--nodelist": "hosts have features here: --constraint FEATURE, or --gpu-type",
    "--nodefile": "hosts have features here: --constraint FEATURE, or --gpu-type",
    "--exclude": "hosts have features here: --constraint FEATURE, or `cotenant nodes drain HOST`",
    "--gpus-per-socket": "say --gpus-per-node",
    "--deadline": "--time limits how long it runs; nothing here ends a job by the clock",
    "--wrap": "a command needs no script: cotenant submit -- CMD",
    "--test-only": "cotenant submit --dry-run SCRIPT",
    "--reboot": "no host is rebooted for a job",
    "--uid": "jobs run as whoever submits them",
    "--gid": "jobs run as whoever submits them",
    "--container": CONTAINERS,
    "--container-image": CONTAINERS,
    "hetjob": "submit its parts as jobs of their own",
    "packjob": "submit its parts as jobs of their own",
}
MAIL_KINDS: Final = {
    "NONE": "none", "BEGIN": "start", "END": "end", "FAIL": "fail", "REQUEUE": "preempt", "ALL": "all",
    "INVALID_DEPEND": "fail", "TIME_LIMIT": "fail",
}  # fmt: skip
"""Slurm's type of mail -> our kind of message; a job that reaches its time limit has failed."""
_NO_MAIL: Final = ("STAGE_OUT", "TIME_LIMIT_90", "TIME_LIMIT_80", "TIME_LIMIT_50", "ARRAY_TASKS")
_NUMBERS: Final = {
    "--cpus-per-task": "SLURM_CPUS_PER_TASK",
    "--ntasks-per-node": "SLURM_NTASKS_PER_NODE",
    "--gpus-per-node": "SLURM_GPUS_PER_NODE",
    "--gpus-per-task": "SLURM_GPUS_PER_TASK",
    "--mem": "SLURM_MEM_PER_NODE",
    "--mem-per-cpu": "SLURM_MEM_PER_CPU",
    "--mem-per-gpu": "SLURM_MEM_PER_GPU",
}
"""Numbers of which the job is told, and by which variable."""
_PER_NODE: Final = ("--gpus-per-node", "--gres")
_DEPENDENCY: Final = {"afterok": "ok", "afterany": "any"}
_PATTERN: Final = re.compile(r"%([0-9]{0,2})([a-zA-Z%])")
_PATTERNS: Final = {
    "%": "%", "A": "A", "a": "i", "j": "j", "J": "j", "N": "N", "n": "n", "t": "r", "u": "u", "x": "x",
    "s": "",
}  # fmt: skip
"""Slurm's letter of a file name -> ours; a step's number has none, for the script is not in a step."""


class SlurmLines:
    """Collects the `#SBATCH` lines of one script; GPUs, tasks, cores and memory depend on several of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: Options = {}
        self._numbers: dict[str, Given] = {}
        """By flag: counts and sizes that depend on each other."""
        self._variables: dict[str, str] = {}
        self._warning = SlurmScript()
        """Its signal."""
        self._mail_user = ""
        self._left_out: list[str] = []
        self._notes: list[str] = []
        self.problems: list[BadSubmission] = []

    @property
    def notes(self) -> list[str]:
        left_out = f"{self._path}: without a meaning here, left out: {', '.join(self._left_out)}"
        return [*self._notes, *([left_out] if self._left_out else [])]

    def take(self, words: Sequence[str], line: int = 0) -> None:
        """Takes in one line, or (0) the options of a command line. What is wrong with it is in `problems`."""
        where = f"{self._path}:{line}: #SBATCH" if line else "sbatch"
        if words[:1] in (["hetjob"], ["packjob"]):
            self.problems.append(BadSubmission(f"{where} {words[0]} is not possible here", REFUSED[words[0]]))
            return
        try:
            for flag, value in flag_values(words, where, lambda each: LONG.get(each, each) in SWITCHES):
                try:
                    self._take_flag(flag, value, where, line)
                except BadSubmission as problem:
                    self.problems.append(problem)
        except BadSubmission as problem:
            self.problems.append(problem)

    def _take_flag(self, flag: str, value: str, where: str, line: int) -> None:
        name = LONG.get(flag, flag)
        if name in SAME:
            key = SAME[name]
            self._set(key, limit_word(value) if key == "time" else value, where)
        elif name in self.TAKEN:
            self.TAKEN[name](self, flag, value, where)
        elif name in REFUSED:
            raise BadSubmission(f"{where} {flag} is not possible here", REFUSED[name])
        elif name in LEFT_OUT or name in LABELS:
            self._left_out.append(f"{flag} (line {line})" if line else flag)
            if name in LABELS:
                self._variables[LABELS[name]] = value
        else:
            known = [*LONG, *SAME, *self.TAKEN, *LABELS, *LEFT_OUT, *REFUSED]
            raise BadSubmission(f"{where}: unknown option {flag}", suggestion(flag, known))

    def _set(self, key: str, value: str, where: str) -> None:
        self._found = merge_options(self._found, {key: read(BY_KEY[key], (value,), where)})

    # --- Flags that are taken one by one ------------------------------------------------------------

    def _hold(self, flag: str, value: str, where: str) -> None:
        self._set("hold", "yes", where)

    def _account(self, flag: str, value: str, where: str) -> None:
        self._variables["SLURM_JOB_ACCOUNT"] = value
        self._set("organisation", value, where)

    def _nice(self, flag: str, value: str, where: str) -> None:
        """Slurm's goes further in both directions; without a number it is 100."""
        number = int(value) if re.fullmatch(r"[+-]?[0-9]{1,18}", value) else 100
        self._set("priority", str(max(-PRIORITY_MAX, min(PRIORITY_MAX, -number))), where)

    def _mail_type(self, flag: str, value: str, where: str) -> None:
        types = [part.strip().upper() for part in value.split(",")]
        if unknown := [each for each in types if each not in (*MAIL_KINDS, *_NO_MAIL)]:
            raise BadSubmission(
                f"{where}: {flag} {unknown[0]!r} is not known", suggestion(unknown[0], MAIL_KINDS)
            )
        if without := [each for each in types if each in _NO_MAIL]:
            self._notes.append(f"{where} {flag}: there is no message for {', '.join(without)}")
        kinds = [MAIL_KINDS[each] for each in types if each in MAIL_KINDS]
        self._set("notify", ",".join(kinds or ["none"]), where)

    def _mail_address(self, flag: str, value: str, where: str) -> None:
        """Slurm's may be the name of a user: such mail goes where that of `--mail-type` alone goes."""
        self._mail_user = value if "@" in value else ""
        if value and not self._mail_user:
            self._notes.append(f"{where} {flag}={value}: no address, so mail goes to yours")

    def _exclusive(self, flag: str, value: str, where: str) -> None:
        self._notes.append(f"{where} {flag}: nobody shares its GPUs; others may use the rest of the host")
        self._set("share", "never", where)

    def _nodes(self, flag: str, value: str, where: str) -> None:
        least, dash, most = value.partition("-")
        if dash and least != most:
            self._notes.append(f"{where} {flag}={value}: it gets {least}")
        self._set("nodes", least, where)

    def _dependency(self, flag: str, value: str, where: str) -> None:
        if not value.strip():
            return  # As `-d "$JOB"` of a variable that is empty.
        kinds = [part.partition(":")[0] for part in split_words(value)]
        unknown = [kind for kind in kinds if kind not in _DEPENDENCY]
        if unknown or "?" in value:
            what = f"{unknown[0]!r}" if unknown else "? for one of several"
            raise BadSubmission(
                f"{where}: {flag} with {what} is not possible here", "afterok:JOB and afterany:JOB are"
            )
        self._set("after", re.sub(r"\+[0-9]+", "", value), where)

    def _export(self, flag: str, value: str, where: str) -> None:
        names: list[str] = []
        settings: list[str] = []
        for part in value.split(","):
            (settings if "=" in part else names).append(part)
        if "NIL" in names:
            names = ["NONE" if name == "NIL" else name for name in names]
        if names or not settings:
            self._set("export", ",".join(names) or value, where)
        else:
            self._set("export", "NONE", where)
        for each in settings:
            self._set("env", each, where)

    def _input(self, flag: str, value: str, where: str) -> None:
        if value not in ("none", "/dev/null"):
            raise BadSubmission(
                f"{where} {flag}: standard input is /dev/null here", f"read {value} in the script"
            )

    def _error(self, flag: str, value: str, where: str) -> None:
        self._notes.append(f"{where} {flag}: both streams go to one file here")

    def _output(self, flag: str, value: str, where: str) -> None:
        """Slurm's file name patterns in ours."""

        def ours(match: re.Match[str]) -> str:
            letter = _PATTERNS.get(match[2])
            if letter is None:
                known = ", ".join(f"%{each}" for each in sorted(_PATTERNS) if each.isalpha())
                raise BadSubmission(f"{where}: {match[0]} in a file name is not known", f"known are {known}")
            return f"%{match[1]}{letter}" if letter else "batch"

        self._set("output", _PATTERN.sub(ours, value), where)

    def _signal(self, flag: str, value: str, where: str) -> None:
        """`[{R|B}:]SIGNAL[@SECONDS]`."""
        who, _, rest = value.rpartition(":")
        name, at, before = rest.partition("@")
        if who not in ("", "B", "R", "BR", "RB"):
            raise BadSubmission(f"{where}: {flag} must be [B:]SIGNAL[@SECONDS], got {quoted_text(value)}")
        number = _signal_number(name)
        if not number:
            raise BadSubmission(f"{where}: {flag}: there is no signal {quoted_text(name)}")
        self._warning = SlurmScript(
            signal=number,
            signal_before_s=float(_read(f"{where}: {flag}", before, count)) if at else SIGNAL_BEFORE_S,
            signal_script="B" in who,
        )

    # --- What is worked out from several of them ----------------------------------------------------

    def _number_of(self, flag: str, value: str, where: str) -> None:
        self._keep(flag, _read(f"{where}: {flag}", value, count), where)

    def _memory(self, flag: str, value: str, where: str) -> None:
        if value.strip().rstrip("kKmMgGtTbB") == "0":
            self._notes.append(f"{where} {flag}={value}: main memory is not limited")
            return
        self._keep(flag, _read(f"{where}: {flag}", value, size_mib), where)

    def _gpus(self, flag: str, value: str, where: str) -> None:
        for each in value.split(",") if flag == "--gres" else [value]:
            parts = re.sub(r"\(.*\)$", "", each).split(":")
            if flag == "--gres":
                if parts == ["none"]:
                    continue
                if parts[0].removeprefix("gres/") == "shard":
                    raise BadSubmission(
                        f"{where}: --gres={each}: how many shards a GPU has, that cluster's gres.conf says",
                        "say the part itself, as in #COTENANT --gpus 0.25 or on the command line",
                    )
                if parts[0].removeprefix("gres/") != "gpu":
                    raise BadSubmission(f"{where}: --gres={each} asks for something other than gpu")
                parts = parts[1:] or ["1"]
            number = parts[-1]
            if flag == "--gres" and len(parts) == 1 and not re.match(r"[0-9+-]", number):
                parts, number = [number, "1"], "1"  # `gpu:a100` is one of them.
            if len(parts) == 2:
                self._set("gpu_type", parts[0], where)
            self._keep(flag, _read(f"{where}: {flag}", number, count), where)

    def _keep(self, flag: str, number: int, where: str) -> None:
        self._numbers[LONG.get(flag, flag)] = Given(value=number, where=where)

    def options(self) -> Options:
        """Translates what was taken in to our options; may add to the problems."""
        found = dict(self._found)
        amounts, _ = _amounts(self._numbers, found.get("nodes"))
        for key, amount in amounts.items():
            found[key] = read(BY_KEY[key], (str(amount.value),), amount.where)
        if (notify := found.get("notify")) and notify.value and self._mail_user:
            words = ",".join((*notify.value, self._mail_user))
            found["notify"] = read(BY_KEY["notify"], (words,), notify.where)
        if "export" not in found:  # As sbatch has it.
            found["export"] = read(BY_KEY["export"], ("ALL",), "--export")
        return found

    def script(self) -> SlurmScript:
        """What the job will find around it, as far as the script says it."""
        given = self._numbers
        _, tasks = _amounts(given, self._found.get("nodes"))
        known = {variable: str(given[flag].value) for flag, variable in _NUMBERS.items() if flag in given}
        return msgspec.structs.replace(
            self._warning,
            variables={**self._variables, **known},
            tasks=tasks,
            tasks_per_host=_number(given, "--ntasks-per-node"),
            gpus_per_task=_number(given, "--gpus-per-task"),
        )

    TAKEN: ClassVar = {
        "--nodes": _nodes,
        **dict.fromkeys(("--gpus", "--gpus-per-node", "--gres", "--gpus-per-task"), _gpus),
        **dict.fromkeys(("--ntasks", "--ntasks-per-node", "--ntasks-per-gpu"), _number_of),
        **dict.fromkeys(("--cpus-per-task", "--cpus-per-gpu"), _number_of),
        **dict.fromkeys(("--mem", "--mem-per-cpu", "--mem-per-gpu"), _memory),
        "--output": _output,
        "--error": _error,
        "--dependency": _dependency,
        "--export": _export,
        "--signal": _signal,
        "--input": _input,
        "--hold": _hold,
        "--exclusive": _exclusive,
        "--account": _account,
        "--nice": _nice,
        "--mail-type": _mail_type,
        "--mail-user": _mail_address,
    }
    """Flags whose values are worked on."""


def _amounts(given: dict[str, Given], nodes: Given | None) -> tuple[Options, int]:
    """What all lines together ask for, per job and per host, as our options; and how many tasks, 0 where
    nobody said it."""

    def of(flag: str, value: int) -> Given:
        return Given(value=value, where=given[flag].where)

    found: Options = {}
    per_node = next((flag for flag in _PER_NODE if flag in given), "")
    if nodes := nodes or _hosts(given, per_node):
        found["nodes"] = nodes
    hosts = int(nodes.value) if nodes else 1
    tasks = _number(given, "--ntasks") or _number(given, "--ntasks-per-node") * hosts
    if "--gpus" in given:
        found["gpus"] = given["--gpus"]
    elif per_node:
        found["gpus"] = of(per_node, _number(given, per_node) * hosts)
    elif "--gpus-per-task" in given:
        found["gpus"] = of("--gpus-per-task", _number(given, "--gpus-per-task") * (tasks or hosts))
    total = int(found["gpus"].value) if "gpus" in found else hosts
    if not tasks and "--ntasks-per-gpu" in given:
        tasks = _number(given, "--ntasks-per-gpu") * total
    if not tasks and "--gpus-per-task" in given:
        tasks = max(1, total // _number(given, "--gpus-per-task"))
    tasks_here, gpus_here = -(-(tasks or hosts) // hosts), -(-total // hosts)
    if "--cpus-per-task" in given:
        found["cpus"] = of("--cpus-per-task", _number(given, "--cpus-per-task") * tasks_here)
    elif "--cpus-per-gpu" in given:
        found["cpus"] = of("--cpus-per-gpu", _number(given, "--cpus-per-gpu") * gpus_here)
    if "--mem" in given:
        found["host_mem"] = given["--mem"]
    elif "--mem-per-cpu" in given:
        cores = int(found["cpus"].value) if "cpus" in found else tasks_here
        found["host_mem"] = of("--mem-per-cpu", _number(given, "--mem-per-cpu") * cores)
    elif "--mem-per-gpu" in given:
        found["host_mem"] = of("--mem-per-gpu", _number(given, "--mem-per-gpu") * gpus_here)
    return found, tasks


def _number(given: dict[str, Given], flag: str) -> int:
    return int(given[flag].value) if flag in given else 0


def _hosts(given: dict[str, Given], per_node: str) -> Given | None:
    """How many hosts, where no line says it: as many as what is said per host needs."""
    for total, each in (("--gpus", per_node), ("--ntasks", "--ntasks-per-node")):
        if total in given and each in given:
            return Given(value=-(-int(given[total].value) // int(given[each].value)), where=given[each].where)
    if per_node or "--ntasks-per-node" in given:
        return Given(value=1, where=given[per_node or "--ntasks-per-node"].where)
    return None


def limit_word(text: str) -> str:
    """A time limit as we have it: with Slurm none is 0."""
    return "unlimited" if re.fullmatch("0[0:-]*", text.strip()) else text


def _read(subject: str, text: str, parse: Callable[[str], int]) -> int:
    try:
        return parse(text)
    except ValueError as error:
        raise BadSubmission(f"{subject} {error}") from None


def _signal_number(text: str) -> int:
    """Reads a signal's number from `USR1`, `SIGUSR1` or `10`; 0: there is none such."""
    if texts.is_whole_number(text):
        return int(text) if 0 < int(text) < signal.NSIG else 0
    found = getattr(signal, f"SIG{text.upper().removeprefix('SIG')}", 0)
    return int(found) if isinstance(found, signal.Signals) else 0
