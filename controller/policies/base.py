"""What a policy is, the small parts that all of them share, and what people read of one of ours.

Rule: an entry stands in the module of its policy, behind it; `registry.py` has their names, in order.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, Protocol

from cotenant.controller.domain import ON_DEVICES, ClassReport, Decision, Job, Reason, because, room_left
from cotenant.controller.domain import events as ev
from cotenant.controller.planning import Plan, SchedulingClass, View, scheduling_class_of

Parameters = dict[str, str | int | float | bool]


class Policy(Protocol):
    """Decides; never acts. The engine asks after every event and checks every answer.

    `decide` changes nothing, in the policy or anywhere; what a policy remembers changes in `observe` alone,
    which recovery calls as well, with the recorded decision. So nothing of the policy is journalled per
    event: its state is a fold over the journal, and an explicit value for snapshots (`save`, `load`).
    """

    name: str

    def queue_key(self, job: Job) -> tuple[float, ...]:
        """The sort key of a waiting job; must not change while it waits (the ledger keeps the queue
        sorted)."""

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        """What to do now that `event` has happened. Changes nothing."""

    def observe(self, view: View, event: ev.AnyEvent, decision: Decision) -> None:
        """Learn from an event and the decision on it, now carried out; `view` is as it is afterwards."""

    def explain(self, view: View, job: Job) -> Reason:
        """Why a queued job does not run at this moment."""

    def save(self) -> bytes: ...

    def load(self, state: bytes) -> None: ...


def shares(policy: Policy) -> bool:
    """Whether it may put a job beside another that runs (it says so by an attribute of this name): such jobs
    get a limit to their memory from the start."""
    return bool(getattr(policy, "shares", False))


def learns(policy: Policy) -> bool:
    """Whether it keeps anything between decisions: only then is there anything to `observe`."""
    return getattr(type(policy), "observe", None) is not Stateless.observe


def preempts(policy: Policy) -> bool:
    """Whether its order preempts jobs for others (it says so by an attribute of this name): then that may
    be done for a promised one too."""
    return bool(getattr(policy, "preempts", False))


def takes_turns(policy: Policy) -> bool:
    """Whether it orders jobs by size, so that late ones need to go first (it says so by an attribute of this
    name)."""
    return bool(getattr(policy, "takes_turns", False))


def starts_nothing(policy: Policy) -> bool:
    """Whether nothing may start under it (it says so by an attribute of this name)."""
    return bool(getattr(policy, "starts_nothing", False))


def holds_back(policy: Policy, view: View, job: Job) -> bool:
    """Whether a rule of its own, such as a quota, keeps a waiting job from devices on which it fits (it says
    so by a method of this name): then no device is kept for the job's priority."""
    method = getattr(policy, "holds_back", None)
    return method is not None and bool(method(view, job))


EARLY_S: Final = 3600.0
"""A run that is preempted before counts as an early one under policies that promise no time of their own."""


def promised_s(policy: Policy) -> float:
    """How long a run of a spot job should not be preempted (it says so by an attribute of this name)."""
    return float(getattr(policy, "promised_s", EARLY_S))


def class_report(policy: Policy, view: View) -> ClassReport | None:
    """The policy's report on its classes; None: it has no classes, or no quota."""
    report = getattr(policy, "report", None)
    found: ClassReport | None = None if report is None else report(view)
    return found


def state_in_words(policy: Policy, view: View) -> dict[str, str]:
    """What the policy has learned, or its state, for people (from its method of this name); empty: it keeps
    nothing that people would ask for."""
    method = getattr(policy, "state_in_words", None)
    found: dict[str, str] = {} if method is None else method(view)
    return found


def waiting(policy: Policy, view: View, event: ev.AnyEvent) -> Iterable[Job]:
    """Waiting jobs in the policy's order; a policy whose order is not that of its queue keys has a method of
    this name."""
    method = getattr(policy, "waiting", None)
    found: Iterable[Job] = view.queued() if method is None else method(view, event)
    return found


