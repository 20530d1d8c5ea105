"""What is kept of the past to say when jobs end: true lengths beside expected ones, arrivals, and the errors
of the intervals that were told.

Rule: values, bounded, oldest out first. The pools hold observations, draw nothing, and forget only by age, so
that a fold over the same events gives the same pools.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from cotenant.controller.domain import EtaKind, JobSpec

LENGTHS_KEPT: Final = 1_000
ARRIVALS_KEPT: Final = 400
ERRORS_KEPT: Final = 300
"""Errors kept per policy and kind; older ones say what the policy was like then."""
POLICIES_KEPT: Final = 20


class KnownLength(msgspec.Struct, frozen=True, array_like=True):
    """A finished job: the length that some source expected, and the length it had, alone."""

    source: str
    told_s: float
    true_s: float


class ArrivalSeen(msgspec.Struct, frozen=True, kw_only=True):
    """An arrival, without what only the launch needs."""

    gap_s: float
    """Since the arrival before it."""
    spec: JobSpec
    told_s: float | None
    """Its expected length then; None: no estimate was about this job."""
    source: str


class EtaError(msgspec.Struct, frozen=True, kw_only=True):
    """How wrong an interval was: log(actual / as the roll-outs gave it), at each level; NaN where that was
    infinite. Times count from one second on, so that nothing is divided by a start at once."""

    finish: tuple[float, float, float]
    start: tuple[float, float, float] | None = None
    """None: the job had already started."""
    was_calibrated: bool
    """This and all below is about the interval as it was told."""
    hit: bool
    bias: float
    """log(actual / told p50)."""
    width_s: float
    actual_s: float


class Pools(msgspec.Struct, kw_only=True):
    """Everything that is kept; the newest stands last."""

    lengths: list[KnownLength] = []
    run_times: list[float] = []
    """Run times of all finished jobs, in seconds alone."""
    arrivals: list[ArrivalSeen] = []
    last_arrival_s: float | None = None
    errors: dict[str, dict[EtaKind, list[EtaError]]] = {}
    """By policy, with its parameters: another policy's errors say nothing of this one's."""

    def errors_of(self, policy: str, kind: EtaKind) -> list[EtaError]:
        return self.errors.get(policy, {}).get(kind, [])

    def add_error(self, policy: str, kind: EtaKind, error: EtaError) -> None:
        of_policy = self.errors.pop(policy, {})
        self.errors[policy] = of_policy  # The one that was heard of last stands last.
        keep(of_policy.setdefault(kind, []), error, ERRORS_KEPT)
        while len(self.errors) > POLICIES_KEPT:
            del self.errors[next(iter(self.errors))]

    def add_length(self, length: KnownLength) -> None:
        keep(self.lengths, length, LENGTHS_KEPT)

    def add_run_time(self, true_s: float) -> None:
        keep(self.run_times, true_s, LENGTHS_KEPT)

    def add_arrival(self, arrival: ArrivalSeen, now_s: float) -> None:
        self.last_arrival_s = now_s
        keep(self.arrivals, arrival, ARRIVALS_KEPT)


def keep(pool: list[Any], one: Any, most: int) -> None:
    pool.append(one)
    if len(pool) > most:
        del pool[: len(pool) - most]
