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

NAMES_MAX: Final = 4


class Shown(NamedTuple):
    """What a picture shows: a number for each variable, and values that a person can read."""

    digests: dict[str, int]
    values: dict[str, str]

    @staticmethod
    def by(picture: Picture) -> Shown:
        return Shown(picture.digests(), picture.values())

    def difference(self, now: Shown) -> str:
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


class Proof:
    """The steps after a save, of one rank."""

    def __init__(self, checkpoint: Path, rank: int, steps: int) -> None:
        self._path = _file_in(checkpoint, rank)
        self._steps = steps
        self._turns: list[Shown] = []

    def add(self, shown: Shown) -> None:
        """What can be seen after one more step."""
        self._turns.append(shown)

    @property
    def is_complete(self) -> bool:
        return len(self._turns) >= self._steps

    def write(self) -> None:
        """Beside the checkpoint, whose manifest does not know it: without it nothing is lost but the
        proof."""
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self._turns))
        os.replace(temporary, self._path)


def read_proof(checkpoint: Path, rank: int) -> list[Shown]:
    """What was seen after each step; empty if there is nothing that can be read."""
    try:
        return [Shown(*turn) for turn in json.loads(_file_in(checkpoint, rank).read_text())]
    except (OSError, ValueError, TypeError):
        return []


def _file_in(checkpoint: Path, rank: int) -> Path:
    return checkpoint / f"proof-{rank}.json"
