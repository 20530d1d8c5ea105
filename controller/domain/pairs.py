"""What has been measured about pairs of jobs, and the best known interference ratio of a pair.

Sources in falling trust: this kind of pair observed live > predicted by a trained model > the duty-cycle
rule > the default. A prediction is as good as its model and profiles; one observation of the pair itself is
better than both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import msgspec

from cotenant.controller.domain.job import Job, JobSpec
from cotenant.controller.domain.perf import Interference, duty_cycle_rule


def signature(spec: JobSpec) -> str:
    """What makes two jobs "the same kind" for measurements: command, batch, workers, device type."""
    return _signature(spec.launch.argv, spec.batch_size, spec.gpus_min, spec.gpu_type)


@lru_cache(maxsize=4096)
def _signature(argv: tuple[str, ...], batch_size: int | None, gpus: int, gpu_type: str) -> str:
    parts = (*argv, "", str(batch_size), str(gpus), gpu_type)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


class Observed(msgspec.Struct, kw_only=True):
    """Mean interference ratio of one kind of job beside another, and how often it was seen."""

    xi: float
    count: int


COUNT_MAX = 20
"""Older observations fade: the mean moves by at least 1/COUNT_MAX with each new one."""


class Foresight(Protocol):
    """A trained model, as the table asks it."""

    def beside(self, job: Job, partners: Sequence[Job]) -> Sequence[Interference | None]:
        """The ratios of (job, partner) for each partner; None where the model knows too little of one."""


class PairTable:
    """Observed ratios, one way each: (this kind, beside that kind) -> xi. And a model for the others."""

    def __init__(
        self, entries: dict[str, Observed] | None = None, foresight: Foresight | None = None
    ) -> None:
        self.entries: dict[str, Observed] = entries if entries is not None else {}
        self.foresight = foresight
        """Configuration, not state: never saved with the entries."""

    def observe(self, job: Job, partner: Job, xi: float) -> None:
        """Take in one measurement; below 1 is noise and counts as 1."""
        key = _key(job, partner)
        seen = self.entries.setdefault(key, Observed(xi=max(1.0, xi), count=0))
        seen.count = min(COUNT_MAX, seen.count + 1)
        seen.xi += (max(1.0, xi) - seen.xi) / seen.count

    def know(self, spec: JobSpec, partner: JobSpec, xi: float) -> None:
        """A ratio that was measured beforehand, trusted like as many observations as count at most."""
        key = f"{signature(spec)}:{signature(partner)}"
        self.entries[key] = Observed(xi=max(1.0, xi), count=COUNT_MAX)

    def interference(self, first: Job, second: Job) -> Interference:
        """The ratios of (first, second); each side from the best source there is for it."""
        rule = self.expected(first, second)
        one, two = self.entries.get(_key(first, second)), self.entries.get(_key(second, first))
        if one is None and two is None:
            return rule
        return Interference(
            first=one.xi if one else rule.first,
            second=two.xi if two else rule.second,
            source="observed",
            count=min((seen.count for seen in (one, two) if seen), default=0),
        )

    def expected(self, first: Job, second: Job) -> Interference:
        """What to think of a pair that was never seen."""
        if self.foresight is not None:
            (foreseen,) = self.foresight.beside(first, (second,))
            if foreseen is not None:
                return foreseen
        return duty_cycle_rule(first.profile, second.profile)

    def foresee(self, job: Job, partners: Sequence[Job]) -> None:
        """Before many of `interference(job, partner)`: a model answers all at the cost of a few."""
        if self.foresight is not None:
            self.foresight.beside(job, partners)


def _key(job: Job, partner: Job) -> str:
    return f"{signature(job.spec)}:{signature(partner.spec)}"
