"""castor-cost: share when the newcomer gains more than its partners lose.

Source: ours. Castor's Theorem 1 compares sharing with "start when THIS partner ends", which is too
pessimistic about waiting: other jobs may end earlier. Here waiting costs the expected time until enough
devices of any jobs are free (`ExpectedFree`), and a share counts for all whom it touches:

    gain = (wait + remaining alone) - (remaining when shared)      of the newcomer
    cost = sum over the partners of how much later each of them ends

Share iff gain > cost and, with each partner, the two together get more done than taking turns (1 / xi of the
one + 1 / xi of the other > 1). For a gang the slowest partner sets the pace: so for each xi as a bound, those
partners below it that lose least per device are tried, and the set with the best balance is taken. One bound
per occurring xi finds everything that a finer scan would.

Pruned exactly: each further partner can only slow the newcomer, and the longer it stays the more the others
lose. So a set is no better than the gain beside the best of its members less what each would lose alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import numpy as np

from cotenant.controller.domain import DeviceId, Job, Reason, because
from cotenant.controller.planning import Plan, View, peak_mib
from cotenant.controller.policies.castor import sharing
from cotenant.controller.policies.castor.policy import GangHosts, places_of
from cotenant.controller.policies.entries import SHARE, PolicyEntry
from cotenant.controller.policies.ordered import remaining_key
from cotenant.controller.policies.sharing import (
    NEVER,
    Colocation,
    ColocationParameters,
    CoTenant,
    ExpectedFree,
    Floats,
    ShareableSlot,
    ShareableSlots,
    SubBatch,
    memory_unknown,
    nobody,
)


class Beside(NamedTuple):
    """A partner as the newcomer would find it; all times are in seconds."""

    slot: ShareableSlot
    left_s: float
    """How long the partner still trains, alone, at its own sub-batch."""
    mine: float
    """Interference ratio of the newcomer beside it, and of it beside the newcomer."""
    theirs: float
    gain_s: float = 0.0
    """The newcomer's gain with this one as the only partner, and what this partner loses."""
    cost_s: float = 0.0


class ShareOutcome(NamedTuple):
    """The times that a share would lead to, in seconds."""

    ends_s: float
    """The newcomer's remaining time when shared."""
    waits_s: float
    alone_s: float
    cost_s: float
    """How much later the partners end, summed."""

    @property
    def net_s(self) -> float:
        return self.waits_s + self.alone_s - self.ends_s - self.cost_s


def outcome(mine_s: float, slowdown: float, waits_s: float, partners: Sequence[Beside]) -> ShareOutcome:
    """The newcomer beside all of these from now on; each leaves when it ends, and the pace is that of the
    slowest still there."""
    left_s, now_s = mine_s * slowdown, 0.0
    ending = sorted((p.left_s * p.theirs, p.mine) for p in partners)
    for number, (end_s, _) in enumerate(ending):
        pace = max(mine for _, mine in ending[number:])
        if left_s * pace <= end_s - now_s:
            break
        left_s -= (end_s - now_s) / pace
        now_s = end_s
    else:
        pace = 1.0
    ends_s = now_s + left_s * pace
    cost_s = sum(min(ends_s, p.left_s * p.theirs) * (1.0 - 1.0 / p.theirs) for p in partners)
    if waits_s == NEVER:  # When others end is unknown: it waits for one of these, as in Theorem 1, at least.
        waits_s = min(p.left_s for p in partners)
    return ShareOutcome(ends_s, waits_s, mine_s, cost_s)


class Set(NamedTuple):
    """Partners with whose devices a gang is whole, and what sharing with them would bring."""

    devices: tuple[DeviceId, ...]
    partners: tuple[Beside, ...]
    split: SubBatch
    together: ShareOutcome

    @property
    def pace(self) -> float:
        """The newcomer's slowdown while all are there."""
        return max(partner.mine for partner in self.partners) * self.split.slowdown

    def co_tenant(self) -> CoTenant:
        names = ", ".join(dict.fromkeys(p.slot.partner.job_id for p in self.partners))
        ends_s, waits_s, alone_s, cost_s = self.together
        s = self.split.accumulation_steps
        told = (names, ends_s, waits_s, alone_s, cost_s, self.split.told, s, self.pace)
        return CoTenant(self.devices, s, because("sharing-gains", *told))


