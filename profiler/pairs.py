"""What pairs of jobs were seen to do to each other. Pure.

Rule: only measured step times enter, shared over alone, both from the same job at the same s. The more
there are of a pair, the less one of them counts: the record keeps means and their counts, so that live
sharing corrects it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from cotenant.controller.domain.perf import Interference, XiSource


class PairRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The interference ratios of one pair, both ways, each the mean of its own observations.

    Kept as measured: a ratio below 1 is noise, and clipping each observation would bias the mean upwards.
    """

    first_xi: float = math.nan
    first_count: int = 0
    second_xi: float = math.nan
    second_count: int = 0

    def swapped(self) -> PairRecord:
        return PairRecord(
            first_xi=self.second_xi,
            first_count=self.second_count,
            second_xi=self.first_xi,
            second_count=self.first_count,
        )

    def interference(self, source: XiSource) -> Interference | None:
        """As a policy wants it, at least 1; None until both directions were seen."""
        count = min(self.first_count, self.second_count)
        if count == 0:
            return None
        return Interference(
            first=max(1.0, self.first_xi), second=max(1.0, self.second_xi), source=source, count=count
        )


def xi(shared_step_s: float, solo_step_s: float) -> float:
    """The interference ratio: step time beside the co-tenant over step time alone."""
    if not (0 < shared_step_s < math.inf and 0 < solo_step_s < math.inf):
        raise ValueError(f"a ratio needs two positive step times, got {shared_step_s} and {solo_step_s}")
    return shared_step_s / solo_step_s


class PairObservations:
    """Observations by pair of keys (a key names a kind of job: its command, or whatever the caller uses)."""

    def __init__(self, records: Mapping[tuple[str, str], PairRecord] | None = None) -> None:
        self._records: dict[tuple[str, str], PairRecord] = {}
        for (first, second), record in (records or {}).items():
            self._put(first, second, record)

    def observe(self, job: str, co_tenant: str, shared_step_s: float, solo_step_s: float) -> PairRecord:
        """Add how `job` fared beside `co_tenant`; the record of the pair, seen from `job`."""
        before = self.of(job, co_tenant) or PairRecord()
        count = before.first_count + 1
        ratio = xi(shared_step_s, solo_step_s)
        mean = ratio if count == 1 else before.first_xi + (ratio - before.first_xi) / count
        after = msgspec.structs.replace(before, first_xi=mean, first_count=count)
        if job == co_tenant:  # One kind beside itself: either side tells about both.
            after = PairRecord(first_xi=mean, first_count=count, second_xi=mean, second_count=count)
        self._put(job, co_tenant, after)
        return after

    def of(self, first: str, second: str) -> PairRecord | None:
        """The record seen from `first`."""
        record = self._records.get((min(first, second), max(first, second)))
        return record if record is None or first <= second else record.swapped()

    def records(self) -> dict[tuple[str, str], PairRecord]:
        """All of it, in order of the keys; what the constructor takes."""
        return dict(sorted(self._records.items()))

    def _put(self, first: str, second: str, record: PairRecord) -> None:
        self._records[min(first, second), max(first, second)] = (
            record if first <= second else record.swapped()
        )
