"""sjf-ffs: shortest job first, and first-fit sharing where free devices are not enough.

Source: Castor section 9.1, the baseline that "greedily resorts to colocation whenever idle resources are
insufficient" and so shows what judging a share is worth. Free devices first; else the first host, in order,
on which free devices and devices with one job can hold the gang: whoever holds them, whatever it costs. The
batch is split only as far as it must be to fit, as under castor. `part=false` is the paper's baseline: it has
no opinion of a pair, not even afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from cotenant.controller.domain.ids import DeviceId
from cotenant.controller.domain.job import Job
from cotenant.controller.domain.plan import Plan
from cotenant.controller.domain.reasons import Reason, because
from cotenant.controller.policies.castor.policy import Where, places_of
from cotenant.controller.policies.castor.sharing import no_memory
from cotenant.controller.policies.classic import by_remaining
from cotenant.controller.policies.toolkit.colocation import Guest, GuestParameters, Guests, nobody
from cotenant.controller.policies.toolkit.shareable_slots import Room, Rooms
from cotenant.controller.policies.toolkit.sub_batches import SubBatch, known_batches


class SjfFfs(Guests):
    """First fit, in the order of hosts and devices."""

    name = "sjf-ffs"

    def __init__(self, parameters: GuestParameters | None = None) -> None:
        self.parameters = parameters if parameters is not None else GuestParameters()
        super().__init__(self.parameters)

    def queue_key(self, job: Job) -> tuple[float, ...]:
        return by_remaining(job)

    def join(self, plan: Plan, job: Job, rooms: Rooms) -> Guest | None:
        choices = known_batches(job, rooms.batches)
        if job.spec.nodes > 1 or not choices:
            return None
        smallest_mib = min(choice.needed_mib for choice in choices)
        rooms_left = (room for room in suitable(plan, job, rooms) if room.left_mib >= smallest_mib)
        # One device is enough for most, and every room has one: then the others need no look.
        first = islice(rooms_left, 1 if job.spec.gpus == 1 else None)
        for where in places_of(plan.view, job, first):
            for choice in choices:
                guest = self._fill(plan, job, where, choice)
                if guest is not None:
                    return guest
        return None

    def _fill(self, plan: Plan, job: Job, where: Where, choice: SubBatch) -> Guest | None:
        """The first devices at one place that are free or leave room for this sub-batch."""
        free = where.free(plan, job)
        holds = [room for room in where.offers if room.left_mib >= choice.needed_mib]
        open_to: dict[DeviceId, Room | None] = dict.fromkeys(free)
        open_to.update((device_id, room) for room in holds for device_id in room.devices)
        # Free devices first: they cost nobody anything.
        devices = [*free, *sorted(open_to.keys() - set(free))][: job.spec.gpus]
        partners = [room for d in devices if (room := open_to[d]) is not None]
        if len(devices) < job.spec.gpus or not partners:
            return None
        names = ", ".join(dict.fromkeys(room.partner.job_id for room in partners))
        left_mib = min(room.left_mib for room in partners)
        reason = because(
            "sharing-first-fit", names, choice.size or "all", choice.accumulation_steps, choice.needed_mib,
            left_mib,
        )  # fmt: skip
        return Guest(tuple(devices), choice.accumulation_steps, reason)

    def why_not(self, plan: Plan, job: Job, rooms: Rooms) -> Reason | None:
        if job.spec.nodes > 1:
            return because("sharing-spread", job.spec.nodes)
        if self.join(plan, job, rooms) is not None:
            return None
        choices, view, shape = known_batches(job, rooms.batches), plan.view, plan.view.shape(job)
        refusal: Reason | None = None
        for room in rooms:
            if not room.admits(view, job, shape):
                continue
            again = rooms.why_not_again(job, room.partner)
            if again is not None:
                refusal = again
            elif not choices:
                why = f"the memory that job {job.job_id} needs is not known"
                refusal = because("sharing-unknown", room.partner.job_id, why)
            elif room.left_mib < min(choice.needed_mib for choice in choices):
                refusal = no_memory(job, room.partner, choices, room.left_mib)
        if refusal is not None:
            return refusal
        return self._too_few(plan, job, rooms)

    def _too_few(self, plan: Plan, job: Job, rooms: Rooms) -> Reason:
        best = max(
            (
                (len(where.free(plan, job)), sum(len(room.devices) for room in where.offers))
                for where in places_of(plan.view, job, list(suitable(plan, job, rooms)))
            ),
            key=sum,
            default=None,
        )
        return nobody(rooms) if best is None else because("sharing-too-few", *best, job.spec.gpus)


def suitable(plan: Plan, job: Job, rooms: Rooms) -> Iterator[Room]:
    """Rooms that a job may use and whose tenant it may share with, in order."""
    view, shape = plan.view, plan.view.shape(job)
    for room in rooms:
        if room.admits(view, job, shape) and rooms.why_not_again(job, room.partner) is None:
            yield room
