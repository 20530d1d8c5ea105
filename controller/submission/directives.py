"""A script that says itself what it needs: `#COTENANT` lines, and `#SBATCH` lines (`slurm/sbatch.py`).

Rule: directives stand before the script's first command, as Slurm has it; one further down is a comment, and
a note says so. A script with `#SBATCH` lines runs once per host, as under Slurm, and starts its ranks itself.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol

import msgspec

from cotenant.controller.domain import SlurmScript
from cotenant.controller.present.problem import suggestion
from cotenant.controller.submission.options import (
    BY_FLAG,
    CONTAINERS,
    BadSubmission,
    Given,
    Options,
    flag_values,
    merge_options,
    read,
    refuse_all,
)
from cotenant.controller.submission.script_text import BOM, NO_FIRST_LINE, unreadable
from cotenant.controller.submission.starts import launchers_in

SLURM: Final = "cotenant.controller.slurm.sbatch"
SCRIPT_BYTES_MAX: Final = 4 * 1024 * 1024
SUFFIXES: Final = (".sh", ".bash", ".slurm", ".sbatch", ".job")
_DIRECTIVE: Final = re.compile(r"#(COTENANT|SBATCH)\s+(.*)")
_SRUN: Final = re.compile(r"^\s*(exec\s+)?srun\b")
_STARTS_RANKS: Final = re.compile(
    r"\b(srun|mpirun|mpiexec|torchrun|deepspeed|accelerate\s+launch|torch\.distributed\.(run|launch))\b"
)


class SbatchLines(Protocol):
    """The `#SBATCH` lines of one script, taken one after the other."""

    problems: list[BadSubmission]
    """What is wrong with those taken so far."""

    @property
    def notes(self) -> list[str]: ...

    def take(self, words: Sequence[str], line: int = 0) -> None:
        """Takes the options of one line, or (`line` is 0) of a command line."""

    def options(self) -> Options: ...

    def script(self) -> SlurmScript: ...


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """What a script asks for, and how it is started."""

    interpreter: tuple[str, ...]
    options: Options
    notes: tuple[str, ...] = ()
    slurm: SlurmScript | None = None
    """It has `#SBATCH` lines."""
    runs_per_host: bool = False
    """It starts the ranks itself."""


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
        head.removeprefix(BOM).startswith(b"#!") and bool(re.search(rb"^#(COTENANT|SBATCH)\s", head, re.M))
    )


def read_script(path: Path, sbatch: Sequence[str] | None = None) -> Script:
    """Reads the directives of a script. `sbatch`: the options of an `sbatch` command line, which win over the
    script's lines.

    Raises:
        BadSubmission: the script cannot be read, is no text, or a directive is wrong (file and line
            are named).
    """
    return script_of(_lines(path), path, sbatch)


def script_of(lines: list[str], path: Path, sbatch: Sequence[str] | None = None) -> Script:
    """Reads a script's directives as `read_script` does, from lines that are known already."""
    if not lines or not lines[0].startswith("#!"):
        raise BadSubmission(f"{path}: {NO_FIRST_LINE}", "add one: it says what runs the script")
    ours: Options = {}
    end = _end_of_head(lines)
    head = [
        (number, match) for number, match in enumerate(map(_DIRECTIVE.match, lines[:end]), start=1) if match
    ]
    has_slurm = sbatch is not None or any(match[1] == "SBATCH" for _, match in head)
    slurm: SbatchLines | None = import_module(SLURM).SlurmLines(path) if has_slurm else None
    problems = slurm.problems if slurm else []
    for number, match in head:
        where = f"{path}:{number}: #{match[1]}"
        try:
            words = _words(match[2], where)
            if slurm and match[1] == "SBATCH":
                slurm.take(words, number)
            else:
                ours = merge_options(ours, _parse_ours(words, where))
        except BadSubmission as problem:
            problems.append(problem)
    if slurm:
        slurm.take(sbatch or ())
    refuse_all(problems, str(path))
    options = merge_options(slurm.options() if slurm else {}, ours)
    notes = [*(slurm.notes if slurm else ()), *_late(path, lines, end)]
    notes += _slurm_notes(options, lines) if slurm else _notes(path, lines)
    launchers = launchers_in("\n".join(lines))
    if "deepspeed" in launchers:  # It reads CUDA_VISIBLE_DEVICES as indices.
        options.setdefault("devices_as", Given(value="index", where=str(path)))
    return Script(
        interpreter=_interpreter(lines[0][2:], path),
        options=options,
        notes=tuple(notes),
        slurm=slurm.script() if slurm else None,
        runs_per_host=has_slurm or bool(launchers),
    )


def _end_of_head(lines: list[str]) -> int:
    """The index of the first command."""
    return next((at for at, line in enumerate(lines) if line.strip() and line.lstrip()[0] != "#"), len(lines))


def _late(path: Path, lines: list[str], end: int) -> list[str]:
    late = [number for number, line in enumerate(lines[end:], start=end + 1) if _DIRECTIVE.match(line)]
    if not late:
        return []
    which = ", ".join(map(str, late[:10]))
    return [f"{path}: directives behind the first command (line {end + 1}) are comments: line {which}"]


def _notes(path: Path, lines: list[str]) -> list[str]:
    at = next((number for number, line in enumerate(lines, start=1) if _SRUN.match(line)), None)
    return [] if at is None else [f"{path}:{at}: srun is only there for scripts with #SBATCH lines"]


def _slurm_notes(options: Options, lines: list[str]) -> list[str]:
    """Where a script does something else here than its author may think."""
    nodes = options["nodes"].value if "nodes" in options else 0
    gpus = options["gpus"].value.least if "gpus" in options else 0
    notes = []
    if not gpus:
        notes.append("no line asks for a GPU: it gets one on each host, for every job here holds devices")
    if nodes > 1:
        notes.append(f"it runs once on each of its {nodes} hosts, where srun starts that host's ranks")
    if gpus > max(1, nodes) and not any(_STARTS_RANKS.search(line) for line in lines):
        notes.append(
            "it has no srun, torchrun, accelerate or deepspeed line, so it runs once and sees all its GPUs; "
            "--launch worker starts it once per GPU"
        )
    return notes


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
        text = path.read_bytes()
        if problem := unreadable(text, str(path)):
            raise problem
        return text.decode().splitlines()
    except OSError as error:
        raise BadSubmission(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadSubmission(
            f"{path}: is not a text file", f"a program is started with: cotenant submit -- {path}"
        ) from None


def _words(text: str, where: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        raise BadSubmission(f"{where}: {str(error).lower()} in {text!r}") from None


def _parse_ours(words: list[str], where: str) -> Options:
    found: Options = {}
    for flag, value in flag_values(words, where, lambda each: each in BY_FLAG and BY_FLAG[each].switch):
        option = BY_FLAG.get(flag)
        if option is None:
            if flag == "--container":
                raise BadSubmission(f"{where}: {CONTAINERS}")
            raise BadSubmission(f"{where}: unknown option {flag}", suggestion(flag, BY_FLAG))
        found = merge_options(found, {option.key: read(option, (value,), where)})
    return found
