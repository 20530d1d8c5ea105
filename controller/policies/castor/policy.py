"""Algorithm 1: SJF-BSBF. Shortest job first; free devices first; else the partners that pay most.

Source: Castor section 5.3 as settled. Never preempts; a whole gang or nothing; each device holds at
most its `max_tenants` jobs. Departs from the paper in that at most `lookahead` queued jobs are tried for
sharing per event: the paper's scan of the whole queue costs more the longer the queue is.
"""

from __future__ import annotations

import msgspec

from cotenant.controller.domain.actions import NOTHING, Decision
from cotenant.controller.domain.events import AnyEvent, ProgressSeen
from cotenant.controller.domain.ids import DeviceId
from cotenant.controller.domain.job import Job, Phase
from cotenant.controller.domain.plan import Plan
from cotenant.controller.domain.reasons import Reason, because
from cotenant.controller.domain.view import View, shape_of, suits
from cotenant.controller.policies.base import Parameters, Stateless, why_waiting
from cotenant.controller.policies.castor.sharing import SharingChoice, best_sharing
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


class Castor(Stateless):
    """SJF-BSBF."""

    name = "castor"

    def __init__(self, parameters: CastorParameters | None = None) -> None:
        self.parameters = parameters if parameters is not None else CastorParameters()

    def queue_key(self, job: Job) -> tuple[float, ...]:
        return by_remaining(job)

    def decide(self, view: View, event: AnyEvent) -> Decision:
        if isinstance(event, ProgressSeen) or not view.queued_count():
            return NOTHING
        plan = Plan(view)
        place_in_order(plan, self.name, strict=False)
        self._share(plan)
        return Decision(actions=tuple(plan.actions))

    def _share(self, plan: Plan) -> None:
        room = has_room(plan)
        if not room:
            return
        tried = 0
        for job in plan.view.queued():
            if tried >= self.parameters.lookahead or not room:
                return
            if plan.is_placed(job.job_id):
                continue
            tried += 1
            choice = self.choose(plan, job)
            if isinstance(choice, Reason):
                continue
            devices, best = choice
            plan.share(job, devices, share_reason(job, best), best.accumulation_steps)
            room = has_room(plan)

    def choose(self, plan: Plan, job: Job) -> tuple[tuple[DeviceId, ...], SharingChoice] | Reason:
        """Algorithm 1 lines 3 to 19 for one job that free devices alone cannot hold."""
        if job.spec.share == "never":
            return because("sharing-off")
        paying, refusal = candidates(plan, job)
        free = free_on_one_host(plan, job)
        found = self._fill(plan, job, paying, free)
        if found is not None:
            return found
        if refusal is not None and not paying:
            return refusal
        shareable = sum(len(devices) for devices, _ in paying)
        return because("sharing-too-few", len(free), shareable, job.spec.gpus)

    def _fill(
        self,
        plan: Plan,
        job: Job,
        paying: list[tuple[tuple[DeviceId, ...], SharingChoice]],
        free: list[DeviceId],
    ) -> tuple[tuple[DeviceId, ...], SharingChoice] | None:
        """Take devices until the gang is whole; the slowest partner sets its pace and its sub-batch."""
        chosen: list[DeviceId] = [] if self.parameters.shared_first else list(free)[: job.spec.gpus]
        worst: SharingChoice | None = None
        for devices, choice in paying:
            if len(chosen) >= job.spec.gpus:
                break
            fresh = [d for d in devices if d not in chosen and same_host(plan.view, [*chosen, d])]
            if not fresh:
                continue
            chosen.extend(fresh[: job.spec.gpus - len(chosen)])
            slower = worst is None or choice.accumulation_steps > worst.accumulation_steps
            worst = choice if slower else worst
        for device_id in free:
            if (
                len(chosen) < job.spec.gpus
                and device_id not in chosen
                and same_host(plan.view, [*chosen, device_id])
            ):
                chosen.append(device_id)
        if worst is None or len(chosen) < job.spec.gpus:
            return None
        return tuple(chosen), worst

    def explain(self, view: View, job: Job) -> Reason:
        reason = why_waiting(view, job, self.name)
        if reason.code not in ("first-no-devices", "behind"):
            return reason
        choice = self.choose(Plan(view), job)
        return choice if isinstance(choice, Reason) and has_room(Plan(view)) else reason


