"""Whom to preempt for a newcomer, and who is one: the parts that all preempting policies share.

Rule: a walk over running jobs starts with the one that has most left and stops as soon as it has an answer;
nothing is sorted per decision.

Newcomers are the only waiting jobs that preempt under `srtf`, `srsf` and `lazer`, by one rule with a name.
Source: Lazer (DAC '26): SRTF "can preempt a running job only when a shorter one arrives" (section 2), and
Algorithm 1 runs "on new job arrival" and puts preempted jobs into the queue, where they get what becomes
free. So `first`, the default: a job preempts before it has ever had devices, and not again. `every` lets
each return to the queue (after a preemption, or from a lost host) count as an arrival.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import Literal

import msgspec

from cotenant.controller.domain import RESERVED, DeviceId, HostId, Job, asks_hosts
from cotenant.controller.planning import Plan, SchedulingClass, View
from cotenant.controller.policies.base import PolicyParameters


def longest_first(view: View) -> Iterator[tuple[float, Job]]:
    """RUNNING and LOADING jobs with their remaining time now, most first, ties by arrival; those past their
    expected end have nothing left and come last. Jobs of unknown length are left out. The view must not
    change then.
    """
    now_s = view.now_s
    paced = view.running.paced  # Their ends are not in the order of remaining time.
    others = _loading_and_paced(view, now_s) if paced else _loading(view)
    other = next(others, None)
    for job in reversed(view.running.training):
        remaining_s = job.estimate.remaining_s
        if remaining_s is None or job.number in paced:
            continue
        left_s = remaining_s - (now_s - job.estimate.remaining_at_s)
        if left_s < 0.0:
            left_s = 0.0
        while other is not None and (other[0], -other[1]) > (left_s, -job.number):
            yield other[0], other[2]
            other = next(others, None)
        yield left_s, job
    while other is not None:
        yield other[0], other[2]
        other = next(others, None)


def _loading(view: View) -> Iterator[tuple[float, int, Job]]:
    """Loading jobs in the same order, which is theirs in the view."""
    for job in reversed(view.running.loading):
        if job.estimate.remaining_s is not None:
            yield job.estimate.remaining_s, job.number, job


def _loading_and_paced(view: View, now_s: float) -> Iterator[tuple[float, int, Job]]:
    """Loading and paced jobs, in the same order."""
    found = [
        (-(job.remaining_now_s(now_s) or 0.0), job.number, job)
        for job in (*view.running.loading, *view.running.paced.values())
        if job.estimate.remaining_s is not None
    ]
    found.sort()
    return iter([(-less_s, number, job) for less_s, number, job in found])


def may_give_way(plan: Plan, job: Job, newcomer: Job) -> bool:
    """Whether a job may be preempted for another: it can resume, has never aged, has no higher priority, and
    is not leaving already."""
    return (
        job.preemptible
        and not job.aged
        and job.spec.priority <= newcomer.spec.priority
        and not plan.is_leaving(job.spec.job_id)
    )


def worth_preempting(plan: Plan, newcomer: Job) -> Iterator[Job]:
    """Jobs that may be preempted and have more remaining time than the newcomer, longest first; none of a
    higher priority."""
    mine_s = newcomer.estimate.remaining_s
    if mine_s is None:
        return
    for left_s, job in longest_first(plan.view):
        if left_s <= mine_s:
            return
        if may_give_way(plan, job, newcomer):
            yield job


class FreedDevices(msgspec.Struct, frozen=True):
    """Devices for a waiting job, and who has to leave them; nobody if their tenants leave already."""

    victims: Sequence[Job]
    devices: tuple[DeviceId, ...]


def victims_for(plan: Plan, newcomer: Job, candidates: Iterator[Job]) -> FreedDevices | None:
    """The first of the candidates, in their order, whose leaving makes room for the newcomer on what is free
    and what they leave; and the devices it gets.

    Candidates that turn out not to be needed are spared. None if all of them together do not make room.
    """
    first = next(candidates, None)
    if first is None:
        return None
    devices = plan.left_by(first, newcomer)
    if devices is not None:
        return FreedDevices((first,), devices)
    enough = enough_of(plan, newcomer, chain((first,), candidates))
    return None if enough is None else room_of(plan.fork(), newcomer, *enough)


def room_of(trial: Plan, newcomer: Job, needed: Sequence[Job], more: Iterable[Job]) -> FreedDevices | None:
    """Finds devices as `find_victims` does, on a plan of its own, which this call changes; spares candidates
    that are not needed."""
    tried: list[Job] = []
    for job in needed[:-1]:
        tried.append(job)
        trial.suppose_left(job)
    for job in chain(needed[-1:], more):
        tried.append(job)
        trial.suppose_left(job)
        devices = trial.find_free(newcomer)
        if devices is not None:
            return FreedDevices([v for v in tried if is_in_the_way(trial, v, newcomer, devices)], devices)
    return None


def is_in_the_way(plan: Plan, victim: Job, newcomer: Job, devices: Collection[DeviceId]) -> bool:
    """Whether the job holds one of these devices; or cores or main memory of their hosts, if the newcomer
    asks for any."""
    if victim.placement is None:
        return False
    if not set(devices).isdisjoint(victim.placement.devices):
        return True
    if not (asks_hosts(newcomer.spec) and asks_hosts(victim.spec)):
        return False
    known = plan.view.devices
    return not {known[d].host_id for d in devices}.isdisjoint(victim.attempt.hosts_left)


def enough_of(
    plan: Plan, newcomer: Job, candidates: Iterator[Job]
) -> tuple[Sequence[Job], Iterator[Job]] | None:
    """The candidates, split where the number of devices alone could suffice; None if it never does.

    It costs a count per device: a wide job that waits long is asked often, and mostly in vain.
    """
    scheduling_class, view = plan.view.queue.class_of(newcomer), plan.view
    if scheduling_class.gpus == 1:
        return (), candidates
    taken: list[Job] = []
    if not is_kept_together(view, scheduling_class):
        found = plan.free_count(scheduling_class)
        for victim in candidates:
            taken.append(victim)
            found += victim.spec.gpus
            if found >= scheduling_class.gpus:
                return taken, candidates
        return None
    on_host: dict[HostId, int] = {}
    for victim in candidates:
        taken.append(victim)
        for host_id, devices in devices_by_host(view, victim):
            here = on_host[host_id] if host_id in on_host else plan.free_on(host_id)
            on_host[host_id] = here = here + devices
            if here >= scheduling_class.gpus:
                return taken, candidates
    return None


def devices_by_host(view: View, job: Job) -> Iterable[tuple[HostId, int]]:
    """How many devices a placed job has on each host."""
    devices = job.placement.devices if job.placement else ()
    if len(job.attempt.hosts_left) == 1 and job.phase is not RESERVED:  # As most do: nothing to look up.
        return ((job.attempt.hosts_left[0], len(devices)),)
    return Counter(view.devices[device_id].host_id for device_id in devices).items()


def is_kept_together(view: View, scheduling_class: SchedulingClass) -> bool:
    """Whether a gang of this scheduling class gets devices of one host only."""
    if scheduling_class.nodes:
        return scheduling_class.nodes == 1
    for type in (scheduling_class.gpu_type,) if scheduling_class.gpu_type else view.free.types:
        if scheduling_class.gpus <= view.sizes.on_host(
            scheduling_class, type
        ):  # A generator costs more than the look.
            return True
    return False


NewcomerRule = Literal["first", "every"]


class NewcomerParameters(PolicyParameters, frozen=True, kw_only=True):
    """The options of `srtf` and `srsf`."""

    newcomers: NewcomerRule = "first"


def newcomers(arrived: Sequence[Job], rule: NewcomerRule) -> Sequence[Job]:
    """The newcomers among the jobs that this event has put into the queue."""
    if rule == "every":
        return arrived
    return [job for job in arrived if not job.attempt.number and not job.counts.aborted_preemptions]
