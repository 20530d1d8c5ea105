"""Why a queued job does not run, from the view alone: structure first, then devices, then the queue."""

from __future__ import annotations

from typing import Final

from cotenant.controller.domain import CONTAINERS, Job, Reason, because, room_left
from cotenant.controller.planning.plan import Plan
from cotenant.controller.planning.view import SchedulingClass, View, scheduling_class_of

LACK_DEVICES: Final = frozenset(("first-no-devices", "behind-no-devices", "fragmented"))
"""Reasons of a job for which too few devices are free: what it may do about others' devices comes after."""


def why_waiting(view: View, job: Job, order: str, first: Job | None = None) -> Reason:
    """The reason of a queued job, from the view alone: structure first, then devices, then the queue.
    `first`: the first possible job, where the queue keys do not say it."""
    structural = why_impossible(view, job)
    if structural is not None:
        return structural
    plan = Plan(view)
    needed = job.spec.gpus
    free = plan.free_count(view.queue.class_of(job) if view.kept else scheduling_class_of(job))
    fits = plan.find_free(job) is not None
    ahead = first or next((head for head in view.queue.heads() if is_possible(view, head)), job)
    if ahead.job_id == job.job_id:
        if fits:
            return because("next-event")
        if free >= needed and (short := why_no_host_room(plan, job)) is not None:
            return short
        return because("fragmented" if free >= needed else "first-no-devices", *_free(order, free, needed))
    if ahead.aged and not job.aged:
        waited_s = ahead.spent.queued_s + view.now_s - ahead.phase_since_s
        return because("behind-aged", ahead.job_id, waited_s)
    if free < needed:
        return because("behind-no-devices", ahead.job_id, order, free, needed)
    if not fits and (short := why_no_host_room(plan, job)) is not None:
        return short
    return because("behind", ahead.job_id, order) if fits else because("fragmented", free, needed)


def is_possible(view: View, job: Job) -> bool:
    """Whether the hosts that take new work could hold the job, were they empty: only then is it worth keeping
    others back for it."""
    return view.sizes.now(view.queue.class_of(job)) >= job.spec.gpus_min


def is_aged_waiting(view: View) -> bool:
    """Whether an aged job waits, for which all others must wait."""
    return first_aged(view) is not None


def first_aged(view: View) -> Job | None:
    """The job that all others must wait for, because it has aged."""
    for head in view.queue.heads():  # Aged ones come first.
        if not head.aged:
            return None
        if is_possible(view, head):
            return head
    return None


def _free(order: str, free: int, needed: int) -> tuple[str | int, ...]:
    return (free, needed) if free >= needed else (order, free, needed)


def why_behind_aged(view: View, job: Job) -> Reason | None:
    """Why a job waits where nobody passes one that has aged; None if none has, or itself is the first."""
    aged = first_aged(view)
    if aged is None or aged.number == job.number:
        return None
    return because("behind-aged", aged.job_id, aged.spent.queued_s + view.now_s - aged.phase_since_s)


def why_impossible(view: View, job: Job) -> Reason | None:
    """What keeps a job from running whatever the queue: hosts, types, memory, its checkpoint's place."""
    scheduling_class = scheduling_class_of(job)
    if not view.hosts:
        return because("no-hosts")
    devices, hosts = view.devices.values(), view.hosts.values()
    gpu_type, memory_mib = scheduling_class.gpu_type, scheduling_class.memory_mib
    if gpu_type and all(d.type != gpu_type for d in devices):
        return because("no-such-type", gpu_type, ", ".join(sorted({d.type for d in devices})))
    if scheduling_class.features:
        known = {feature for host in hosts for feature in host.report.features}
        missing = next((f for f in scheduling_class.features if f not in known), None)
        container = job.spec.launch.container
        if container is not None and missing == container.feature:
            runtimes = "podman, docker or apptainer" if missing == CONTAINERS else missing
            notes = [f"; on {h.host_id} {h.report.container_note}" for h in hosts if h.report.container_note]
            runtimes += "".join(notes[:1])
            return because("no-containers", container.image, runtimes)
        if missing is not None:
            return because("no-such-feature", missing)
    if all(d.usable_mib < memory_mib for d in devices):
        largest_mib = max((d.usable_mib for d in devices), default=0)
        if memory_mib > largest_mib:
            return because("needs-memory", memory_mib, largest_mib)
    if scheduling_class.domain:
        holders = [h for h in hosts if h.checkpoint_domain == scheduling_class.domain]
        if not any(h.state == "ok" for h in holders):
            names = ", ".join(h.host_id for h in holders) or scheduling_class.domain
            return because("pinned", names, ", ".join(sorted({h.state for h in holders})) or "gone")
    too_large = why_too_large(view, scheduling_class)
    if too_large is not None:
        return too_large
    largest = view.sizes.ever(scheduling_class)
    if largest < scheduling_class.gpus:
        nodes = scheduling_class.nodes
        on = f" on {nodes} nodes" if nodes > 1 else " on one host" if nodes else ""
        return because("never-fits", scheduling_class.gpus, on, largest)
    if not any(h.state == "ok" for h in hosts):
        states = ", ".join(f"{h.host_id} is {h.state}" for h in hosts)
        return because("no-usable-host", states)
    return None


def why_too_large(view: View, scheduling_class: SchedulingClass) -> Reason | None:
    """Why no host known now has the cores and the main memory, were it empty; None if one has."""
    cpus, memory_mib = scheduling_class.cpus, scheduling_class.host_memory_mib
    if not scheduling_class.asks_hosts:
        return None
    if any(room_left(host.report, ()).holds(cpus, memory_mib) for host in view.hosts.values()):
        return None
    empty = [room_left(host.report, ()) for host in view.hosts.values()]
    most_cpus = max(room.cpus for room in empty)
    if cpus > most_cpus:
        return because("needs-cpus", cpus, most_cpus)
    known = [room.memory_mib for room in empty if room.memory_mib is not None]
    if len(known) == len(empty) and memory_mib > max(known):
        return because("needs-host-memory", memory_mib, max(known))
    return because("needs-one-host", cpus, memory_mib)


def why_no_host_room(plan: Plan, job: Job) -> Reason | None:
    """Why a job waits though enough devices are free: names the cores and main memory left on a host that has
    too few, the one with most free devices; None if cores and memory are not what it lacks."""
    scheduling_class = plan.view.queue.class_of(job)
    if not scheduling_class.asks_hosts:
        return None
    short = [
        (-plan.free_on(host_id), host_id)
        for host_id, host in plan.view.hosts.items()
        if host.takes_work and plan.free_on(host_id) and not plan.has_room(host_id, scheduling_class)
    ]
    if not short:
        return None
    host_id = min(short)[1]
    room = plan.room_on(host_id)
    memory = "" if room.memory_mib is None else f" and {max(0, room.memory_mib)} MiB of main memory"
    asked = (scheduling_class.cpus, scheduling_class.host_memory_mib)
    return because("no-host-room", *asked, host_id, max(0, room.cpus), memory, plan.free_on(host_id))
