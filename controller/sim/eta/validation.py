"""Are the intervals right? Intervals at submissions of a simulation, compared with its outcome. Rule: an
interval rests on what was known at that moment: pools grow with the run, and the first intervals are
uncalibrated and do not count. Validation only reads the engine, so the run itself stays the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any, Final

import msgspec
import numpy as np

from cotenant.controller.domain import AnyCommand, AnyEvent, EtasTold, JobArrived
from cotenant.controller.engine import Engine, EtaBook, MakePolicy, question_of, to_compare
from cotenant.controller.models.eta import FAIR, EtaError, score
from cotenant.controller.sim.eta.intervals import answer
from cotenant.controller.sim.world.workload import Workload

PREDICTIONS: Final = 440
"""The most submissions that get an interval, evenly over the run: each costs roll-outs of all jobs there."""
OPEN_MAX: Final = 0.5
"""The largest share of told jobs that may still be open: beyond it those that have ended are the quick ones,
and correct the others wrongly."""


class EtaTrial:
    """Observes a run after each event."""

    def __init__(self, workload: Workload, seed: int, make_policy: MakePolicy) -> None:
        self._share = min(1.0, PREDICTIONS / max(1, len(workload)))
        self._seed, self._make_policy = seed, make_policy
        self._book, self._is_exact = EtaBook(), workload.is_exact
        self._arrived = self._told = 0
        self._open_shares: list[float] = []
        self.errors: list[EtaError] = []

    def __call__(self, engine: Engine, event: AnyEvent, commands: Sequence[AnyCommand]) -> None:
        self.errors += self._book.observe(engine, event)
        if type(event) is not JobArrived:
            return
        self._arrived += 1
        if int(self._arrived * self._share) > int((self._arrived - 1) * self._share):
            self._tell(engine, event)

    def _tell(self, engine: Engine, event: JobArrived) -> None:
        job_id = event.spec.job_id
        self._open_shares.append(self._book.open_share(engine))
        question = question_of(
            engine, self._book, seed=self._seed + self._arrived, jobs={job_id}, is_exact=self._is_exact
        )
        told = [record for eta in answer(question, self._make_policy).etas if (record := to_compare(eta))]
        self._book.observe(engine, EtasTold(at_s=engine.now_s, etas=tuple(told)))
        self._told += len(told)

    def result(self) -> dict[str, Any]:
        """For `sim compare --eta`."""
        scored = score(self.errors)
        open_share = fmean(self._open_shares) if self._open_shares else 0.0
        coverage = scored.coverage_80
        unfair = coverage is not None and not FAIR[0] <= coverage <= FAIR[1]
        return {
            **msgspec.to_builtins(scored),
            "told": self._told,
            "open_share": open_share,
            "late_feedback": open_share > OPEN_MAX,
            "flagged": open_share > OPEN_MAX or unfair,
        }

    def prediction_error(self) -> dict[str, float] | None:
        """|JCT - p50| / p50 of the intervals told, calibrated or not."""
        off = np.array([abs(math.expm1(error.bias)) for error in self.errors])
        if not len(off):
            return None
        p50, p99 = np.percentile(off, (50, 99))
        return {"mean": float(off.mean()), "p50": float(p50), "p99": float(p99)}
