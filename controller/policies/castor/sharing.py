"""Algorithm 2: the best way for a newcomer to share with one partner, or not at all; and waiting jobs
beside all tenants at once, which `ranked` and `balances` reckon with as matrices.

Source: Castor section 5.2 and Theorem 1, as settled: every sub-batch is tried with its own iteration
time (the paper stops at the first that fits), s = B included, and sharing must beat "start when the
partner ends" by the average completion time of the two.

Rule: a row equals the answer for that job alone, to the last bit. The same operations in the same order make
every entry, whichever other jobs are asked for; a slot that is taken meanwhile only drops out.

A decision tries up to `lookahead` jobs beside all tenants: O(lookahead x tenants) operations on numbers.
It asks once what jobs of a kind have in common: how their batch can be split, the
ratios beside each kind of tenant, where they may go. One job after the other that would be a few dozen calls
of numpy for each job; together it is a few dozen calls. Whoever could find partners is then looked at alone:
O(tenants log tenants) for each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from cotenant.controller.domain import Job, Reason, because
from cotenant.controller.performance import XiSource, pair_timing
from cotenant.controller.planning import SchedulingClass, View, peak_mib
from cotenant.controller.policies import sharing
from cotenant.controller.policies.sharing import sub_batches

Counts = NDArray[np.int64]


class NewcomerTable(NamedTuple):
    """n jobs and r slots; jobs of unknown length or memory have no row."""

    jobs: list[Job]
    """In the order of their rows: those that are alike stand together."""
    classes: list[SchedulingClass]
    """One entry per kind of jobs that are alike."""
    of: NDArray[np.intp]
    """Row -> its kind. Shape (n,)"""
    mine_s: sharing.Floats
    """Remaining time alone; shape (n, 1)."""
    slowdown: sharing.Floats
    """Step time at the sub-batch that fits beside the tenant / at the whole batch; NaN: none fits. (n, r)"""
    mine: sharing.Floats
    """Interference ratio of the newcomer, and of the tenant; (n, r)."""
    theirs: sharing.Floats
    able: sharing.Mask
    """Whether the place suits the job and the pair may be made; (n, r)."""


def newcomer_table(view: View, jobs: Sequence[Job], slots: sharing.ShareableSlots) -> NewcomerTable:
    """The table of these jobs, with the slots in their present order."""
    alike: dict[tuple[SchedulingClass, object], list[Job]] = defaultdict(list)
    for job in jobs:
        if slots.expected_left_s(job) is not None:
            like = (
                job.spec.launch.argv,
                job.batch_size,
                job.progress.capabilities.accumulates,
                id(job.measured.profile),
            )
            alike[view.queue.class_of(job), like] += [job]
    splits = [(slots.batches_of(here[0]), key[0], here) for key, here in alike.items()]
    kinds = [(choices, wanted, here) for choices, wanted, here in splits if choices]
    able, classes = [job for *_, here in kinds for job in here], [wanted for _, wanted, _ in kinds]
    of = np.array([kind for kind, (*_, here) in enumerate(kinds) for _ in here], dtype=np.intp)
    ratios = slots.ratios([here[0] for *_, here in kinds], classes)
    allowed = ratios.allowed[of]
    for row, job in enumerate(able):
        if job.co_tenants or job.counts.preemptions or slots.is_one_uid:
            allowed[row] &= slots.admission_mask(job)
    return NewcomerTable(
        able,
        classes,
        of,
        np.array([job.estimate.remaining_s for job in able], dtype=np.float64).reshape(-1, 1),
        _least_each([choices for choices, *_ in kinds], slots.left_mib())[of],
        ratios.mine[of],
        ratios.theirs[of],
        allowed,
    )


def may_be_whole(
    table: NewcomerTable, slots: sharing.ShareableSlots, offered: sharing.Mask
) -> dict[int, int]:
    """The jobs whose gang could be whole at some place, number -> row: with the devices of the slots that are
    offered there, at least one of them, and what is free. What fails now fails for the rest of the decision,
    in which slots are only taken and free devices only given away.

    Args:
        offered: by job and slot; shape (n, r).
    """
    gpus: Counts = np.array([wanted.gpus for wanted in table.classes], dtype=np.int64)[table.of]
    by_place: Counts = offered.astype(np.int64) @ slots.devices_at()
    everywhere: Counts = by_place.sum(axis=1)
    whole: sharing.Mask = (by_place > 0) & (by_place + slots.free_at() >= gpus.reshape(-1, 1))
    anywhere: sharing.Mask = (everywhere > 0) & (everywhere + slots.free_everywhere() >= gpus)
    wide = {wanted for wanted in set(table.classes) if slots.is_wide(wanted)}
    is_wide: sharing.Mask = np.array([wanted in wide for wanted in table.classes], dtype=np.bool_)[table.of]
    rows = np.where(is_wide, anywhere, whole.any(axis=1)).nonzero()[0]
    return {table.jobs[row].number: row for row in rows.tolist()}


def _least_each(choices: Sequence[tuple[sharing.SubBatch, ...]], left_mib: sharing.Floats) -> sharing.Floats:
    """`least_slowdown` for each job; most cannot be split, and are handled together."""
    needs = np.array([each[0].needed_mib for each in choices], dtype=np.float64).reshape(-1, 1)
    found: sharing.Floats = np.where(needs <= left_mib, 1.0, np.nan)
    for row, each in enumerate(choices):
        if each[1:]:
            found[row] = sharing.least_slowdown(each, left_mib)
    return found


class SharingChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The best sub-batch beside one partner."""

    partner: Job
    accumulation_steps: int
    sub_batch: int | str
    """As a reason says it."""
    shared_s: float
    """Average completion time of the pair when shared."""
    sequential_s: float
    newcomer_xi: float
    partner_xi: float
    source: XiSource

    @property
    def pays(self) -> bool:
        return self.shared_s < self.sequential_s


