"""The proof that a resumed script is where it was: a few steps that two processes make, and compare.

Rule: the process that has saved goes on for some steps and writes a number for everything it can reach after
each. The one that resumes makes the same steps and compares. A difference ends it before its next step, with
the names of what differs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

NAMES_MAX: Final = 5


class Proof:
    """The steps after a save, of one rank."""

    def __init__(self, checkpoint: Path, rank: int, steps: int) -> None:
        self._path = proof_file(checkpoint, rank)
        self._steps = steps
        self._turns: list[Mapping[str, int]] = []

    def add(self, digests: Mapping[str, int]) -> None:
        """What a picture shows after one more step."""
        self._turns.append(digests)

    @property
    def is_complete(self) -> bool:
        return len(self._turns) >= self._steps

    def write(self) -> None:
        """Beside the checkpoint, whose manifest does not know it: without it nothing is lost but the proof."""
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self._turns))
        os.replace(temporary, self._path)


def proof_file(checkpoint: Path, rank: int) -> Path:
    return checkpoint / f"proof-{rank}.json"


def read_proof(checkpoint: Path, rank: int) -> list[dict[str, int]]:
    """The numbers after each step; empty if there are none that can be read."""
    try:
        found: Any = json.loads(proof_file(checkpoint, rank).read_text())
    except (OSError, ValueError):
        return []
    return found if isinstance(found, list) else []


def differing(then: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """The names of what is not as it was."""
    names = [*then, *(name for name in now if name not in then)]
    return [name for name in names if then.get(name) != now.get(name)]


def list_names(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return ", ".join(f"`{name}`" for name in names[:NAMES_MAX]) + more
