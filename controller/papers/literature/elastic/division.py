"""How devices are divided among jobs that can use more or fewer: numbers alone.

Rule: whole devices, and for each job a number that it takes: one of `sizes`, or none. `policy.py` decides
which devices, and when. Ties go to the earlier job.

Sources: AFS-L (NSDI '21, algorithm 1) as PCS evaluates it; Themis (NSDI '20) without its auction, likewise;
max-min fairness in whole devices. The same three on shares of devices: experiments/pcs/fluid/rules.py.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence

import msgspec

from cotenant.controller.domain import Job, JobId, Phase

UNKNOWN_S = 1e9
"""Remaining time assumed for a job without any estimate: it counts as long."""
NEVER = 1 << 60
"""Devices of a size that there is not."""
DeviceCounts = Mapping[JobId, int]
"""Job -> its number of devices; jobs that get none are not in it."""


class SizeClaim(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The claim of one job to devices, as far as a division needs it."""

    job: Job
    sizes: tuple[int, ...]
    """Numbers of devices that it takes, rising."""
    left_s: float
    """Remaining time on the fewest devices."""

    @property
    def job_id(self) -> JobId:
        return self.job.spec.job_id

    @property
    def least(self) -> int:
        return self.sizes[0]

    def speedup(self, devices: int) -> float:
        """The job's pace on so many devices / on the fewest."""
        curve = self.job.measured.curve
        return 1.0 if curve is None else curve.speedup(devices, self.sizes[0])

    def cap(self, devices: int) -> int:
        """The most devices that it takes, up to so many; 0: it needs more."""
        return next((size for size in reversed(self.sizes) if size <= devices), 0)

    def next_size(self, devices: int) -> int | None:
        """The next size above so many devices."""
        return next((size for size in self.sizes if size > devices), None)


Division = Callable[[Sequence[SizeClaim], int, float], DeviceCounts]
"""How many devices each of these jobs is to have, of so many, at a time in seconds."""


def claim_of(job: Job, now_s: float) -> SizeClaim:
    spec = job.spec
    left_s = job.remaining_now_s(now_s)
    sizes = (
        tuple(filter(spec.takes, range(spec.gpus_min, spec.gpus_max + 1)))
        if spec.is_elastic and spec.nodes < 2  # One that asks for several hosts stays as it begins.
        else (spec.gpus_min,)
    )
    return SizeClaim(job=job, sizes=sizes, left_s=UNKNOWN_S if left_s is None else left_s)


def _admit_claims(order: Sequence[SizeClaim], gpus: int, *, strict: bool) -> tuple[dict[JobId, int], int]:
    """The fewest devices to each in order, and what is left; strict: nobody passes one that does not fit."""
    given, left = dict[JobId, int](), gpus
    for claim in order:
        if claim.least <= left:
            given[claim.job_id] = claim.least
            left -= claim.least
        elif strict:
            break
    return given, left


def max_min(claims: Sequence[SizeClaim], gpus: int, now_s: float) -> DeviceCounts:
    """Divides devices by max-min fairness: each job gets the fewest devices that it takes, in order of
    arrival; then whoever has least gets its next size."""
    given, left = _admit_claims(sorted(claims, key=lambda c: c.job.number), gpus, strict=True)
    poorest = [(given[c.job_id], c.job.number, c) for c in claims if c.job_id in given]
    heapq.heapify(poorest)
    while left > 0 and poorest:
        has, number, claim = heapq.heappop(poorest)
        after = claim.next_size(has)
        if after is None or after - has > left:
            continue
        given[claim.job_id], left = after, left - (after - has)
        heapq.heappush(poorest, (after, number, claim))
    return given


def afs_l(claims: Sequence[SizeClaim], gpus: int, now_s: float) -> DeviceCounts:
    """The shortest jobs get the fewest devices that they take; each further device goes to the better of two
    jobs, all compared in a row: the shorter one if it gains more pace by it than the longer one lacks without
    it."""
    given, left = _admit_claims(sorted(claims, key=lambda c: (c.left_s, c.job.number)), gpus, strict=False)
    bids = [_Bid(c, given[c.job_id]) for c in sorted(claims, key=lambda c: c.job.number) if c.job_id in given]
    while left > 0:
        best: _Bid | None = None
        for bid in bids:
            if bid.after - bid.has <= left:
                best = bid if best is None else _better(best, bid)
        if best is None:
            break
        left -= best.after - best.has
        best.stand(best.after)
    return {bid.claim.job_id: bid.has for bid in bids}


class _Bid:
    """A job that holds so many devices, and what its next size would bring it."""

    def __init__(self, claim: SizeClaim, has: int) -> None:
        self.claim = claim
        self.stand(has)

    def stand(self, has: int) -> None:
        after, now = self.claim.next_size(has), self.claim.speedup(has)
        then = now if after is None else self.claim.speedup(after)
        self.has, self.after = has, NEVER if after is None else after
        self.left_s = self.claim.left_s / now
        self.gains, self.lacks = then / now - 1.0, 1.0 - now / then


def _better(one: _Bid, two: _Bid) -> _Bid:
    short, long = (two, one) if two.left_s < one.left_s else (one, two)
    return short if short.gains > long.lacks else long


def themis(claims: Sequence[SizeClaim], gpus: int, now_s: float) -> DeviceCounts:
    """Jobs that would be furthest behind their fair finish time get devices first, each as many as it takes.

    Fair is alone on an equal part of the devices among the jobs that are there; times suppose linear speedup,
    as in the published code. Departs from it in that the contention is that of now, not the mean over each
    job's stay, and in what a job has done: time in ended attempts, on however many devices. So one that runs
    looks further behind than it is, and keeps its devices; counted exactly, jobs would change places at the
    end of every lease, each time for a save and a load.
    """
    fair = max(1.0, gpus / max(1, len(claims)))

    def rho(claim: SizeClaim) -> float:
        job, linear = claim.job, claim.least
        work_s = max(claim.left_s + job.spent.run_s, 1e-9)
        at_best_s = claim.left_s * linear / claim.sizes[-1]
        fair_s = work_s * linear / min(fair, claim.sizes[-1])
        return (now_s - job.submitted_s + at_best_s) / fair_s

    given, left = dict[JobId, int](), gpus
    for claim in sorted(claims, key=lambda c: (-rho(c), c.job.number)):
        size = claim.cap(left)
        if size:
            given[claim.job_id] = size
            left -= size
    return given


def held_by(job: Job) -> int:
    """Devices that it has, or gets when others have left them; none for one that waits."""
    placement = job.resize_to or job.placement
    return 0 if placement is None or job.phase is Phase.QUEUED else len(placement.devices)
