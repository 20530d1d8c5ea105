"""sjf-ffs: shortest job first, and first-fit sharing where free devices are not enough.

Source: Castor section 9.1, the baseline that "greedily resorts to colocation whenever idle resources are
insufficient" and so shows what judging a share is worth. Free devices first; else the first host, in order,
on which free devices and devices with one job can hold the gang: whoever holds them, whatever it costs. The
batch is split only as far as it must be to fit, as under castor. `part=false` is the paper's baseline: it
judges no pair, not even afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from cotenant.controller.domain import DeviceId, Job, Reason, because
from cotenant.controller.planning import Plan
from cotenant.controller.policies import sharing
from cotenant.controller.policies.castor.policy import GangHosts, places_of
from cotenant.controller.policies.castor.sharing import no_memory
from cotenant.controller.policies.entries import COMPARED, PolicyEntry
from cotenant.controller.policies.ordered import remaining_key


class SjfFfs(sharing.Colocation):
    """First fit, in the order of hosts and devices."""

    name = "sjf-ffs"
    queue_key = staticmethod(remaining_key)

    def join(self, plan: Plan, job: Job, slots: sharing.ShareableSlots) -> sharing.CoTenant | None:
        choices = sharing.known_batches(job, slots.batches)
        if job.spec.nodes > 1 or not choices:
            return None
        smallest_mib = min(choice.needed_mib for choice in choices)
        slots_left = (slot for slot in suitable(plan, job, slots) if slot.left_mib >= smallest_mib)
        # One device is enough for most, and every slot has one: then the others need no look.
        first = islice(slots_left, 1 if job.spec.gpus == 1 else None)
        for where in places_of(plan.view, job, first):
            for choice in choices:
                co_tenant = self._fill(plan, job, where, choice)
                if co_tenant is not None:
                    return co_tenant
        return None

    def _fill(
        self, plan: Plan, job: Job, where: GangHosts, choice: sharing.SubBatch
    ) -> sharing.CoTenant | None:
        """The first devices at one place that are free or leave room for this sub-batch."""
        free = where.free(plan, job)
        holds = [slot for slot in where.offers if slot.left_mib >= choice.needed_mib]
        open_to: dict[DeviceId, sharing.ShareableSlot | None] = dict.fromkeys(free)
        open_to.update((device_id, slot) for slot in holds for device_id in slot.devices)
        # Free devices first: they slow no other job.
        devices = [*free, *sorted(open_to.keys() - set(free))][: job.spec.gpus]
        partners = [slot for d in devices if (slot := open_to[d]) is not None]
        if len(devices) < job.spec.gpus or not partners:
            return None
        names = ", ".join(dict.fromkeys(slot.partner.job_id for slot in partners))
        left_mib = min(slot.left_mib for slot in partners)
        reason = because(
            "sharing-first-fit",
            names,
            choice.told,
            choice.accumulation_steps,
            choice.needed_mib,
            left_mib,
        )
        return sharing.CoTenant(tuple(devices), choice.accumulation_steps, reason)

    def why_not(self, plan: Plan, job: Job, slots: sharing.ShareableSlots) -> Reason | None:
        if job.spec.nodes > 1:
            return because("sharing-spread", job.spec.nodes)
        if self.join(plan, job, slots) is not None:
            return None
        view, choices = plan.view, sharing.known_batches(job, slots.batches)
        scheduling_class = view.queue.class_of(job)
        refusal: Reason | None = None
        for slot in slots:
            if not slot.admits(view, job, scheduling_class):
                continue
            again = slots.why_not_again(job, slot.partner)
            if again is not None:
                refusal = again
            elif not choices:
                refusal = sharing.memory_unknown(
                    job, slot.partner, view.now_s, measured=view.running.training
                )
            elif slot.left_mib < min(choice.needed_mib for choice in choices):
                refusal = no_memory(job, slot.partner, choices, slot.left_mib)
        if refusal is not None:
            return refusal
        return self._too_few(plan, job, slots)

    def _too_few(self, plan: Plan, job: Job, slots: sharing.ShareableSlots) -> Reason:
        best = max(
            (
                (len(where.free(plan, job)), sum(len(slot.devices) for slot in where.offers))
                for where in places_of(plan.view, job, list(suitable(plan, job, slots)))
            ),
            key=sum,
            default=None,
        )
        return sharing.nobody(slots) if best is None else because("sharing-too-few", *best, job.spec.gpus)


def suitable(plan: Plan, job: Job, slots: sharing.ShareableSlots) -> Iterator[sharing.ShareableSlot]:
    """Slots that a job may use and whose tenant it may share with, in order."""
    view, scheduling_class = plan.view, plan.view.queue.class_of(job)
    for slot in slots:
        if slot.admits(view, job, scheduling_class) and slots.why_not_again(job, slot.partner) is None:
            yield slot


SJF_FFS: Final = PolicyEntry(
    "shortest first; shares the first devices that have the memory, whatever it costs",
    SjfFfs,
    sharing.ColocationParameters.parse,
    group=COMPARED,
    choose="sharing at any price is to be compared with",
)