def share_reason(job: Job, best: SharingChoice) -> Reason:
    return because(
        "sharing-pays", best.partner.job_id, best.shared_s, best.sequential_s, best.sub_batch or "whole",
        best.accumulation_steps, best.newcomer_xi, best.partner_xi, best.source,
    )  # fmt: skip


def has_room(plan: Plan) -> bool:
    """Whether any device could take one more tenant beside its present one."""
    view = plan.view
    for partner in view.on_devices():
        if partner.phase not in (Phase.RUNNING, Phase.LOADING) or partner.spec.share == "never":
            continue
        for device_id in partner.placement.devices if partner.placement else ():
            if 0 < len(plan.staying(device_id)) < view.devices[device_id].max_tenants:
                return True
    return False


def candidates(
    plan: Plan, job: Job
) -> tuple[list[tuple[tuple[DeviceId, ...], SharingChoice]], Reason | None]:
    """Partners with which sharing pays, best pair completion time first, each with the devices it
    offers; and the last refusal, for `explain`."""
    view = plan.view
    paying: list[tuple[tuple[DeviceId, ...], SharingChoice]] = []
    refusal: Reason | None = None
    for partner in view.on_devices():
        if partner.phase not in (Phase.RUNNING, Phase.LOADING) or plan.is_leaving(partner.job_id):
            continue
        if partner.spec.share == "never":
            refusal = refusal or because(
                "sharing-unknown", partner.job_id, "it was submitted with --share never"
            )
            continue
        offered = _offered(plan, job, partner)
        if not offered:
            continue
        planned = view.planned_mib(partner)
        if planned is None:
            refusal = because(
                "sharing-unknown", partner.job_id, f"the memory that job {partner.job_id} needs is not known"
            )
            continue
        left_mib = min(view.devices[d].usable_mib for d in offered) - planned
        choice = best_sharing(view, job, partner, left_mib)
        if isinstance(choice, Reason):
            refusal = choice
        elif choice.pays:
            paying.append((offered, choice))
        else:
            refusal = because("sharing-loses", partner.job_id, choice.shared_s, choice.sequential_s)
    paying.sort(key=lambda pair: (pair[1].shared_s, pair[1].partner.number))
    return paying, refusal


def _offered(plan: Plan, job: Job, partner: Job) -> tuple[DeviceId, ...]:
    """The partner's devices that could take this job as second tenant."""
    view, shape = plan.view, shape_of(job)
    assert partner.placement is not None
    return tuple(
        d
        for d in partner.placement.devices
        if plan.staying(d) == [partner.job_id]
        and view.devices[d].max_tenants > 1
        and view.devices[d].healthy
        and shape.gpu_type in ("", view.devices[d].type)
        and view.hosts[view.devices[d].host_id].state == "ok"
        and suits(view.hosts[view.devices[d].host_id], shape)
        and (view.devices[d].sharing != "mps" or partner.spec.launch.uid == job.spec.launch.uid)
    )


def free_on_one_host(plan: Plan, job: Job) -> list[DeviceId]:
    """Free devices to fill a gang up with: those of the suitable host that has most of them."""
    shape = shape_of(job)
    best: list[DeviceId] = []
    for type in (shape.gpu_type,) if shape.gpu_type else plan.view.free.types():
        for count in range(plan.view.free.most(type), 0, -1):
            for host_id in plan.view.free.with_free(type, count):
                devices = [
                    d for d in plan.free_devices(host_id, type)
                    if plan.view.devices[d].usable_mib >= shape.memory_mib
                ]  # fmt: skip
                if suits(plan.view.hosts[host_id], shape) and len(devices) > len(best):
                    best = devices
            if best:
                return best
    return best


def same_host(view: View, devices: list[DeviceId]) -> bool:
    """Gangs that share stay on one host and one type of device."""
    return len({(view.devices[d].host_id, view.devices[d].type) for d in devices}) == 1
