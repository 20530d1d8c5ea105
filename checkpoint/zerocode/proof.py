"""The proof that a resumed script is where it was: a few steps that two processes make, and compare.

Rule: the process that has saved goes on for some steps and writes a number for everything it can reach after
each. The one that resumes makes the same steps and compares. A difference ends it before its next step, with
what differs and both values.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from cotenant.checkpoint.picture import Picture
from cotenant.checkpoint.zerocode.clocks import AlikeClocks, read_clocks

NAMES_MAX: Final = 4


class ShownState(NamedTuple):
    """What a picture shows: a number for each variable, and values that a person can read."""

    digests: dict[str, int]
    values: dict[str, str]

    @staticmethod
    def from_picture(picture: Picture) -> ShownState:
        return ShownState(picture.digests(), picture.values())

    def difference(self, now: ShownState) -> str:
        """What differs, in words that follow "but"; empty if nothing does."""
        names = _differing(self.digests, now.digests)
        if not names:
            return ""
        paths = [
            path for path in _differing(self.values, now.values) if path in self.values and path in now.values
        ]
        words = [f"`{path}` was {self.values[path]}, now {now.values[path]}" for path in paths]
        return _list_some(words or [f"`{name}`" for name in names])


def _differing(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    names = [*then, *(name for name in now if name not in then)]
    return [name for name in names if then.get(name) != now.get(name)]


def _list_some(words: Sequence[str]) -> str:
    more = f" and {len(words) - NAMES_MAX} more" if len(words) > NAMES_MAX else ""
    return "; ".join(words[:NAMES_MAX]) + more


class OverlapProof:
    """The steps after a save, of one rank."""

    def __init__(self, checkpoint: Path, rank: int, steps: int) -> None:
        self._path = _file_in(checkpoint, rank)
        self._steps = steps
        self._turns: list[ShownState] = []
        self._clocks_ns = read_clocks()
        AlikeClocks(self._clocks_ns).begin()

    def add(self, shown: ShownState) -> None:
        """What can be seen after one more step."""
        self._turns.append(shown)

    @property
    def is_complete(self) -> bool:
        return len(self._turns) >= self._steps

    def write(self) -> None:
        """Beside the checkpoint, whose manifest does not know it: without it nothing is lost but the
        proof."""
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps({"clocks_ns": self._clocks_ns, "turns": self._turns}))
        os.replace(temporary, self._path)


class Expected:
    """The same steps, made again by the next process."""

    def __init__(self, checkpoint: Path, rank: int) -> None:
        """Nothing is expected if there is nothing that can be read."""
        self.turns: list[ShownState] = []
        self._clocks: AlikeClocks | None = None
        try:
            read = json.loads(_file_in(checkpoint, rank).read_text())
            self.turns = [ShownState(*turn) for turn in read["turns"]]
            if self.turns:
                self._clocks = AlikeClocks(read["clocks_ns"])
                self._clocks.begin()
        except (OSError, ValueError, TypeError, KeyError):
            return

    def compare(self, now: ShownState) -> str:
        """What differs after the next step, in words that follow "but"; empty: nothing."""
        wrong = self.turns.pop(0).difference(now)
        if not self.turns and self._clocks is not None:
            self._clocks.end()
        return wrong


def _file_in(checkpoint: Path, rank: int) -> Path:
    return checkpoint / f"proof-{rank}.json"
