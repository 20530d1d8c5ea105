"""What a policy is, and the small parts that all of them share."""

from __future__ import annotations

from typing import Protocol

from cotenant.controller.domain.actions import Decision
from cotenant.controller.domain.events import AnyEvent
from cotenant.controller.domain.job import Job
from cotenant.controller.domain.plan import Plan
from cotenant.controller.domain.reasons import Reason, because
from cotenant.controller.domain.view import View, shape_of

Parameters = dict[str, str | int | float | bool]


class Policy(Protocol):
    """Decides; never acts. The engine asks after every event and checks every answer.

    A policy's own state is an explicit value: `save` gives it as bytes, `load` takes it back.
    """

    name: str

    def queue_key(self, job: Job) -> tuple[float, ...]:
        """Where a waiting job stands; must not change while it waits (the ledger keeps it sorted)."""

    def decide(self, view: View, event: AnyEvent) -> Decision:
        """What to do now that `event` has happened."""

    def explain(self, view: View, job: Job) -> Reason:
        """Why a queued job does not run at this moment."""

    def save(self) -> bytes: ...

    def load(self, state: bytes) -> None: ...


class Stateless:
    """For policies that keep nothing between decisions."""

    def save(self) -> bytes:
        return b""

    def load(self, state: bytes) -> None:
        assert not state, "this policy keeps no state"


def next_candidates(view: View, plan: Plan, blocked: set[object]) -> Job | None:
    """The first queued job in order whose shape has not failed in this round, or None."""
    best: Job | None = None
    for shape in view.shapes():
        if shape in blocked:
            continue
        for job in view.queue(shape):
            if not plan.is_placed(job.job_id):
                if best is None or view.order_key(job) < view.order_key(best):
                    best = job
                break
    return best


def why_waiting(view: View, job: Job, order: str) -> Reason:
    """The reason of a queued job, from the view alone: structure first, then the queue, then devices."""
    structural = why_impossible(view, job)
    if structural is not None:
        return structural
    plan = Plan(view)
    shape = shape_of(job)
    first = next((j for j in view.queued()), None)
    free = plan.free_count(shape)
    if first is not None and first.job_id != job.job_id:
        return because("behind", first.job_id, order)
    return because("first-no-devices", order, free, job.spec.gpus)


def why_impossible(view: View, job: Job) -> Reason | None:
    """What keeps a job from running whatever the queue: hosts, types, memory, its checkpoint's place."""
    shape = shape_of(job)
    if not view.hosts:
        return because("no-hosts")
    types = sorted({d.type for d in view.devices.values()})
    if shape.gpu_type and shape.gpu_type not in types:
        return because("no-such-type", shape.gpu_type, ", ".join(types))
    known = {feature for host in view.hosts.values() for feature in host.report.features}
    missing = next((f for f in shape.features if f not in known), None)
    if missing is not None:
        return because("no-such-feature", missing)
    largest_mib = max((d.usable_mib for d in view.devices.values()), default=0)
    if shape.memory_mib > largest_mib:
        return because("needs-memory", shape.memory_mib, largest_mib)
    if shape.domain:
        holders = [h for h in view.hosts.values() if h.checkpoint_domain == shape.domain]
        if not any(h.state == "ok" for h in holders):
            names = ", ".join(h.host_id for h in holders) or shape.domain
            return because("pinned", names, ", ".join(sorted({h.state for h in holders})) or "gone")
    largest = view.largest_placement(shape)
    if largest < shape.gpus:
        on = f" on {shape.nodes} nodes" if shape.nodes else ""
        return because("never-fits", shape.gpus, on, largest)
    if not any(h.state == "ok" for h in view.hosts.values()):
        states = ", ".join(f"{h.host_id} is {h.state}" for h in view.hosts.values())
        return because("no-usable-host", states)
    return None
