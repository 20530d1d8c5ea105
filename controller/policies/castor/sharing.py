"""Algorithm 2: the best way for a newcomer to share with one partner, or not at all.

Source: Castor section 5.2 and Theorem 1, as settled: every sub-batch is tried with its own iteration
time (the paper stops at the first that fits), s = B included, and sharing must beat "start when the
partner ends" by the average completion time of the two.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from cotenant.controller.domain.job import Job
from cotenant.controller.domain.perf import XiSource, memory_mib, pair_timing, step_s
from cotenant.controller.domain.reasons import Reason, because
from cotenant.controller.domain.view import View


class SharingChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The best sub-batch beside one partner."""

    partner: Job
    accumulation_steps: int
    sub_batch: int
    shared_s: float
    """Average completion time of the pair when shared."""
    sequential_s: float
    newcomer_xi: float
    partner_xi: float
    source: XiSource

    @property
    def pays(self) -> bool:
        return self.shared_s < self.sequential_s


def accumulation_choices(job: Job) -> Iterator[int]:
    """s = 1, 2, 4, ... down to a sub-batch of 1; only 1 for a job that cannot accumulate."""
    yield 1
    if job.spec.batch_size is None or not job.can_accumulate:
        return
    s = 2
    while s < job.spec.batch_size:
        yield s
        s *= 2
    if job.spec.batch_size > 1:
        yield job.spec.batch_size


def stretch(job: Job, accumulation_steps: int) -> float | None:
    """Step time at s / step time at the whole batch; None where it is not known."""
    if accumulation_steps == 1:
        return 1.0
    if job.profile is None or job.spec.batch_size is None:
        return None
    whole = step_s(job.profile, job.spec.batch_size, 1, job.gang)
    part = step_s(job.profile, job.spec.batch_size, accumulation_steps, job.gang)
    return max(1.0, part / whole) if whole and part else None


def needed_mib(job: Job, accumulation_steps: int) -> int | None:
    """Peak memory per device at s: profiled, else declared, else unknown."""
    profiled = memory_mib(job.profile, accumulation_steps) if job.profile else None
    return max(1, round(profiled)) if profiled is not None else job.spec.memory_mib


def best_sharing(view: View, newcomer: Job, partner: Job, left_mib: int) -> SharingChoice | Reason:
    """Algorithm 2 for one pair.

    Args:
        left_mib: device memory left beside the partner, on the fullest of its devices.

    Returns:
        The choice with the least average completion time (it may still not pay), or why there is none.
    """
    mine_s, theirs_s = newcomer.remaining_s, partner.remaining_now_s(view.now_s)
    if mine_s is None or theirs_s is None:
        unknown = newcomer if mine_s is None else partner
        return because("sharing-unknown", partner.job_id, f"the length of job {unknown.job_id} is not known")
    if needed_mib(newcomer, 1) is None:
        return because(
            "sharing-unknown", partner.job_id, f"the memory that job {newcomer.job_id} needs is not known"
        )
    xi = view.interference(newcomer, partner)
    best: SharingChoice | None = None
    smallest = (newcomer.spec.batch_size or 1, needed_mib(newcomer, 1) or 0)
    for s in accumulation_choices(newcomer):
        needed, slower = needed_mib(newcomer, s), stretch(newcomer, s)
        if needed is None or slower is None:
            continue
        sub_batch = -(-newcomer.spec.batch_size // s) if newcomer.spec.batch_size else 0
        smallest = (sub_batch, needed)
        if needed > left_mib:
            continue
        timing = pair_timing(mine_s, theirs_s, xi.first, xi.second, slower)
        if best is None or timing.shared_s < best.shared_s:
            best = SharingChoice(
                partner=partner,
                accumulation_steps=s,
                sub_batch=sub_batch,
                shared_s=timing.shared_s,
                sequential_s=timing.sequential_s,
                newcomer_xi=xi.first * slower,
                partner_xi=xi.second,
                source=xi.source,
            )
    if best is None:
        what = f"a sub-batch of {smallest[0]}" if newcomer.spec.batch_size else "its whole batch"
        return because("sharing-no-memory", partner.job_id, what, smallest[1], left_mib)
    return best


def with_all(view: View, newcomer: Job, choices: list[SharingChoice]) -> SharingChoice | None:
    """The choice for a gang with several partners: one sub-batch for all of them, and the pace that the
    slowest leaves it. None if it does not pay with each of them any more.

    Departs from Algorithm 1, which takes the partners as if each were the only one.
    """
    if len(choices) == 1:
        return choices[0]
    smallest = max(choices, key=lambda c: c.accumulation_steps)
    slower = stretch(newcomer, smallest.accumulation_steps) or 1.0
    pairs = [(c.partner, view.interference(newcomer, c.partner)) for c in choices]
    slowest = max(xi.first for _, xi in pairs)
    mine_s = newcomer.remaining_s or 0.0
    worst: SharingChoice | None = None
    for partner, xi in pairs:
        theirs_s = partner.remaining_now_s(view.now_s) or 0.0
        timing = pair_timing(mine_s, theirs_s, slowest, xi.second, slower)
        if not timing.pays:
            return None
        if worst is None or timing.shared_s > worst.shared_s:
            worst = msgspec.structs.replace(
                smallest,
                partner=partner,
                shared_s=timing.shared_s,
                sequential_s=timing.sequential_s,
                newcomer_xi=slowest * slower,
                partner_xi=xi.second,
                source=xi.source,
            )
    return worst
