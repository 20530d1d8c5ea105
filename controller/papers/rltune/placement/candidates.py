"""What a few waiting jobs could get of what is free: disjoint placements of each.

Rule: a job gets what best fit would give it by kind: one host where one host could hold it, pods as it
asks, else as few hosts as possible. Of these the tightest hosts come first (pack), then the emptiest
(spread); gangs over several hosts may have those of one rack, which is a feature `rack=NAME`. Of hosts that
are alike the first ones stand for the others, and of a job at most `CHOICES_MAX` placements are tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from cotenant.controller.domain import DeviceId, HostId, Job
from cotenant.controller.planning import HostType, Plan, SchedulingClass, View

CHOICES_MAX: Final = 6
RACK: Final = "rack="


class FreePlace(NamedTuple):
    """What is free at one place."""

    free: int
    total: int
    """Devices that could be, were nobody there."""
    cpus: int
    """Left on its host."""
    memory_mib: int | None
    """Likewise; None: not limited."""

    @property
    def room(self) -> tuple[int, int | None]:
        return self.cpus, self.memory_mib


HostMix = tuple[tuple[HostType, int], ...]
"""Devices at each place, all of one type."""


class Waiting(NamedTuple):
    """A waiting job that could be placed."""

    job: Job
    rank: int
    """In the policy's order, among these."""
    must_start: bool
    """Best fit starts it."""
    may_pass: bool
    """It may start though one before it does not."""


class JobGroup(NamedTuple):
    """Jobs of one class, in order, and where they could go."""

    scheduling_class: SchedulingClass
    jobs: Sequence[Waiting]
    choices: Sequence[HostMix]
    best_fit: Mapping[HostMix, int]
    """The choices of best fit, and how many of these jobs get each."""


def free_places(plan: Plan) -> dict[HostType, FreePlace]:
    """The free places of all hosts that take work; also those with nothing free."""
    view, found = plan.view, {}
    for host_id, host in view.hosts.items():
        if not host.takes_work:
            continue
        room = plan.room_on(host_id)
        healthy: dict[str, int] = {}
        for device in host.report.devices:
            if device.healthy:
                healthy[device.type] = healthy.get(device.type, 0) + 1
        for type, total in healthy.items():
            free = len(plan.free_devices(host_id, type))
            found[host_id, type] = FreePlace(free, total, room.cpus, room.memory_mib)
    return found


def choices_of(plan: Plan, places: Mapping[HostType, FreePlace], job: Job) -> list[HostMix]:
    """Where the job could go, were it alone."""
    view = plan.view
    scheduling_class = view.queue.class_of(job)
    for avoid in (job.avoid, ()) if job.avoid else ((),):
        found: dict[HostMix, None] = {}
        for type in (scheduling_class.gpu_type,) if scheduling_class.gpu_type else view.free.types:
            able = _able(plan, places, scheduling_class, type, avoid)
            every = _choices_on_type(view, places, scheduling_class, type, able)
            found |= dict.fromkeys(islice(every, CHOICES_MAX))
        if found:
            return list(islice(found, CHOICES_MAX))
    return []


def choice_of(view: View, devices: Iterable[DeviceId]) -> HostMix:
    """The choice that these devices make up."""
    counts: dict[HostType, int] = {}
    for device_id in devices:
        device = view.devices[device_id]
        place = (device.host_id, device.type)
        counts[place] = counts.get(place, 0) + 1
    return tuple(counts.items())


def _able(
    plan: Plan,
    places: Mapping[HostType, FreePlace],
    scheduling_class: SchedulingClass,
    type: str,
    avoid: Sequence[HostId],
) -> dict[HostType, int]:
    """Free devices that the job can use, at each place that has any, the fewest first."""
    found = []
    for place, here in places.items():
        host_id = place[0]
        if place[1] != type or not here.free or host_id in avoid:
            continue
        fitting = len(plan.fitting(host_id, type, scheduling_class))
        if fitting and plan.can_take(host_id, scheduling_class):
            found.append((here.free, host_id, fitting))
    return {(host_id, type): fitting for _, host_id, fitting in sorted(found)}


def _choices_on_type(
    view: View,
    places: Mapping[HostType, FreePlace],
    scheduling_class: SchedulingClass,
    type: str,
    able: Mapping[HostType, int],
) -> Iterator[HostMix]:
    gpus, nodes = scheduling_class.gpus, scheduling_class.nodes
    if nodes <= 1 and (nodes == 1 or gpus <= view.sizes.on_host(scheduling_class, type)):
        enough = [place for place, fitting in able.items() if fitting >= gpus]
        yield from (((place, gpus),) for place in _alternate_kinds(enough, places))
        return
    reachable = {place: n for place, n in able.items() if not _is_local(view, place[0])}
    for group in _groups(view, list(reachable)):
        if nodes > 1:
            yield from _pods(group, reachable, nodes, gpus // nodes)
        else:
            yield from _spread(group, reachable, gpus)


def _alternate_kinds(places: Sequence[HostType], known: Mapping[HostType, FreePlace]) -> Iterator[HostType]:
    """The first of each kind, the tightest first, then the second of each, and so on."""
    kinds: dict[FreePlace, list[HostType]] = {}
    for place in places:
        kinds.setdefault(known[place], []).append(place)
    for number in range(max(map(len, kinds.values()), default=0)):
        for alike in kinds.values():
            if number < len(alike):
                yield alike[number]


def _groups(view: View, places: Sequence[HostType]) -> Iterator[Sequence[HostType]]:
    """All hosts together, then those of each rack."""
    yield places
    racks: dict[str, list[HostType]] = {}
    for place in places:
        for feature in view.hosts[place[0]].report.features:
            if feature.startswith(RACK):
                racks.setdefault(feature, []).append(place)
    for name in sorted(racks):
        yield racks[name]


def _pods(
    group: Sequence[HostType], able: Mapping[HostType, int], nodes: int, per_node: int
) -> Iterator[HostMix]:
    """Yields choices of one host after another, each choice apart from the ones before it: tightest hosts
    first, then the emptiest."""
    enough = [place for place in group if able[place] >= per_node]
    for first in range(0, len(enough) - nodes + 1, nodes):
        yield tuple((place, per_node) for place in enough[first : first + nodes])
    if len(enough) > nodes:
        yield tuple((place, per_node) for place in enough[-nodes:])


def _spread(group: Sequence[HostType], able: Mapping[HostType, int], gpus: int) -> Iterator[HostMix]:
    """Yields choices on as few hosts as possible: the emptiest first; then again without the first of
    these."""
    emptiest = sorted(group, key=lambda place: -able[place])
    for first in range(len(emptiest)):
        chosen: list[tuple[HostType, int]] = []
        left = gpus
        for place in emptiest[first:]:
            chosen.append((place, min(left, able[place])))
            left -= chosen[-1][1]
            if not left:
                yield tuple(chosen)
                break
        else:
            return


def _is_local(view: View, host_id: HostId) -> bool:
    """Whether other hosts cannot reach this one."""
    return view.hosts[host_id].report.address.startswith("127.")
