"""What differs between two runs of one script. Pure but for the files, which it reads.

Rule: everything is compared to the last bit. What a script does not do alike twice (it prints times, say) is
named by a rule of that script, and by nothing else.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import torch

from tests.checkpoint.habits import first_difference
from tests.unchanged.runs import Ended

MASK: Final = "~"
SHOWN: Final = 100
OURS: Final = ("which is ours", "function cotenant.")
"""How the end of memory tells an object or function of ours (see `endstate.py`)."""
ALIVE: Final = "alive "
"""Begins the path of a model that the script has let go."""
TEXT_BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What a script does not do alike twice."""

    masks: tuple[str, ...] = ()
    """Regular expressions of what is left out of its lines, in its output and in files of text."""
    dropped: tuple[str, ...] = ()
    """Regular expressions of beginnings of lines that are not its own."""
    ignored: tuple[str, ...] = ()
    """Patterns of files of which the content is not compared."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    kind: str
    """exit, out, err, files, memory."""
    where: str
    bare: str
    job: str
    count: int = 1
    """How many of this kind there are; this is the first."""

    def __str__(self) -> str:
        more = f" (and {self.count - 1} more)" if self.count > 1 else ""
        return f"{self.kind} {self.where}: {_short(self.bare)} | {_short(self.job)}{more}"


def differences(bare: Ended, job: Ended, rules: Rules) -> list[Difference]:
    """The first difference of each kind; none: nothing differs."""
    found = [
        _first("exit", iter([("code", str(bare.code), str(job.code))])),
        _first("out", _lines(bare.out, job.out, rules)),
        _first("err", _lines(bare.err, job.err, rules)),
        _first("files", _files(bare.folder, job.folder, rules)),
        _first("memory", _memory(bare.state, job.state)),
    ]
    return [each for each in found if each is not None]


def traces(bare: Ended, job: Ended) -> set[str]:
    """Where the script could find us, by path, though nothing that it did became another thing."""
    return {path for path in job.state if path not in bare.state and _is_trace(path, job.state)}


def _first(kind: str, pairs: Iterator[tuple[str, str, str]]) -> Difference | None:
    unequal = [each for each in pairs if each[1] != each[2]]
    if not unequal:
        return None
    where, bare, job = unequal[0]
    return Difference(kind=kind, where=where, bare=bare, job=job, count=len(unequal))


def _lines(bare: str, job: str, rules: Rules) -> Iterator[tuple[str, str, str]]:
    pairs = zip_longest(_masked(bare, rules), _masked(job, rules), fillvalue="(nothing)")
    for number, (one, other) in enumerate(pairs, 1):
        yield f"line {number}", one, other


def _masked(text: str, rules: Rules) -> list[str]:
    for begins in rules.dropped:
        text = re.sub(f"(?m)^(?:{begins}).*\n?", "", text)
    for mask in rules.masks:
        text = re.sub(mask, MASK, text)
    return text.splitlines()


# --- Files ---------------------------------------------------------------------------------------------


def _files(bare: Path, job: Path, rules: Rules) -> Iterator[tuple[str, str, str]]:
    ours, theirs = (_names(folder) for folder in (bare, job))
    for name in sorted({*ours, *theirs}):
        one, other = ours.get(name, "(nothing)"), theirs.get(name, "(nothing)")
        if one != other:
            yield name, one, other
        elif one.startswith("file") and not any(Path(name).match(each) for each in rules.ignored):
            yield from _contents(name, bare / name, job / name, rules)


def _names(folder: Path) -> dict[str, str]:
    """Every file and folder below, with its kind and its rights."""
    found = {}
    for path in folder.rglob("*"):
        kind = "link" if path.is_symlink() else "folder" if path.is_dir() else "file"
        found[str(path.relative_to(folder))] = f"{kind} {path.lstat().st_mode & 0o7777:o}"
    return found


def _contents(name: str, bare: Path, job: Path, rules: Rules) -> Iterator[tuple[str, str, str]]:
    one, other = bare.read_bytes(), job.read_bytes()
    if one == other:
        return
    if zipfile.is_zipfile(bare) and zipfile.is_zipfile(job):
        where = _saved_difference(bare, job)
        if where:
            yield f"{name}: {where}", "", "differs"
    elif b"\0" in one or b"\0" in other or max(len(one), len(other)) > TEXT_BYTES_MAX:
        yield name, f"{len(one)} bytes", f"{len(other)} bytes, others"
    else:
        text, changed = (each.decode(errors="backslashreplace") for each in (one, other))
        for where, line, instead in _lines(text, changed, rules):
            yield f"{name} {where}", line, instead


def _saved_difference(bare: Path, job: Path) -> str:
    """Where two files of torch differ in a bit; one that needs classes of its script is compared by its
    bytes."""
    try:
        return first_difference(*(torch.load(each, weights_only=False) for each in (bare, job)))
    except Exception as error:  # noqa: BLE001  # whatever it is, they are not the same bytes
        return f"other bytes ({type(error).__name__} when loaded)"


# --- Memory --------------------------------------------------------------------------------------------


def _memory(bare: Mapping[str, str], job: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for path in dict.fromkeys((*bare, *job)):
        if path in bare or not _is_trace(path, job):
            yield path, bare.get(path, "(nothing)"), job.get(path, "(nothing)")


def _is_trace(path: str, state: Mapping[str, str]) -> bool:
    """Whether it is ours, leads to what is ours and to nothing else, or is there longer for our sake."""
    said = state[path]
    if path.startswith(ALIVE) or any(
        said.endswith(OURS[0]) or said.startswith(OURS[1]) for said in _below(path, state)
    ):
        return True
    other = said.removeprefix("is ")
    return other != said and other in state and _is_trace(other, state)


def _below(path: str, state: Mapping[str, str]) -> Iterator[str]:
    return (
        said for at, said in state.items() if at.startswith(path) and at[len(path) :][:1] in ("", ".", "[")
    )


def stable(
    bare: Mapping[str, str], again: Mapping[str, str], *states: Mapping[str, str]
) -> list[dict[str, str]]:
    """The states without what two runs of the same do not have in common; of a collection that has other
    members, nothing stays."""
    unlike = {path for path in {*bare, *again} if bare.get(path) != again.get(path)}
    folders = {re.sub(r"(\.[^.[]*|\[[^\]]*\]|\{\}[^.[]*)$", "", path) for path in bare.keys() ^ again.keys()}
    return [
        {path: said for path, said in state.items() if path not in unlike and not _is_below(path, folders)}
        for state in states
    ]


def _is_below(path: str, folders: Collection[str]) -> bool:
    return any(path.startswith(each) and path[len(each) :][:1] in (".", "[", "{") for each in folders)


def _short(text: Any) -> str:
    shown = " ".join(str(text).split())
    return shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."
