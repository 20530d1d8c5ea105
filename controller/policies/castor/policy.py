"""Algorithm 1: SJF-BSBF. Shortest job first; free devices first; else the partners that pay most.

Source: Castor section 5.2 as settled. Preempts no job to make room; a whole gang or nothing; each
device holds at most its `max_tenants` jobs. Departs from the paper in that

* a gang that fits on one host shares on one host only, as it is placed on free devices: partners on
  several hosts would make a gang of one host one of many. Wider gangs share on as many hosts as it takes;
* with several partners the policy judges each pair again with the pace that the slowest of them sets;
* a pair that was measured to lose is parted and not made again (`part`; see `sharing/colocation.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from cotenant.controller.domain import DeviceId, HostId, HostState, Job, Reason, because
from cotenant.controller.planning import Plan, View
from cotenant.controller.policies.castor import sharing
from cotenant.controller.policies.entries import FIRST, PolicyEntry
from cotenant.controller.policies.ordered import remaining_key
from cotenant.controller.policies.sharing import (
    Colocation,
    ColocationParameters,
    CoTenant,
    HostAndType,
    ShareableSlot,
    ShareableSlots,
    is_suitable,
    nobody,
)

Offers = Sequence[ShareableSlot]
"""Slots in which sharing pays, best pair completion time first."""


class CastorParameters(ColocationParameters, frozen=True, kw_only=True):
    """The options of `castor`, by name; the defaults are the paper's, but for `part`."""

    shared_first: bool = False
    """Fill the gang from shareable devices before free ones (the paper's text; its Algorithm 1 fills
    with free ones first)."""


class CastorSlots(ShareableSlots):
    """Slots, and results for the jobs that will be asked about."""

    known: sharing.Chances | None = None


class Castor(Colocation):
    """The policy Castor, SJF-BSBF: shortest job first, with the batch that serves best beside the partner
    that suits best."""

    name = "castor"
    queue_key = staticmethod(remaining_key)
    parts_by_theorem = True

    def __init__(self, parameters: CastorParameters) -> None:
        self.parameters = parameters
        super().__init__(self.parameters)

    def slots(self, plan: Plan) -> CastorSlots:
        return CastorSlots(plan, self.observations)

    def expect(self, plan: Plan, jobs: Sequence[Job], slots: ShareableSlots) -> Collection[int]:
        assert isinstance(slots, CastorSlots)
        slots.known = sharing.chances(plan.view, jobs, slots)
        return slots.known.rows

    def join(self, plan: Plan, job: Job, slots: ShareableSlots) -> CoTenant | None:
        """Algorithm 1 lines 3 to 19 for one job that free devices alone cannot hold."""
        if job.spec.nodes > 1:
            return None
        assert isinstance(slots, CastorSlots)
        numbers = sharing.rank_slots(plan.view, job, slots, slots.known)
        if job.spec.gpus == 1:
            numbers = numbers[:1]  # One device is enough, and every slot has one.
        return self._gather(plan, job, [slots[number] for number in numbers])

    def _gather(self, plan: Plan, job: Job, offers: Offers) -> CoTenant | None:
        """The first place, by its best offer, where the gang becomes whole and sharing pays with all."""
        for where in places_of(plan.view, job, offers):
            gang = self._fill(plan, job, where)
            if gang is not None:
                return gang
        return None

    def _fill(self, plan: Plan, job: Job, where: GangHosts) -> CoTenant | None:
        """Lines 14 to 17, at one place: devices of the best offers until the gang is whole."""
        gpus = job.spec.gpus
        if sum(len(slot.devices) for slot in where.offers) + where.free_at_most(plan) < gpus:
            return None
        free = where.free(plan, job)
        chosen = [] if self.parameters.shared_first else free[:gpus]
        partners: list[sharing.SharingChoice] = []
        for slot in where.offers:
            if len(chosen) == gpus:
                break
            choice = sharing.best_sharing(plan.view, job, slot.partner, slot.left_mib)
            assert not isinstance(choice, Reason), f"an offer that is none: {choice}"
            chosen = [*chosen, *slot.devices[: gpus - len(chosen)]]
            partners.append(choice)
        if self.parameters.shared_first:
            chosen = [*chosen, *free[: gpus - len(chosen)]]
        if not partners or len(chosen) < gpus:
            return None
        together = sharing.share_with_all(plan.view, job, partners)
        if together is None:
            return None
        return CoTenant(tuple(chosen), together.accumulation_steps, share_reason(together))

    def why_not(self, plan: Plan, job: Job, slots: ShareableSlots) -> Reason | None:
        if job.spec.nodes > 1:
            return because("sharing-spread", job.spec.nodes)
        offers, refusal = paying(plan.view, job, slots)
        if not offers:
            return refusal or nobody(slots)
        if self._gather(plan, job, offers) is not None:
            return None
        places = [
            (len(where.free(plan, job)), sum(len(slot.devices) for slot in where.offers))
            for where in places_of(plan.view, job, offers)
        ]
        most_free, most_shareable = max(places, key=sum, default=(0, 0))
        if most_free + most_shareable >= job.spec.gpus:
            return because("sharing-slowest", offers[0].partner.job_id, job.spec.gpus)
        return because("sharing-too-few", most_free, most_shareable, job.spec.gpus)


