"""Algorithm 2: the best way for a newcomer to share with one partner, or not at all.

Source: Castor section 5.2 and Theorem 1, as settled: every sub-batch is tried with its own iteration
time (the paper stops at the first that fits), s = B included, and sharing must beat "start when the
partner ends" by the average completion time of the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from cotenant.controller.domain import (
    Job,
    Reason,
    View,
    XiSource,
    because,
    memory_unknown,
    pair_timing,
    peak_mib,
)
from cotenant.controller.policies.castor.newcomers import beside_all, may_be_whole
from cotenant.controller.policies.toolkit import (
    Mask,
    Numbers,
    ShareableSlots,
    SubBatch,
    slowdown,
    sub_batches,
)


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


def why_unknown(newcomer: Job, partner: Job, theirs_s: float | None) -> Reason | None:
    """What is missing to decide on this pair, if anything is."""
    mine_s = newcomer.known_left_s(0.0)
    if mine_s is None and theirs_s is None:
        why = f"lengths unknown: give --iterations or --expect (jobs {newcomer.job_id} and {partner.job_id})"
        return because("sharing-unknown", partner.job_id, why)
    if mine_s is None or theirs_s is None:
        unknown = newcomer if mine_s is None else partner
        why = f"the length of job {unknown.job_id} is unknown: give --iterations or --expect"
        return because("sharing-unknown", partner.job_id, why)
    if peak_mib(newcomer, 1) is None:
        return because("sharing-unknown", partner.job_id, memory_unknown(newcomer))
    return None


def best_sharing(view: View, newcomer: Job, partner: Job, left_mib: int) -> SharingChoice | Reason:
    """Algorithm 2 for one pair.

    Args:
        left_mib: device memory left beside the partner, on the fullest of its devices.

    Returns:
        The choice with the least average completion time (it may still not pay), or why there is none.
    """
    mine_s, theirs_s = newcomer.known_left_s(view.now_s), partner.known_left_s(view.now_s)
    unknown = why_unknown(newcomer, partner, theirs_s)
    if unknown is not None:
        return unknown
    assert mine_s is not None and theirs_s is not None
    xi = view.interference(newcomer, partner)
    best: SharingChoice | None = None
    choices = sub_batches(newcomer)
    for s, size, needed, slower in choices:
        if needed > left_mib:
            continue
        timing = pair_timing(mine_s, theirs_s, xi.first, xi.second, slower)
        if best is None or timing.shared_s < best.shared_s:
            best = SharingChoice(
                partner=partner,
                accumulation_steps=s,
                sub_batch=size,
                shared_s=timing.shared_s,
                sequential_s=timing.sequential_s,
                newcomer_xi=xi.first * slower,
                partner_xi=xi.second,
                source=xi.source,
            )
    return best if best is not None else no_memory(newcomer, partner, choices, left_mib)


def no_memory(newcomer: Job, partner: Job, choices: tuple[SubBatch, ...], left_mib: int) -> Reason:
    """Nothing fits: the last, smallest candidate says by how much."""
    size, needed = (choices[-1].size, choices[-1].needed_mib) if choices else (0, 0)
    what = f"a sub-batch of {size or 1}" if newcomer.spec.batch_size else "its whole batch"
    return because("sharing-no-memory", partner.job_id, what, needed, left_mib)


class Chances(NamedTuple):
    """Algorithm 2 for waiting jobs beside all tenants; arrays have a row per job and a column per slot."""

    rows: dict[int, int]
    """A job's number -> its row; no row where the slots that pay have too few devices for its gang."""
    pays: Mask
    shared_s: Numbers
    """Average completion time of the pair when shared."""


def chances(view: View, jobs: Sequence[Job], slots: ShareableSlots) -> Chances:
    """Where sharing pays, for these jobs.

    Equals `best_sharing` in each slot, since of the sub-batches that fit the one with the least slowdown ends
    first whoever the partner is: the average completion time grows with the slowdown in both cases of
    Theorem 1. So there is one timing per slot, and the arithmetic is that of `pair_timing`.
    """
    table = beside_all(view, jobs, slots)
    *_, mine_s, slower, mine_xi, theirs_xi, allowed = table
    theirs_s = slots.left_s()
    with np.errstate(invalid="ignore"):  # Unknown lengths and slots without memory are NaN, and never pay.
        alone_s = mine_s * slower
        mine_shared, theirs_shared = alone_s * mine_xi, theirs_s * theirs_xi
        mine_first = mine_shared <= theirs_shared
        mine_end = np.where(mine_first, mine_shared, theirs_shared + (alone_s - theirs_shared / mine_xi))
        theirs_end = np.where(mine_first, mine_shared + (theirs_s - mine_shared / theirs_xi), theirs_shared)
        shared_s, sequential_s = (mine_end + theirs_end) / 2, (theirs_s + theirs_s + mine_s) / 2
        pays = (shared_s < sequential_s) & allowed
    return Chances(may_be_whole(table, slots, pays), pays, shared_s)


def ranked(view: View, newcomer: Job, slots: ShareableSlots, known: Chances | None = None) -> tuple[int, ...]:
    """The slots in which sharing pays, the pair that ends first on average first; none where all of them and
    what is free cannot make the gang whole.

    Args:
        known: results for several jobs, this one among them, from when the slots were looked up.
    """
    rows, pays, shared_s = known if known is not None else chances(view, (newcomer,), slots)
    row = rows.get(newcomer.number)
    if row is None:
        return ()
    numbers = (pays[row] & slots.open()).nonzero()[0]
    ends_s = shared_s[row, numbers].tolist()
    order = sorted(
        zip(ends_s, numbers.tolist(), strict=True), key=lambda at: (at[0], slots[at[1]].partner.number, at[1])
    )
    return tuple(number for _, number in order)


def with_all(view: View, newcomer: Job, choices: list[SharingChoice]) -> SharingChoice | None:
    """The choice for a gang with several partners: one sub-batch for all of them, and the pace that the
    slowest leaves it. None if it does not pay with each of them any more.

    Departs from Algorithm 1, which takes the partners as if each were the only one.
    """
    if len(choices) == 1:
        return choices[0]
    smallest = max(choices, key=lambda c: c.accumulation_steps)
    slower = slowdown(newcomer, smallest.accumulation_steps) or 1.0
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