def why_unknown(newcomer: Job, mine_s: float | None, partner: Job, theirs_s: float | None) -> Reason | None:
    """Whose length is missing to decide on a pair, if any is. `mine_s`, `theirs_s`: what both have left."""
    if mine_s is None and theirs_s is None:
        why = f"lengths unknown: give --iterations or --expect (jobs {newcomer.job_id} and {partner.job_id})"
        return because("sharing-unknown", partner.job_id, why)
    if mine_s is None or theirs_s is None:
        unknown = newcomer if mine_s is None else partner
        why = f"the length of job {unknown.job_id} is unknown: give --iterations or --expect"
        return because("sharing-unknown", partner.job_id, why)
    return None


def best_sharing(view: View, newcomer: Job, partner: Job, left_mib: int) -> SharingChoice | Reason:
    """Algorithm 2 for one pair.

    Args:
        left_mib: device memory left beside the partner, on the fullest of its devices.

    Returns:
        The choice with the least average completion time (it may still not pay), or why there is none.
    """
    mine_s, theirs_s = newcomer.known_left_s(view.now_s), partner.known_left_s(view.now_s)
    unknown = why_unknown(newcomer, mine_s, partner, theirs_s)
    if unknown is not None:
        return unknown
    if peak_mib(newcomer, 1) is None:
        return sharing.memory_unknown(newcomer, partner, view.now_s, measured=view.running.training)
    assert mine_s is not None and theirs_s is not None
    xi = view.pairs.interference(newcomer, partner)
    best: SharingChoice | None = None
    choices = sub_batches(newcomer)
    for choice in choices:
        if choice.needed_mib > left_mib:
            continue
        timing = pair_timing(mine_s, theirs_s, xi.first, xi.second, choice.slowdown)
        if best is None or timing.shared_s < best.shared_s:
            best = SharingChoice(
                partner=partner,
                accumulation_steps=choice.accumulation_steps,
                sub_batch=choice.told,
                shared_s=timing.shared_s,
                sequential_s=timing.sequential_s,
                newcomer_xi=xi.first * choice.slowdown,
                partner_xi=xi.second,
                source=xi.source,
            )
    return best if best is not None else no_memory(newcomer, partner, choices, left_mib)


def no_memory(newcomer: Job, partner: Job, choices: tuple[sharing.SubBatch, ...], left_mib: int) -> Reason:
    """Says that no sub-batch fits: the last, smallest candidate says by how much."""
    size, needed = (choices[-1].size, choices[-1].needed_mib) if choices else (0, 0)
    what = f"a sub-batch of {size or 1}" if newcomer.batch_size else "its whole batch"
    return because("sharing-no-memory", partner.job_id, what, needed, left_mib)


class Chances(NamedTuple):
    """Algorithm 2 for waiting jobs beside all tenants; arrays have a row per job and a column per slot."""

    rows: dict[int, int]
    """A job's number -> its row; no row where the slots that pay have too few devices for its gang."""
    pays: sharing.Mask
    shared_s: sharing.Floats
    """Average completion time of the pair when shared."""


def chances(view: View, jobs: Sequence[Job], slots: sharing.ShareableSlots) -> Chances:
    """Where sharing pays, for these jobs.

    Equals `best_sharing` in each slot, since of the sub-batches that fit the one with the least slowdown ends
    first whoever the partner is: the average completion time grows with the slowdown in both cases of
    Theorem 1. So there is one timing per slot, and the arithmetic is that of `pair_timing`.
    """
    table = newcomer_table(view, jobs, slots)
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


def rank_slots(
    view: View, newcomer: Job, slots: sharing.ShareableSlots, known: Chances | None = None
) -> tuple[int, ...]:
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


def share_with_all(view: View, newcomer: Job, choices: list[SharingChoice]) -> SharingChoice | None:
    """The choice for a gang with several partners: one sub-batch for all of them, and the pace that the
    slowest leaves it. None if it does not pay with each of them any more.

    Departs from Algorithm 1, which takes the partners as if each were the only one.
    """
    if len(choices) == 1:
        return choices[0]
    smallest = max(choices, key=lambda c: c.accumulation_steps)
    slower = sharing.slowdown(newcomer, smallest.accumulation_steps) or 1.0
    pairs = [(c.partner, view.pairs.interference(newcomer, c.partner)) for c in choices]
    slowest = max(xi.first for _, xi in pairs)
    mine_s = newcomer.estimate.remaining_s or 0.0
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