class CostSlots(ShareableSlots):
    """Slots, and when devices become free by themselves."""

    guesses = False
    """Whether a job of unknown length is judged by what it has had, with its uncertainty."""

    def __init__(self, plan: Plan, observations: int | None) -> None:
        super().__init__(plan, observations)
        self._expected_free: ExpectedFree | None = None
        self._stays_s: Floats | None = None
        self.known: Balances | None = None
        """Results for the jobs that the policy asks about next."""

    def wait_s(self, job: Job) -> float:
        if self._expected_free is None:
            self._expected_free = ExpectedFree(self._plan, guesses=self.guesses)
        return self._expected_free.wait_s(job)

    def expected_left_s(self, job: Job) -> float | None:
        return job.remaining_now_s(self._view.now_s) if self.guesses else super().expected_left_s(job)

    def stays_s(self) -> Floats:
        """Seconds that each tenant still trains alone at its own sub-batch."""
        if self._stays_s is None:
            factors: Floats = np.array([_slowdown_of(slot.partner) for slot in self.everything()])
            self._stays_s = self.left_s() * factors
        return self._stays_s


def _slowdown_of(partner: Job) -> float:
    assert partner.placement is not None
    return partner.placement.slowdown


class CastorCost(Colocation):
    """Algorithm 1 with another question: not the pair's average, but what all gain and lose."""

    name = "castor-cost"
    queue_key = staticmethod(remaining_key)
    parts_by_theorem = True

    def slots(self, plan: Plan) -> CostSlots:
        return CostSlots(plan, self.observations)

    def expect(self, plan: Plan, jobs: Sequence[Job], slots: ShareableSlots) -> Collection[int]:
        assert isinstance(slots, CostSlots)
        slots.known = balances(plan.view, jobs, slots)
        return slots.known.rows

    def join(self, plan: Plan, job: Job, slots: ShareableSlots) -> CoTenant | None:
        assert isinstance(slots, CostSlots)
        best = best_share(plan, job, slots)
        return None if best is None else best.co_tenant()

    def why_not(self, plan: Plan, job: Job, slots: ShareableSlots) -> Reason | None:
        assert isinstance(slots, CostSlots)
        if job.spec.nodes > 1:
            return because("sharing-spread", job.spec.nodes)
        if self.join(plan, job, slots) is not None:
            return None
        view, scheduling_class = plan.view, plan.view.queue.class_of(job)
        refusals = [
            why_refused(view, job, slots, slot) for slot in slots if slot.admits(view, job, scheduling_class)
        ]
        if not refusals:
            return nobody(slots)
        # Report the partner that came closest to a gain.
        told, first = max(refusals, key=lambda refusal: refusal[0])[1], next(iter(slots))
        return told if told is not None else because("sharing-slowest", first.partner.job_id, job.spec.gpus)


def best_share(plan: Plan, job: Job, slots: CostSlots) -> Set | None:
    """The partners with the best balance, if there is one above 0."""
    if job.spec.nodes > 1:
        return None
    partners = worth_sharing(job, slots, slots.known or balances(plan.view, (job,), slots))
    if job.spec.gpus == 1:
        partners = partners[:1]
    if not partners:
        return None
    choices = slots.batches_of(job)
    alone = {partner.slot.devices[0]: partner for partner in partners}
    best: Set | None = None
    wheres = [
        (bound_s(plan, job, where, alone), where)
        for where in places_of(plan.view, job, [partner.slot for partner in partners])
    ]
    for most_s, where in sorted(wheres, key=lambda at: -at[0]):
        if most_s <= (0.0 if best is None else best.together.net_s):
            break
        found = best_set(plan, job, choices, where, slots.wait_s(job), alone)
        if found is not None and (best is None or found.together.net_s > best.together.net_s):
            best = found
    return best


class Balances(NamedTuple):
    """Waiting jobs beside each tenant as if it were the only partner; arrays have a row per job and a column
    per slot. NaN where the pair is not allowed, or would get less done than taking turns."""

    rows: dict[int, int]
    """A job's number -> its row; no row where the tenants beside whom it gains have too few devices for its
    gang."""
    gain_s: Floats
    cost_s: Floats
    mine: Floats
    """Interference ratios of the newcomer, and of the tenant."""
    theirs: Floats


