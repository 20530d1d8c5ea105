"""Algorithm 1: SJF-BSBF. Shortest job first; free devices first; else the partners that pay most.

Source: Castor section 5.3 as settled. Never preempts; a whole gang or nothing; each device holds at
most its `max_tenants` jobs. Departs from the paper in that at most `lookahead` queued jobs are tried for
sharing per event: the paper's scan of the whole queue costs more the longer the queue is.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from cotenant.controller.domain.actions import NOTHING, Decision
from cotenant.controller.domain.events import AnyEvent
from cotenant.controller.domain.ids import DeviceId
from cotenant.controller.domain.job import Job
from cotenant.controller.domain.plan import Plan
from cotenant.controller.domain.reasons import Reason, because
from cotenant.controller.domain.view import View, shape_of
from cotenant.controller.policies.base import QUIET, Parameters, Stateless, why_waiting
from cotenant.controller.policies.castor.rooms import Place, Room, Rooms
from cotenant.controller.policies.castor.sharing import SharingChoice, best_sharing, with_all
from cotenant.controller.policies.classic import by_remaining, place_in_order


class CastorParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Named options; the defaults are the paper's."""

    shared_first: bool = False
    """Fill the gang from shareable devices before free ones (the paper's text; its Algorithm 1 fills
    with free ones first)."""
    lookahead: int = 64
    """Queued jobs tried for sharing per event."""

    def __post_init__(self) -> None:
        if self.lookahead < 1:
            raise ValueError(f"castor: lookahead must be at least 1, got {self.lookahead}")

    @classmethod
    def parse(cls, parameters: Parameters) -> CastorParameters:
        """Raises ValueError for a wrong name, type or range."""
        return msgspec.convert(parameters, cls, strict=False)

    def as_parameters(self) -> Parameters:
        return {"shared_first": self.shared_first, "lookahead": self.lookahead}


class Offer(NamedTuple):
    """A room where sharing pays, and how."""

    room: Room
    choice: SharingChoice


class Castor(Stateless):
    """SJF-BSBF."""

    name = "castor"

    def __init__(self, parameters: CastorParameters | None = None) -> None:
        self.parameters = parameters if parameters is not None else CastorParameters()

    def queue_key(self, job: Job) -> tuple[float, ...]:
        return by_remaining(job)

    def decide(self, view: View, event: AnyEvent) -> Decision:
        if isinstance(event, QUIET) or not view.queued_count():
            return NOTHING
        plan = Plan(view)
        while (waited_for := place_in_order(plan, self.name, strict=False)) is not None:
            self._share(plan, waited_for)
            if not plan.is_placed(waited_for.job_id):
                break
        else:
            self._share(plan, None)
        return Decision(actions=tuple(plan.actions))

    def _share(self, plan: Plan, waited_for: Job | None) -> None:
        """Try the first queued jobs in order; none behind an aged one, whose devices a guest would hold."""
        rooms = Rooms(plan)
        tried = 0
        for job in plan.view.queued() if rooms else ():
            if plan.is_placed(job.job_id):
                continue
            choice = self.choose(plan, job, rooms)
            if not isinstance(choice, Reason):
                devices, best = choice
                plan.share(job, devices, share_reason(best), best.accumulation_steps)
                rooms.take(devices)
            elif job is waited_for:
                return
            tried += 1
            if tried >= self.parameters.lookahead or not rooms:
                return

    def choose(
        self, plan: Plan, job: Job, rooms: Rooms
    ) -> tuple[tuple[DeviceId, ...], SharingChoice] | Reason:
        """Algorithm 1 lines 3 to 19 for one job that free devices alone cannot hold."""
        if job.spec.share == "never":
            return because("sharing-off")
        if job.spec.nodes > 1:
            return because("sharing-spread", job.spec.nodes)
        offers, refusal = paying(plan.view, job, rooms)
        if not offers:
            return refusal or rooms.closed or because("sharing-nobody")
        most_free, most_shareable = 0, 0
        for place in dict.fromkeys(offer.room.place for offer in offers):
            here = [offer for offer in offers if offer.room.place == place]
            free = free_at(plan, job, place)
            found = self._fill(plan.view, job, here, free)
            if found is not None:
                return found
            shareable = sum(len(offer.room.devices) for offer in here)
            if len(free) + shareable > most_free + most_shareable:
                most_free, most_shareable = len(free), shareable
        if most_free + most_shareable >= job.spec.gpus:
            return because("sharing-slowest", offers[0].choice.partner.job_id, job.spec.gpus)
        return because("sharing-too-few", most_free, most_shareable, job.spec.gpus)

    def _fill(
        self, view: View, job: Job, offers: list[Offer], free: list[DeviceId]
    ) -> tuple[tuple[DeviceId, ...], SharingChoice] | None:
        """Take one host's devices until the gang is whole; see whether it still pays with all partners."""
        chosen = [] if self.parameters.shared_first else free[: job.spec.gpus]
        partners: list[SharingChoice] = []
        for offer in offers:
            fresh = offer.room.devices[: job.spec.gpus - len(chosen)]
            if fresh:
                chosen = [*chosen, *fresh]
                partners.append(offer.choice)
        if self.parameters.shared_first:
            chosen = [*chosen, *free[: job.spec.gpus - len(chosen)]]
        if not partners or len(chosen) < job.spec.gpus:
            return None
        together = with_all(view, job, partners)
        return None if together is None else (tuple(chosen), together)

    def explain(self, view: View, job: Job) -> Reason:
        reason = why_waiting(view, job, self.name)
        if reason.code not in ("first-no-devices", "behind-no-devices", "fragmented"):
            return reason
        plan = Plan(view)
        rooms = Rooms(plan)
        if not rooms and rooms.closed is None:
            return reason
        choice = self.choose(plan, job, rooms)
        return choice if isinstance(choice, Reason) else reason


def share_reason(best: SharingChoice) -> Reason:
    return because(
        "sharing-pays", best.partner.job_id, best.shared_s, best.sequential_s, best.sub_batch or "all",
        best.accumulation_steps, best.newcomer_xi, best.partner_xi, best.source,
    )  # fmt: skip


def paying(view: View, job: Job, rooms: Rooms) -> tuple[list[Offer], Reason | None]:
    """Rooms in which sharing pays, best pair completion time first; the last refusal, for `explain`."""
    shape = shape_of(job)
    offers: list[Offer] = []
    refusal: Reason | None = None
    for room in rooms:
        if not room.admits(view, job, shape):
            continue
        choice = best_sharing(view, job, room.partner, room.left_mib)
        if isinstance(choice, Reason):
            refusal = choice
        elif choice.pays:
            offers.append(Offer(room, choice))
        else:
            refusal = because("sharing-loses", room.partner.job_id, choice.shared_s, choice.sequential_s)
    offers.sort(key=lambda offer: (offer.choice.shared_s, offer.choice.partner.number, offer.room.place))
    return offers, refusal


def free_at(plan: Plan, job: Job, place: Place) -> list[DeviceId]:
    """Free devices to fill a gang up with."""
    needed = shape_of(job).memory_mib
    return [d for d in plan.free_devices(*place) if plan.view.devices[d].usable_mib >= needed]
