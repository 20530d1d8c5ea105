"""A script that says itself what it needs: `#COTENANT` lines, and the documented `#SBATCH` subset.

Rule: directives stand before the script's first command, as Slurm has it. A directive that would
change what runs where, and that we cannot honour, is refused; one that only matters to Slurm's own
site (partition, mail) is left out with a note.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from cotenant.controller.cli.frame.problem import suggestion
from cotenant.controller.cli.submission.options import (
    BY_FLAG,
    BY_KEY,
    CONTAINERS,
    BadSubmission,
    Option,
    Options,
    merged,
    read,
)
from cotenant.controller.cli.submission.quantities import count

SCRIPT_BYTES_MAX: Final = 4 * 1024 * 1024
SUFFIXES: Final = (".sh", ".bash", ".slurm", ".sbatch", ".job")
_DIRECTIVE: Final = re.compile(r"#(COTENANT|SBATCH)\s+(.*)")
_HOST_LAUNCHER: Final = re.compile(
    r"^\s*(exec\s+)?(torchrun|deepspeed|accelerate\s+launch|python3?\s+-m\s+torch\.distributed\.(run|launch))\b"
)
_SLURM_LAUNCHER: Final = re.compile(r"^\s*(exec\s+)?(srun|mpirun|mpiexec)\b")


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """What a script asks for, and how it is started."""

    path: Path
    interpreter: tuple[str, ...]
    options: Options
    notes: tuple[str, ...] = ()
    slurm: bool = False
    """It has `#SBATCH` lines: its array tasks also find SLURM_ARRAY_TASK_ID."""
    launches_ranks: bool = False
    """A torchrun, accelerate or deepspeed line was seen: once per host."""


def is_script(path: Path) -> bool:
    """Whether `submit FILE` means this file as a script rather than as a command."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            head = file.read(65_536)
    except OSError:  # A name too long for one; a file that may not be read, of which `read_script` says so.
        return path.suffix in SUFFIXES
    return path.suffix in SUFFIXES or (
        head.startswith(b"#!") and bool(re.search(rb"^#(COTENANT|SBATCH)\s", head, re.M))
    )


def read_script(path: Path) -> Script:
    """The script's directives.

    Raises:
        BadSubmission: it cannot be read, is no text, or a directive is wrong (file and line are named).
    """
    lines = _lines(path)
    if not lines or not lines[0].startswith("#!"):
        raise BadSubmission(
            f"{path}: has no first line such as #!/bin/bash", "add one: it says what runs the script"
        )
    ours: Options = {}
    slurm = _Slurm(path)
    seen = set()
    for number, line in _head(lines):
        if match := _DIRECTIVE.match(line):
            where = f"{path}:{number}: #{match[1]}"
            seen.add(match[1])
            words = _words(match[2], where)
            if match[1] == "SBATCH":
                slurm.take(words, where)
            else:
                ours = merged(ours, _parse_ours(words, where))
    body = "\n".join(lines)
    starts = _starts_with_slurm(lines)
    notes = [*slurm.notes]
    if starts:
        notes.append(f"{path}:{starts}: take out srun or mpirun: the script itself is started once per GPU")
    return Script(
        path=path,
        interpreter=_interpreter(lines[0][2:], path),
        options=merged(slurm.options(), ours),
        notes=tuple(notes),
        slurm="SBATCH" in seen,
        launches_ranks=any(_HOST_LAUNCHER.match(line) for line in body.splitlines()),
    )


def _interpreter(text: str, path: Path) -> tuple[str, ...]:
    """What the kernel would run the script with: a program, and the rest of the line as one argument. Quotes
    mean nothing there."""
    words = text.split(maxsplit=1)
    if not words:
        raise BadSubmission(f"{path}:1: #! names no program", "write one there: #!/bin/bash")
    return tuple(each.rstrip() for each in words)


