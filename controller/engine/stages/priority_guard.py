"""Devices are kept for waiting jobs of greater priority, whatever the policy is. Pure.

Rule: a job starts on a device that is kept for one of strictly greater priority only if it ends before that
one can start (EASY's rule: `policies/toolkit/in_order.py`). A waiting job is kept the devices on which it can
start first, by what is known of those who hold them; where nothing tells when it can start, all devices that
it could use. If it fits at this moment, it starts in the other's place, unless a rule of the policy holds it
back, such as a quota. What was to start on kept devices starts on others that are free, or waits.

Jobs of equal priority are the policy's alone: without priorities no decision changes. Aged jobs stand before
every priority, and an end that was promised is kept (`promises.py` comes after this).

The decision that is recorded says who started where, so a recovery asks nothing of this.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from itertools import islice, takewhile
from math import inf
from typing import Final, NamedTuple

import msgspec

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.engine.stages import free_times
from cotenant.controller.engine.stages.free_times import NEAR_S, FreeTimes, KeptDevices
from cotenant.controller.engine.state.current_policy import CurrentPolicy
from cotenant.controller.engine.state.ledger import Ledger
from cotenant.controller.engine.state.phases import RareWish
from cotenant.controller.planning import Plan, suits

WAITED_FOR_MAX: Final = 64
"""Jobs of greater priority for which times are looked for; for more of them devices are kept as if nothing
told when they can start."""
STAND_INS_MAX: Final = 256
"""Waiting jobs that are looked at for one that may pass in another's place."""
IsHeldBack = Callable[[domain.Job], bool]
"""Whether a rule of the policy keeps a job waiting that finds devices."""
AnyStart = domain.Place | domain.Share | domain.Resize


class KeepingForPriority:
    """The stage that keeps devices for jobs of greater priority."""

    serves: RareWish = "priority"
    remembers = False

    def __init__(self, ledger: Ledger, current: CurrentPolicy) -> None:
        self._ledger, self._current = ledger, current

    def revise(self, event: ev.AnyEvent, decision: domain.Decision) -> domain.Decision:
        """The decision, with nobody who overtakes a job of greater priority."""
        if not decision.actions:
            return decision
        return guard_priorities(self._ledger, decision, self._holds_back)

    def _holds_back(self, job: domain.Job) -> bool:
        return self._current.holds_back(self._ledger, job)


def guard_priorities(ledger: Ledger, decision: domain.Decision, holds_back: IsHeldBack) -> domain.Decision:
    """The decision, with nobody who overtakes a job of greater priority."""
    preempts = (each for each in decision.actions if isinstance(each, domain.Preempt))
    staying = {each.job_id for each in preempts if why_not_preempted(ledger, each) is not None}
    starts = [
        each for each in decision.actions if isinstance(each, AnyStart) and _may_start(ledger, each, staying)
    ]
    lowest = min((ledger.jobs[each.job_id].spec.priority for each in starts), default=None)
    if lowest is None or not _any_above(ledger, lowest):
        return decision
    return PriorityGuard(ledger, decision, starts, holds_back).decide()


def why_kept(ledger: Ledger, job: domain.Job, holds_back: IsHeldBack) -> domain.Reason | None:
    """What is kept for a waiting job that goes before others, or because of whom it gets nothing of what is
    free; None: priorities are not the cause."""
    priority, now_s = job.spec.priority, ledger.now_s
    queues = (ledger.queue.jobs_of_class(ledger.queue.class_of(head)) for head in ledger.queue.heads())
    is_greater = any(queue[-1].spec.priority < priority for queue in queues)
    if not is_greater and not _any_above(ledger, priority):
        return None
    keeping = KeptForPriority(ledger, priority - is_greater, holds_back, free_times.when_free(ledger))
    keeping.keep_above(priority - is_greater)
    for kept in keeping.kept:
        if kept.job_id == job.job_id and kept.from_s > now_s:
            free = sum(
                not ledger.holdings.tenants(each) and not ledger.holdings.claimed_by(each)
                for each in kept.devices
            )
            if kept.from_s == inf:
                return domain.because("kept-unforeseen", job.spec.gpus, free)
            return domain.because("kept", job.spec.gpus, free, round(kept.from_s - now_s))
    devices = Plan(ledger).find_free(job)
    ends_s = now_s + _lasts_s(job, now_s, is_alone=True)
    taken = keeping.find_in_the_way(job, devices, ends_s) if devices is not None else None
    if taken is None or keeping.plan_without_kept().find_free(job) is not None:
        return None
    first = ledger.jobs[taken.job_id]
    of_first = first.job_id, first.spec.priority, first.spec.gpus
    if taken.from_s == inf:
        return domain.because("kept-for-unforeseen", *of_first)
    return domain.because("kept-for", *of_first, round(taken.from_s - now_s))


