"""Jobs that ask for a promise as they arrive: the earliest end that can be promised, by the engine itself.

Rule: a job that asks and gets none runs like all others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec
import numpy as np

from cotenant.controller.domain import JobId, JobSpec, Reason
from cotenant.controller.engine import Engine
from cotenant.controller.sim.world.jobs import RowSpecs
from cotenant.controller.sim.world.workload import Seconds

STREAM: Final = 7
"""Of the seed: see `preparing.Stream`."""


def drawn(jobs: int, share: float, seed: int) -> frozenset[int]:
    """The rows that ask."""
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"the share of jobs that ask for a promise must be 0 to 1, got {share:g}")
    if not share:
        return frozenset()
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(STREAM,)))
    return frozenset(np.flatnonzero(generator.random(jobs) < share).tolist())


class AskingSpecs:
    """Specs of a workload, some with a promised end."""

    engine: Engine

    def __init__(self, specs: RowSpecs, asks: Collection[int], submit_s: Seconds | Any) -> None:
        self._specs, self._asks, self._submit_s = specs, asks, submit_s
        self._told_s: list[float] = []
        self._refused: dict[str, int] = {}

    @property
    def row_of(self) -> Callable[[JobId], int]:
        return self._specs.row_of

    def spec(self, row: int) -> JobSpec:
        spec = self._specs.spec(row)
        if row not in self._asks:
            return spec
        now_s = float(self._submit_s[row])
        found = self.engine.promise_for((spec,), now_s)
        if isinstance(found, Reason):
            self._refused[found.code] = self._refused.get(found.code, 0) + 1
            return spec
        self._told_s.append(found[0] - now_s)
        return msgspec.structs.replace(spec, promised_s=found[0])

    def result(self) -> dict[str, Any]:
        """For a summary."""
        saved, given = self.engine.promises, len(self._told_s)
        return {
            "asked": given + sum(self._refused.values()),
            "given": given,
            "refused": dict(sorted(self._refused.items())),
            "kept": saved.kept,
            "broken": saved.broken,
            "open": given - saved.kept - saved.broken - saved.void,
            "told_s_mean": sum(self._told_s) / given if given else None,
        }