def balances(view: View, jobs: Sequence[Job], slots: CostSlots) -> Balances:
    """`outcome` for one partner, for all these jobs in all slots at once."""
    table = sharing.newcomer_table(view, jobs, slots)
    waits_s: Floats = np.array([slots.wait_s(job) for job in table.jobs], dtype=np.float64).reshape(-1, 1)
    mine_unknown = np.array([job.estimate.is_guess for job in table.jobs], np.bool_).reshape(-1, 1)
    theirs_unknown = np.array([slot.partner.estimate.is_guess for slot in slots.everything()], np.bool_)
    is_certain = not (mine_unknown.any() or theirs_unknown.any())
    gains: list[Floats] = []
    costs: list[Floats] = []
    with np.errstate(invalid="ignore"):
        for mine_ratio, theirs_ratio in CERTAIN if is_certain else UNCERTAIN:
            mine_s = table.mine_s * np.where(mine_unknown, mine_ratio, 1.0)
            theirs_s = slots.stays_s() * np.where(theirs_unknown, theirs_ratio, 1.0)
            gain_s, cost_s = _balance(table, mine_s, theirs_s, waits_s)
            gains.append(gain_s)
            costs.append(cost_s)
        gain_s, cost_s = np.mean(gains, axis=0), np.mean(costs, axis=0)
        may = table.able & (1.0 / (table.mine * table.slowdown) + 1.0 / table.theirs > 1.0)
        worth = sharing.may_be_whole(table, slots, may & (gain_s - cost_s > 0.0))
    known = np.where(may, gain_s, np.nan), np.where(may, cost_s, np.nan)
    return Balances(worth, *known, table.mine, table.theirs)


CERTAIN: Final = ((1.0, 1.0),)
UNCERTAIN: Final = ((1 / 3, 3.0), (1.0, 1.0), (3.0, 1 / 3))
"""The quartiles of what a job of unknown length has left, over its expectation (Lindy's law: m / u - m), each
once for either side of a pair."""


def _balance(
    table: sharing.NewcomerTable, mine_s: Floats, theirs_s: Floats, waits_s: Floats
) -> tuple[Floats, Floats]:
    """The newcomer's gain and the tenant's loss, for these times that both have left alone."""
    alone_s, both_s = mine_s * table.slowdown, theirs_s * table.theirs
    is_first = alone_s * table.mine <= both_s
    ends_s = np.where(is_first, alone_s * table.mine, both_s + (alone_s - both_s / table.mine))
    cost_s: Floats = np.minimum(ends_s, both_s) * (1.0 - 1.0 / table.theirs)
    gain_s: Floats = np.where(waits_s == NEVER, theirs_s, waits_s) + mine_s - ends_s
    return gain_s, cost_s


def worth_sharing(job: Job, slots: CostSlots, known: Balances) -> list[Beside]:
    """Tenants beside each of whom alone it would pay, the best balance first. `known`: results for several
    jobs, this one among them, from when the slots were looked up."""
    row = known.rows.get(job.number)
    if row is None:
        return []
    net_s = known.gain_s[row] - known.cost_s[row]
    worth = np.flatnonzero((net_s > 0.0) & slots.open())
    if job.spec.gpus == 1:  # One device is enough, and every slot has one: only the best need be looked at.
        worth = worth[net_s[worth] == net_s[worth].max(initial=0.0)]
    columns = [slots.stays_s()[worth].tolist()]
    columns += [each[row, worth].tolist() for each in (known.mine, known.theirs, known.gain_s, known.cost_s)]
    found = [Beside(slots[n], *values) for n, *values in zip(worth.tolist(), *columns, strict=True)]
    found.sort(key=lambda one: (one.cost_s - one.gain_s, one.slot.partner.number))
    return found


Alone = dict[DeviceId, Beside]
"""First device of a slot -> its tenant as the only partner."""


def bound_s(plan: Plan, job: Job, where: GangHosts, alone: Alone) -> float:
    """No set of partners at this place has a better balance: the newcomer gains no more than beside the worst
    of them, and the partners on the devices it needs lose at least what they would alone."""
    needed = job.spec.gpus - min(job.spec.gpus - 1, where.free_at_most(plan))
    here = [alone[slot.devices[0]] for slot in where.offers]
    left, gain_s = needed, NEVER
    for partner in sorted(here, key=lambda one: -one.gain_s):
        if left > 0:
            left, gain_s = left - len(partner.slot.devices), partner.gain_s
    if left > 0:
        return -NEVER
    left, cost_s = needed, 0.0
    for each_s, count in sorted(_cost_per_device(partner, needed) for partner in here):
        cost_s, left = cost_s + each_s * min(left, count), left - min(left, count)
    return gain_s - cost_s


def _cost_per_device(partner: Beside, needed: int) -> tuple[float, int]:
    count = min(needed, len(partner.slot.devices))
    return partner.cost_s / count, count