def take_over(policy: Policy, before: Policy) -> None:
    """A new policy may go on with what the one before it has observed, if it has a method of this name."""
    method = getattr(policy, "take_over", None)
    if method is not None:
        method(getattr(before, "inner", before))  # The policy itself, if somebody only places for it.


class Stateless:
    """For policies that keep nothing between decisions."""

    def observe(self, view: View, event: ev.AnyEvent, decision: Decision) -> None:
        pass

    def save(self) -> bytes:
        return b""

    def load(self, state: bytes) -> None:
        assert not state, "this policy keeps no state"


class Candidates:
    """Queued jobs in order. The next one of a scheduling class comes only after `again`: where the first
    found no place, the others find none."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._heads = [*view.heads()][::-1]
        self._more: list[tuple[tuple[Any, ...], int, Job]] = []

    def next(self) -> Job | None:
        heads, more = self._heads, self._more
        if heads and not (more and more[0][0] < self._view.order_key(heads[-1])):
            head, self._index = heads[-1], 0
            del heads[-1]
            return head
        if not more:
            return None
        _, self._index, job = heapq.heappop(more)
        return job

    def again(self, job: Job) -> None:
        """The job that `next` has just given was placed: go on with its scheduling class."""
        queue, index = self._view.queue(self._view.scheduling_class(job)), self._index + 1
        if index < len(queue):
            following = queue[index]
            heapq.heappush(self._more, (self._view.order_key(following), index, following))


QUIET = frozenset((ev.ProgressSeen, ev.AttemptStarted))
"""Events after which nothing is possible that was not possible before."""


def is_quiet(view: View, event: ev.AnyEvent) -> bool:
    """Whether an event makes nothing possible that was not possible before: it only reports progress of a job
    on its devices."""
    if type(event) is not ev.CheckpointDurable:
        return type(event) in QUIET
    job = view.jobs.get(event.job_id)
    return job is None or job.phase in ON_DEVICES


def why_waiting(view: View, job: Job, order: str, first: Job | None = None) -> Reason:
    """The reason of a queued job, from the view alone: structure first, then devices, then the queue.
    `first`: the first possible job, where the queue keys do not say it."""
    structural = why_impossible(view, job)
    if structural is not None:
        return structural
    plan = Plan(view)
    free, needed = plan.free_count(scheduling_class_of(job)), job.spec.gpus
    fits = plan.find_free(job) is not None
    ahead = first or next((head for head in view.heads() if is_possible(view, head)), job)
    if ahead.job_id == job.job_id:
        if fits:
            return because("next-event")
        if free >= needed and (short := why_no_host_room(plan, job)) is not None:
            return short
        return because("fragmented" if free >= needed else "first-no-devices", *_free(order, free, needed))
    if ahead.aged and not job.aged:
        waited_s = ahead.queued_s + view.now_s - ahead.phase_since_s
        return because("behind-aged", ahead.job_id, waited_s)
    if free < needed:
        return because("behind-no-devices", ahead.job_id, order, free, needed)
    if not fits and (short := why_no_host_room(plan, job)) is not None:
        return short
    return because("behind", ahead.job_id, order) if fits else because("fragmented", free, needed)


def is_possible(view: View, job: Job) -> bool:
    """Whether the hosts that take new work could hold the job, were they empty: only then is it worth keeping
    others back for it."""
    return view.largest_now(view.scheduling_class(job)) >= job.spec.gpus_min


def is_aged_waiting(view: View) -> bool:
    """Whether an aged job waits, for which all others must wait."""
    return first_aged(view) is not None


def first_aged(view: View) -> Job | None:
    """The job that all others must wait for, because it has aged."""
    for head in view.heads():  # Aged ones come first.
        if not head.aged:
            return None
        if is_possible(view, head):
            return head
    return None


def _free(order: str, free: int, needed: int) -> tuple[str | int, ...]:
    return (free, needed) if free >= needed else (order, free, needed)


def why_impossible(view: View, job: Job) -> Reason | None:
    """What keeps a job from running whatever the queue: hosts, types, memory, its checkpoint's place."""
    scheduling_class = scheduling_class_of(job)
    if not view.hosts:
        return because("no-hosts")
    types = sorted({d.type for d in view.devices.values()})
    if scheduling_class.gpu_type and scheduling_class.gpu_type not in types:
        return because("no-such-type", scheduling_class.gpu_type, ", ".join(types))
    known = {feature for host in view.hosts.values() for feature in host.report.features}
    missing = next((f for f in scheduling_class.features if f not in known), None)
    if missing is not None:
        return because("no-such-feature", missing)
    largest_mib = max((d.usable_mib for d in view.devices.values()), default=0)
    if scheduling_class.memory_mib > largest_mib:
        return because("needs-memory", scheduling_class.memory_mib, largest_mib)
    if scheduling_class.domain:
        holders = [h for h in view.hosts.values() if h.checkpoint_domain == scheduling_class.domain]
        if not any(h.state == "ok" for h in holders):
            names = ", ".join(h.host_id for h in holders) or scheduling_class.domain
            return because("pinned", names, ", ".join(sorted({h.state for h in holders})) or "gone")
    too_large = why_too_large(view, scheduling_class)
    if too_large is not None:
        return too_large
    largest = view.largest_placement(scheduling_class)
    if largest < scheduling_class.gpus:
        on = f" on {scheduling_class.nodes} nodes" if scheduling_class.nodes else ""
        return because("never-fits", scheduling_class.gpus, on, largest)
    if not any(h.state == "ok" for h in view.hosts.values()):
        states = ", ".join(f"{h.host_id} is {h.state}" for h in view.hosts.values())
        return because("no-usable-host", states)
    return None