def share_reason(best: sharing.SharingChoice) -> Reason:
    return because(
        "sharing-pays",
        best.partner.job_id,
        best.shared_s,
        best.sequential_s,
        best.sub_batch,
        best.accumulation_steps,
        best.newcomer_xi,
        best.partner_xi,
        best.source,
    )


def paying(view: View, job: Job, slots: ShareableSlots) -> tuple[list[ShareableSlot], Reason | None]:
    """Ranks the slots as `ranked` does, one pair at a time, and returns the last refusal as well: for a
    person who asks why."""
    scheduling_class = view.queue.class_of(job)
    offers: list[tuple[float, int, int, ShareableSlot]] = []
    refusal: Reason | None = None
    for number, slot in enumerate(slots):
        if not slot.admits(view, job, scheduling_class):
            continue
        again = slots.why_not_again(job, slot.partner)
        choice = sharing.best_sharing(view, job, slot.partner, slot.left_mib)
        if again is not None:
            refusal = again
        elif isinstance(choice, Reason):
            refusal = choice
        elif choice.pays:
            offers.append((choice.shared_s, slot.partner.number, number, slot))
        else:
            refusal = because("sharing-loses", slot.partner.job_id, choice.shared_s, choice.sequential_s)
    offers.sort(key=lambda offer: offer[:3])
    return [slot for *_, slot in offers], refusal


# --- Places ---------------------------------------------------------------------------------------------


class GangHosts(NamedTuple):
    """The hosts that one gang may use together, all with devices of one type, and the offers there."""

    hosts: tuple[HostId, ...]
    type: str
    offers: tuple[ShareableSlot, ...]

    def free_at_most(self, plan: Plan) -> int:
        return sum(len(plan.free_devices(host_id, self.type)) for host_id in self.hosts)

    def free(self, plan: Plan, job: Job) -> list[DeviceId]:
        """Free devices to fill a gang up with, those of the host with most of them first."""
        needed, devices = plan.view.queue.class_of(job).memory_mib, plan.view.devices
        found: list[tuple[int, HostId, list[DeviceId]]] = []
        for host_id in self.hosts:
            here = [d for d in plan.free_devices(host_id, self.type) if devices[d].usable_mib >= needed]
            found.append((-len(here), host_id, here))
        return [device_id for _, _, here in sorted(found) for device_id in here]


def places_of(view: View, job: Job, offers: Iterable[ShareableSlot]) -> list[GangHosts]:
    """Where the gang could be whole, the place of the best offer first: single hosts, or for a gang that no
    host could ever hold all hosts with devices of one type that others can reach."""
    at: dict[HostAndType, list[ShareableSlot]] = {}
    wide: dict[str, bool] = {}
    for slot in offers:
        host_id, type = slot.place
        if type not in wide:
            wide[type] = job.spec.gpus > 1 and job.spec.gpus > view.sizes.on_host(
                view.queue.class_of(job), type
            )
        if not wide[type]:
            at.setdefault(slot.place, []).append(slot)
        elif _is_reachable(view, host_id):
            at.setdefault((HostId(""), type), []).append(slot)
    return [
        GangHosts((host_id,) if host_id else _wide(view, job, type), type, tuple(slots))
        for (host_id, type), slots in at.items()
    ]


def _wide(view: View, job: Job, type: str) -> tuple[HostId, ...]:
    scheduling_class = view.queue.class_of(job)
    return tuple(
        host_id
        for host_id, host in view.hosts.items()
        if host.state is HostState.OK
        and _is_reachable(view, host_id)
        and is_suitable(view, scheduling_class, (host_id, type))
    )


def _is_reachable(view: View, host_id: HostId) -> bool:
    """A gang over several hosts needs addresses that other hosts can reach."""
    return not view.hosts[host_id].report.address.startswith("127.")


CASTOR: Final = PolicyEntry(
    "shortest first; two jobs share devices when both together finish sooner so; parts pairs that lose",
    Castor,
    CastorParameters.parse,
    group=FIRST,
    choose="jobs leave devices half idle",
)