def best_set(
    plan: Plan, job: Job, choices: tuple[SubBatch, ...], where: GangHosts, waits_s: float, alone: Alone
) -> Set | None:
    """Chooses partners at one place: the free devices and, for each xi as a bound, the partners below it that
    lose least."""
    free = where.free(plan, job)[: job.spec.gpus - 1]
    needed = job.spec.gpus - len(free)
    if sum(len(slot.devices) for slot in where.offers) < needed:
        return None
    all_here = sorted(
        (alone[slot.devices[0]] for slot in where.offers),
        key=lambda one: (_cost_per_device(one, needed), one.slot.partner.number),
    )
    best: Set | None = None
    for bound in _bounds(all_here, needed):
        chosen, devices = _first(needed, [p for p in all_here if p.mine <= bound])
        split = _split(choices, min(p.slot.left_mib for p in chosen))
        if split is None:
            continue
        together = outcome(job.estimate.remaining_s or 0.0, split.slowdown, waits_s, chosen)
        if together.net_s <= (0.0 if best is None else best.together.net_s):
            continue
        found = Set((*free, *devices), tuple(chosen), split, together)
        # The partner that would be slowed most decides whether all get more done than taking turns.
        if 1.0 / found.pace + 1.0 / max(p.theirs for p in chosen) > 1.0:
            best = found
    return best


def _bounds(partners: Sequence[Beside], needed: int) -> list[float]:
    """Returns every xi below which partners offer enough devices."""
    offered = 0
    bounds: list[float] = []
    for partner in sorted(partners, key=lambda one: one.mine):
        offered += len(partner.slot.devices)
        if offered >= needed and (not bounds or bounds[-1] != partner.mine):
            bounds.append(partner.mine)
    return bounds


def describe_beside(view: View, job: Job, slots: CostSlots, slot: ShareableSlot) -> Beside:
    xi = slots.interference(job, slot.partner)
    left_s = slots.expected_left_s(slot.partner)
    assert left_s is not None
    return Beside(slot, left_s * _slowdown_of(slot.partner), xi.first, xi.second)


def _first(needed: int, partners: list[Beside]) -> tuple[list[Beside], list[DeviceId]]:
    """The first partners that together make the gang whole."""
    chosen: list[Beside] = []
    devices: list[DeviceId] = []
    for partner in partners:
        if len(devices) < needed:
            devices += partner.slot.devices[: needed - len(devices)]
            chosen.append(partner)
    return chosen, devices


def _split(choices: tuple[SubBatch, ...], left_mib: int) -> SubBatch | None:
    """The sub-batch that fits beside all with the least slowdown."""
    fitting = [choice for choice in choices if choice.needed_mib <= left_mib]
    return min(fitting, key=lambda c: (c.slowdown, c.accumulation_steps), default=None)


def why_refused(view: View, job: Job, slots: CostSlots, slot: ShareableSlot) -> tuple[float, Reason | None]:
    """Why a job does not share with one tenant, and how near it was to a gain; no reason if it would."""
    partner = slot.partner
    again = slots.why_not_again(job, partner)
    unknown = sharing.why_unknown(job, slots.expected_left_s(job), partner, slots.expected_left_s(partner))
    if again is not None or unknown is not None:
        return -NEVER, again or unknown
    if peak_mib(job, 1) is None and not slots.may_limit(job, partner):
        return -NEVER, memory_unknown(job, partner, view.now_s, measured=view.running.training)
    choices = slots.batches_of(job)
    split = _split(choices, slot.left_mib)
    if split is None:
        return -NEVER, sharing.no_memory(job, partner, choices, slot.left_mib)
    one = describe_beside(view, job, slots, slot)
    alone = outcome(job.estimate.remaining_s or 0.0, split.slowdown, slots.wait_s(job), [one])
    if 1.0 / (one.mine * split.slowdown) + 1.0 / one.theirs <= 1.0:
        return alone.net_s, because("sharing-slows", partner.job_id, one.mine * split.slowdown, one.theirs)
    if alone.net_s > 0.0:
        return alone.net_s, None
    gain_s = alone.waits_s + alone.alone_s - alone.ends_s
    return alone.net_s, because("sharing-costs", partner.job_id, gain_s, alone.waits_s, alone.cost_s)


CASTOR_COST: Final = PolicyEntry(
    "as castor, but weighs what the newcomer gains against what its partners lose and its real wait",
    CastorCost,
    ColocationParameters.parse,
    group=SHARE,
    choose="waits are long, and castor shares too rarely",
)