def why_too_large(view: View, scheduling_class: SchedulingClass) -> Reason | None:
    """Why no host known now has the cores and the main memory, were it empty; None if one has."""
    cpus, memory_mib = scheduling_class.cpus, scheduling_class.host_memory_mib
    if not scheduling_class.asks_hosts:
        return None
    empty = [room_left(host.report, ()) for host in view.hosts.values()]
    most_cpus = max(room.cpus for room in empty)
    if cpus > most_cpus:
        return because("needs-cpus", cpus, most_cpus)
    known = [room.memory_mib for room in empty if room.memory_mib is not None]
    if len(known) == len(empty) and memory_mib > max(known):
        return because("needs-host-memory", memory_mib, max(known))
    if not any(room.holds(cpus, memory_mib) for room in empty):
        return because("needs-one-host", cpus, memory_mib)
    return None


def why_no_host_room(plan: Plan, job: Job) -> Reason | None:
    """Why a job waits though enough devices are free: names the cores and main memory left on a host that has
    too few, the one with most free devices; None if cores and memory are not what it lacks."""
    scheduling_class = plan.view.scheduling_class(job)
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


class PolicyEntry(NamedTuple):
    """A policy of ours."""

    about: str
    """What it is, in one line."""
    make: Callable[..., Policy]
    """Called with what `parse` gives."""
    parse: Callable[[Parameters], Any] | None = None
    """Makes its parameters from what was given, or raises ValueError. None: it has none."""
    group: str = ""
    """Its heading in `cotenant policy list`."""
    choose: str = ""
    """When to choose it, in a line."""
    needs: tuple[str, str] | None = None
    """A library that it needs, and the extra that installs it."""
    from_file: Callable[[Any, str], Parameters] | None = None
    """Its parameters from a JSON document of its own form and the name of one in it (`config=FILE#NAME`);
    raises ValueError. None: it has no such form."""


class PlacementRule(NamedTuple):
    """Another way to place waiting jobs than best fit."""

    apply: Callable[[Policy], Policy]
    """The policy with this placement."""
    why_not: Callable[[Policy], str]
    """Why a policy cannot be used with it; empty if it can."""


FIRST: Final = "To begin with"
ORDER: Final = "An order alone: nobody is preempted, nothing is shared"
PREEMPT: Final = "With preemption"
SHARE: Final = "With shared devices"
KEPT: Final = "With predictions that hold"
ELASTIC: Final = "For elastic jobs"
CLASSES: Final = "Two classes, hp and spot"
COMPARED: Final = "For comparison: other published systems, and parts of those above left out"
"""Headings of `cotenant policy list`."""