def why_not_preempted(ledger: Ledger, action: domain.Preempt) -> domain.Reason | None:
    """Why the engine refuses to preempt a job; None: it does it."""
    job = ledger.jobs.get(action.job_id)
    if job is None or job.phase not in (domain.RUNNING, domain.LOADING, domain.RESERVED):
        return domain.because(
            "refused-phase", f"to preempt job {action.job_id}", job.phase if job else "gone"
        )
    if job.spec.job_class == "hp":
        return domain.because("refused-class", job.job_id)
    other = ledger.jobs.get(action.for_job) if action.for_job is not None else None
    if other is not None and other.spec.priority < job.spec.priority:
        return domain.because("refused-priority", job.job_id, job.spec.priority, other.job_id)
    if job.phase is not domain.RESERVED and not job.preemptible:
        return domain.because("refused-resumable", job.job_id)
    return None


def _may_start(ledger: Ledger, action: AnyStart, staying: Set[domain.JobId]) -> bool:
    """The engine says what is wrong with all others. `staying`: whom it refuses to preempt."""
    job = ledger.jobs.get(action.job_id)
    if job is None or job.phase is not (
        domain.RUNNING if isinstance(action, domain.Resize) else domain.QUEUED
    ):
        return False
    return isinstance(action, domain.Share) or not any(
        ledger.holdings.claimed_by(device_id) in staying
        or not staying.isdisjoint(ledger.holdings.tenants(device_id))
        for device_id in action.devices
    )


def _any_above(ledger: Ledger, priority: int) -> bool:
    """Whether a waiting job has a greater priority. An aged one may stand behind others of its class."""
    aged = islice(takewhile(lambda job: job.aged, ledger.queue.jobs_in_order()), WAITED_FOR_MAX)
    return any(job.spec.priority > priority for job in (*ledger.queue.heads(), *aged))


class _Gangs(NamedTuple):
    """Where gangs of a job can stand: `size` devices `times` times, each time of another group."""

    times: int
    size: int
    groups: Sequence[Sequence[domain.DeviceId]]
    """Devices of one host, or single ones; those that are free first stand first."""