def _lines(path: Path) -> list[str]:
    try:
        if path.stat().st_size > SCRIPT_BYTES_MAX:
            raise BadSubmission(f"{path}: larger than {SCRIPT_BYTES_MAX} bytes; is it a script?")
        return path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise BadSubmission(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadSubmission(
            f"{path}: is not a text file", f"a program is started with: cotenant submit -- {path}"
        ) from None


def _head(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Numbered lines before the first command."""
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.startswith("#"):
            return
        yield number, line


def _starts_with_slurm(lines: list[str]) -> int | None:
    return next((number for number, line in enumerate(lines, start=1) if _SLURM_LAUNCHER.match(line)), None)


def _words(text: str, where: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        raise BadSubmission(f"{where}: {str(error).lower()} in {text!r}") from None


def flag_values(words: list[str], where: str, switch: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    """Flags and values of `--flag value`, `--flag=value`, `-f value`, `-fvalue`; `yes` for a switch."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
        elif word.startswith("-") and len(word) > 1:
            flag, value = word[:2], word[2:].removeprefix("=")
            equals = value
        else:
            raise BadSubmission(f"{where}: {word!r} is not an option")
        if switch(flag):
            yield flag, "yes"
        elif equals:
            yield flag, value
        elif rest:
            yield flag, rest.pop(0)
        else:
            raise BadSubmission(f"{where}: {flag} needs a value")


def _parse_ours(words: list[str], where: str) -> Options:
    found: Options = {}
    for flag, value in flag_values(words, where, lambda each: each in BY_FLAG and BY_FLAG[each].switch):
        option = BY_FLAG.get(flag)
        if option is None:
            raise _unknown(flag, where, list(BY_FLAG))
        found = merged(found, {option.key: read(option, (value,), where)})
    return found


def _unknown(flag: str, where: str, known: list[str]) -> BadSubmission:
    if flag == "--container":
        return BadSubmission(f"{where}: {CONTAINERS}")
    return BadSubmission(f"{where}: unknown option {flag}", suggestion(flag, known))


# --- Slurm's directives -----------------------------------------------------------------------------

SAME: Final = {
    "-N": "nodes", "--nodes": "nodes", "-t": "time", "--time": "time", "-J": "name", "--job-name": "name",
    "--mem": "host_mem", "-D": "workdir", "--chdir": "workdir",
    "-a": "array", "--array": "array", "-d": "after", "--dependency": "after", "--export": "export",
    "-C": "constraint", "--constraint": "constraint",
}  # fmt: skip
"""Slurm's flag -> our option. Its `--mem` is main memory; device memory has no flag there."""
CPUS: Final = ("-c", "--cpus-per-task")
GPUS: Final = ("-G", "--gpus", "--gpus-per-node", "--gres", "--gpus-per-task")
TASKS: Final = ("-n", "--ntasks", "--ntasks-per-node", "--tasks-per-node")
OUTPUTS: Final = ("-o", "--output", "-e", "--error")
SWITCHES: Final = (
    "-H",
    "--hold",
    "--exclusive",
    "--requeue",
    "--no-requeue",
    "--parsable",
    "-Q",
    "--quiet",
    "-v",
)
LEFT_OUT: Final = (
    "-p", "--partition", "-A", "--account", "-q", "--qos", "--mail-type", "--mail-user", "--comment",
    "--requeue", "--no-requeue", "--signal", "--open-mode", "--wckey", "--parsable", "-Q", "--quiet", "-v",
    "--cpu-bind", "--gpu-bind", "--hint", "--distribution", "--threads-per-core", "--ntasks-per-gpu",
)  # fmt: skip
"""No meaning here; a note says so."""


class _Slurm:
    """Collects `#SBATCH` lines of one script; GPUs depend on several of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: Options = {}
        self._gpus: dict[str, tuple[int, str]] = {}
        """Flag -> how many, and where it was written."""
        self._tasks: dict[str, int] = {}
        self._cpus: tuple[int, str] | None = None
        """Per task, and where it was written."""
        self.notes: list[str] = []

    def take(self, words: list[str], where: str) -> None:
        for flag, value in flag_values(words, where, lambda each: each in SWITCHES):
            if flag in SAME:
                self._set(BY_KEY[SAME[flag]], value, where)
            elif flag in GPUS:
                self._take_gpus(flag, value, where)
            elif flag in TASKS:
                self._tasks[flag] = _count(value, where, flag)
            elif flag in CPUS:
                self._cpus = (_count(value, where, flag), where)
            elif flag in OUTPUTS:
                self._take_output(flag, value, where)
            elif flag in ("-H", "--hold"):
                self._set(BY_KEY["hold"], "yes", where)
            elif flag == "--exclusive":
                self._set(BY_KEY["share"], "never", where)
            elif flag in LEFT_OUT:
                self.notes.append(f"{where} {flag} has no meaning here and is left out")
            else:
                raise _unknown(flag, where, [*SAME, *GPUS, *TASKS, *CPUS, *OUTPUTS, *SWITCHES, *LEFT_OUT])

    def options(self) -> Options:
        """The options; GPUs and cores are worked out from all lines together."""
        found = dict(self._found)
        nodes = found["nodes"].value if "nodes" in found else 1
        tasks = self._total_tasks(nodes)
        gpus = self._total_gpus(nodes, tasks)
        if gpus is not None:
            found["gpus"] = read(BY_KEY["gpus"], (str(gpus[0]),), gpus[1])
        if self._cpus is not None:  # Slurm's is per task, ours per host
            per_host = self._cpus[0] * max(1, (tasks or 1) // nodes)
            found["cpus"] = read(BY_KEY["cpus"], (str(per_host),), self._cpus[1])
        return found

    def _set(self, option: Option, value: str, where: str) -> None:
        self._found = merged(self._found, {option.key: read(option, (value,), where)})

    def _take_gpus(self, flag: str, value: str, where: str) -> None:
        parts = value.split(":")
        if flag == "--gres":
            if parts[0] != "gpu":
                raise BadSubmission(f"{where}: --gres={value} asks for something other than gpu")
            parts = parts[1:] or ["1"]
        if len(parts) == 2:
            self._set(BY_KEY["gpu_type"], parts[0], where)
        self._gpus[flag] = (_count(parts[-1], where, flag), where)

    def _take_output(self, flag: str, value: str, where: str) -> None:
        """Slurm's file name patterns in ours; its `%a` is an array index, which our job id contains."""
        if flag in ("-e", "--error"):
            self.notes.append(f"{where} {flag}: both streams go to one file here")
            return
        text = value.replace("%A_%a", "%j").replace("%A", "%j").replace("%a", "%j").replace("%t", "%r")
        unknown = re.search(r"%(?![jr%])\w*", text)
        if unknown:
            raise BadSubmission(f"{where}: {unknown[0]} in a file name is not known", "use %j, %A, %a or %t")
        self._set(BY_KEY["output"], text, where)

    def _total_tasks(self, nodes: int) -> int | None:
        tasks = self._tasks.get("-n") or self._tasks.get("--ntasks")
        per_node = self._tasks.get("--ntasks-per-node") or self._tasks.get("--tasks-per-node")
        return tasks or (per_node * nodes if per_node else None)

    def _total_gpus(self, nodes: int, tasks: int | None) -> tuple[int, str] | None:
        for flag, (number, where) in self._gpus.items():
            factor = {"--gpus-per-node": nodes, "--gres": nodes, "--gpus-per-task": tasks or 1}.get(flag, 1)
            total = number * factor
            if tasks not in (None, 1, nodes, total):
                self.notes.append(f"{where}: {tasks} tasks asked for; one worker per GPU is started: {total}")
            return total, where
        return None


def _count(value: str, where: str, flag: str) -> int:
    try:
        return count(value)
    except ValueError as error:
        raise BadSubmission(f"{where}: {flag} {error}") from None