class KeptForPriority:
    """What is kept for waiting jobs, the greatest priority first."""

    def __init__(
        self,
        ledger: Ledger,
        lowest: int,
        holds_back: IsHeldBack,
        free: FreeTimes,
        starting: Collection[domain.JobId] = (),
    ) -> None:
        """Keeps devices for jobs of a greater priority than the `lowest`, but for those that are `starting`;
        `free`: when devices become free."""
        self.kept: list[KeptDevices] = []
        self._ledger, self._holds_back, self._free = ledger, holds_back, free
        ahead = takewhile(lambda job: job.aged or job.spec.priority > lowest, ledger.queue.jobs_in_order())
        first = list(islice(ahead, WAITED_FOR_MAX))
        others = ledger.queue.heads() if next(ahead, None) is not None else ()
        found = [(job, True) for job in first] + [(job, False) for job in others]
        greater = [
            each for each in found if each[0].spec.priority > lowest and each[0].job_id not in starting
        ]
        self._waiting = deque(sorted(greater, key=lambda each: -each[0].spec.priority))

    def keep_above(self, priority: int) -> None:
        """Keeps devices for the jobs of greater priority than this."""
        while self._waiting and self._waiting[0][0].spec.priority > priority:
            job, is_foreseen = self._waiting.popleft()
            if not self._holds_back(job):
                self._keep(job, is_foreseen=is_foreseen and job.spec.gpu_fraction == 1.0)

    def take(self, devices: Iterable[domain.DeviceId], until_s: float) -> None:
        """Somebody who goes before the next ones has these devices."""
        for device_id in self._free.keys() & set(devices):
            self._free[device_id] = max(self._free[device_id], until_s)

    def find_in_the_way(
        self, job: domain.Job, devices: Collection[domain.DeviceId], ends_s: float
    ) -> KeptDevices | None:
        """What the job would take from one of greater priority, if it had these devices to its end."""
        for kept in self.kept if not job.aged else ():
            other = self._ledger.jobs[kept.job_id]
            is_in_time = ends_s <= kept.from_s + NEAR_S < inf
            if other.spec.priority <= job.spec.priority or is_in_time:
                continue
            if not self._asked_for(other, job, kept.devices).isdisjoint(devices):
                return kept
        return None

    def _asked_for(
        self, one: domain.Job, other: domain.Job, devices: Iterable[domain.DeviceId]
    ) -> set[domain.DeviceId]:
        """Returns these devices; where both jobs ask for cores or main memory, all devices of their hosts."""
        if not (domain.asks_hosts(one.spec) and domain.asks_hosts(other.spec)):
            return set(devices)
        hosts = {self._ledger.devices[device_id].host_id for device_id in devices}
        return {each for each, device in self._ledger.devices.items() if device.host_id in hosts}

    def plan_without_kept(self, taken: Iterable[domain.DeviceId] = ()) -> Plan:
        """The cluster as if nothing were free that is kept, or among these."""
        gone = {device_id for kept in self.kept for device_id in kept.devices}.union(taken)
        return self._plan(lambda device_id: device_id in gone)

    def _plan(self, is_taken: Callable[[domain.DeviceId], bool]) -> Plan:
        plan = Plan(self._ledger)
        for (host_id, type), devices in list(self._ledger.free.devices.items()):
            taken = list(filter(is_taken, devices))
            if taken:
                plan.suppose_taken(host_id, type, taken)
        return plan

    def _keep(self, job: domain.Job, *, is_foreseen: bool) -> None:
        now_s, gangs = self._ledger.now_s, list(self._gangs(job))
        from_s, devices = self._first_start(gangs) if is_foreseen else (inf, ())
        if from_s <= now_s + NEAR_S:
            plan = self._plan(lambda device_id: self._free[device_id] > now_s + NEAR_S)
            from_s, devices = now_s, plan.find_free(job) or ()
        if not devices:  # Where it is known when devices are free, it lacks cores or main memory.
            from_s, devices = inf, tuple(each for gang in gangs for group in gang.groups for each in group)
        until_s = from_s + _lasts_s(job, now_s, is_alone=True)
        self.kept.append(KeptDevices(job_id=job.job_id, devices=devices, from_s=from_s, until_s=until_s))
        self.take(devices, until_s)

    def _gangs(self, job: domain.Job) -> Iterator[_Gangs]:
        """What the job could use, by device type."""
        ledger, wanted = self._ledger, self._ledger.queue.class_of(job)
        by_type: dict[str, dict[domain.HostId, list[domain.DeviceId]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for device_id in sorted(self._free, key=lambda each: (self._free[each], each)):
            device = ledger.devices[device_id]
            is_wanted = (
                domain.is_type_for(wanted.gpu_type, device.type) and device.usable_mib >= wanted.memory_mib
            )
            if is_wanted and suits(ledger.hosts[device.host_id], wanted):
                by_type[device.type][device.host_id].append(device_id)
        for type in sorted(by_type):
            groups = list(by_type[type].values())
            if wanted.nodes > 1:
                times, size = wanted.nodes, wanted.gpus // wanted.nodes
            elif wanted.nodes == 1 or wanted.gpus <= ledger.sizes.on_host(wanted, type):
                times, size = 1, wanted.gpus
            else:
                times, size, groups = wanted.gpus, 1, [[each] for group in groups for each in group]
            enough = [group for group in groups if len(group) >= size]
            if len(enough) >= times:
                yield _Gangs(times, size, enough)

    def _first_start(self, gangs: Iterable[_Gangs]) -> tuple[float, tuple[domain.DeviceId, ...]]:
        """When and where a gang can start; (inf, ()): nothing tells."""
        best: tuple[float, tuple[domain.DeviceId, ...]] = (inf, ())
        for times, size, groups in gangs:
            first = sorted(groups, key=lambda group: (self._free[group[size - 1]], group[0]))[:times]
            from_s = self._free[first[-1][size - 1]]
            if from_s < best[0]:
                best = from_s, tuple(device_id for group in first for device_id in group[:size])
        return best


class PriorityGuard:
    """The guard that keeps devices for waiting jobs of greater priority, for one decision."""

    def __init__(
        self, ledger: Ledger, decision: domain.Decision, starts: Sequence[AnyStart], holds_back: IsHeldBack
    ) -> None:
        self._ledger, self._decision = ledger, decision
        jobs = ledger.jobs
        self._starts = sorted(
            starts, key=lambda each: (not jobs[each.job_id].aged, -jobs[each.job_id].spec.priority)
        )
        self._holds_back = holds_back
        self._starting = starting = {each.job_id for each in starts}
        leaving = {
            each.job_id
            for each in decision.actions
            if isinstance(each, domain.Preempt)
            and (each.for_job is None or each.for_job in starting)
            and why_not_preempted(ledger, each) is None
        }
        lowest = jobs[self._starts[-1].job_id].spec.priority
        free = free_times.when_free(ledger, lambda job: job.job_id in leaving)
        self._kept = KeptForPriority(ledger, lowest, holds_back, free, frozenset(starting))
        self._instead: dict[domain.JobId, domain.Place | None] = {}
        """What those that were in the way do in place of what was asked for them."""
        self._first: dict[domain.JobId, domain.Place] = {}
        """Those of greater priority that start in their place."""
        self._given: set[domain.DeviceId] = {
            device_id for each in starts for device_id in self._new_devices(each)
        }
        self._not_given: set[domain.DeviceId] = set()

    def decide(self) -> domain.Decision:
        for start in self._starts:
            job = self._ledger.jobs[start.job_id]
            if not job.aged:
                self._kept.keep_above(job.spec.priority)
            devices, ends_s = self._new_devices(start), self._ends_s(job, start)
            kept = self._kept.find_in_the_way(job, devices, ends_s)
            if kept is None:
                self._kept.take(devices, ends_s)
            else:
                self._give_way(job, start, kept)
        if not self._instead:
            return self._decision
        actions = [*self._first.values(), *self._others()]
        if not any(isinstance(each, AnyStart | domain.Preempt) for each in actions):
            # Asked again at once, the policy would want the same again, and so on for ever.
            actions = [
                each
                for each in actions
                if not (isinstance(each, domain.Wake) and each.at_s <= self._ledger.now_s)
            ]
        return domain.Decision(actions=tuple(actions))

    def _give_way(self, job: domain.Job, start: AnyStart, kept: KeptDevices) -> None:
        """The one of greater priority starts if it can; the job starts elsewhere if it can, or another one
        that ends in time starts here."""
        devices = self._new_devices(start)
        self._given.difference_update(devices)
        self._not_given.update(devices)
        if kept.from_s <= self._ledger.now_s and kept.job_id not in self._first:
            reason = domain.because(
                "priority-first", self._ledger.jobs[kept.job_id].spec.priority, job.job_id
            )
            self._first[kept.job_id] = domain.Place(job_id=kept.job_id, devices=kept.devices, reason=reason)
            self._given.update(kept.devices)
        self._instead[job.job_id] = instead = None
        if isinstance(start, domain.Place) and len(start.devices) == job.spec.gpus_min:
            elsewhere = self._kept.plan_without_kept(self._given).find_free(job)
            if elsewhere is not None:
                instead = msgspec.structs.replace(start, devices=elsewhere)
            elif kept.from_s < inf:
                instead = self._stand_in(job, start, kept)
        if instead is not None:
            self._instead[job.job_id] = instead
            self._given.update(instead.devices)
            self._starting.add(instead.job_id)
            self._kept.take(instead.devices, self._ends_s(self._ledger.jobs[instead.job_id], instead))

    def _stand_in(self, job: domain.Job, start: domain.Place, kept: KeptDevices) -> domain.Place | None:
        """The start of another job of the same class that ends before the greater one can start."""
        ledger, devices = self._ledger, set(start.devices)
        if not self._given.isdisjoint(devices) or any(map(ledger.holdings.tenants, devices)):
            return None
        for other in islice(ledger.queue.jobs_of_class(ledger.queue.class_of(job)), STAND_INS_MAX):
            if other.job_id in self._starting or other.spec.priority > job.spec.priority:
                continue
            reason = domain.because("backfilled-before", "priority", kept.job_id, kept.from_s - ledger.now_s)
            place = domain.Place(job_id=other.job_id, devices=start.devices, reason=reason)
            ends_s = self._ends_s(other, place)
            if self._kept.find_in_the_way(other, devices, ends_s) is None and not self._holds_back(other):
                return place
        return None

    def _others(self) -> Iterator[domain.AnyAction]:
        """What was decided, without what made room for those that were in the way."""
        for action in self._decision.actions:
            if isinstance(action, AnyStart) and action.job_id in self._instead:
                instead = self._instead[action.job_id]
                if instead is not None:
                    yield instead
            elif not self._makes_room_for_nobody(action):
                yield action

    def _makes_room_for_nobody(self, action: domain.AnyAction) -> bool:
        if not isinstance(action, domain.Preempt | domain.Resize) or action.job_id not in self._ledger.jobs:
            return False
        if isinstance(action, domain.Preempt) and action.for_job is not None:
            return action.for_job in self._instead
        placement = self._ledger.jobs[action.job_id].placement
        left = set(placement.devices if placement is not None else ())
        if isinstance(action, domain.Resize):
            left.difference_update(action.devices)
        return not left.isdisjoint(self._not_given) and left.isdisjoint(self._given)

    def _new_devices(self, start: AnyStart) -> set[domain.DeviceId]:
        """The devices that a start takes from others, or holds up: a co-tenant goes slower wherever it is."""
        ledger, devices = self._ledger, set(start.devices)
        if isinstance(start, domain.Resize):
            placement = ledger.jobs[start.job_id].placement
            return devices.difference(placement.devices if placement is not None else ())
        if isinstance(start, domain.Share):
            beside = [
                ledger.jobs[each]
                for device_id in start.devices
                for each in ledger.holdings.tenants(device_id)
            ]
            devices.update(d for each in beside if each.placement is not None for d in each.placement.devices)
        return devices

    def _ends_s(self, job: domain.Job, start: AnyStart) -> float:
        """When the devices of this start are free again by what is known: a co-tenant holds those beside it
        up as well, whose ends then only their time limits tell."""
        ledger, now_s = self._ledger, self._ledger.now_s
        here = [
            ledger.jobs[each] for device_id in start.devices for each in ledger.holdings.tenants(device_id)
        ]
        if isinstance(start, domain.Place):
            begins_s = max((free_times.moved_s(ledger, each) for each in here), default=now_s)
            return begins_s + _lasts_s(job, now_s, is_alone=True)
        held_up = [job, *(each for each in here if each.phase not in domain.LEAVING)]
        return max(now_s + _lasts_s(each, now_s, is_alone=False) for each in held_up)


def _lasts_s(job: domain.Job, now_s: float, *, is_alone: bool) -> float:
    """How long a waiting job is on devices by what is known. Beside another its pace is not known, its time
    limit is."""
    needs_s, limit_left_s = free_times.need_s(job, now_s), job.limit_left_s(now_s)
    limited_s = inf if limit_left_s is None else limit_left_s + job.estimate.pause_s
    return limited_s if needs_s is None or not is_alone else min(needs_s, limited_s)
