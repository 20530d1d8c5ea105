"""What hosts have free now, and the most that they could ever hold: indexes, kept up to date per change.

Rule: only the ledger writes them. For what is free now, a host that takes no new work is absent, whatever it
has free. For the largest placements ("ever?" and "were the hosts empty?") it does not matter what is busy:
they are counted once, until a host changes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from cotenant.controller.domain import Device, DeviceId, Host, HostId, HostState, is_type_for
from cotenant.controller.planning import KeptFrom, SchedulingClass, is_barred, suits


class _Hosts:
    """Hosts with devices of one type, by how many of them are free."""

    __slots__ = ("by_count", "count", "most", "total")

    def __init__(self) -> None:
        self.count: dict[HostId, int] = {}
        self.by_count: list[list[HostId]] = [[]]
        self.most = 0
        self.total = 0

    def add(self, host_id: HostId, of: int) -> None:
        """A host with so many devices, of which none is free yet."""
        while len(self.by_count) <= of:
            self.by_count.append([])
        self.count[host_id] = 0
        insort(self.by_count[0], host_id)

    def remove(self, host_id: HostId) -> int:
        """Returns how many it had free."""
        count = self.count.pop(host_id)
        hosts = self.by_count[count]
        del hosts[bisect_left(hosts, host_id)]
        self.total -= count
        while self.most and not self.by_count[self.most]:
            self.most -= 1
        return count


class FreeIndex:
    """Free devices by host and type, and hosts by how many they have free. Implements `FreeHosts`.

    A host has a handful of devices and a type a few hundred hosts: plain sorted lists are the fastest, and
    what is free on a host is counted anew when somebody takes or leaves devices there.
    """

    def __init__(self, tenants: Container[DeviceId], claims: Container[DeviceId]) -> None:
        """Devices that somebody holds, or gets next: they are not free."""
        self.types: tuple[str, ...] = ()
        self.everywhere = 0
        self._tenants, self._claims = tenants, claims
        self._able: defaultdict[HostId, list[tuple[str, list[DeviceId]]]] = defaultdict(list)
        """Healthy devices by type; none of hosts that take no work."""
        self.devices: defaultdict[tuple[HostId, str], Sequence[DeviceId]] = defaultdict(tuple)
        self._of_type: dict[str, _Hosts] = {}

    def most(self, type: str) -> int:
        hosts = self._of_type.get(type)
        return 0 if hosts is None else hosts.most

    def total(self, type: str) -> int:
        hosts = self._of_type.get(type)
        return 0 if hosts is None else hosts.total

    def hosts_with_free(self, type: str, count: int) -> Iterable[HostId]:
        hosts = self._of_type.get(type)
        return () if hosts is None or count >= len(hosts.by_count) else hosts.by_count[count]

    def tightest(self, type: str, gpus: int) -> HostId | None:
        if type in self._of_type:
            hosts = self._of_type[type]
            for count in range(gpus, hosts.most + 1):
                if hosts.by_count[count]:
                    return hosts.by_count[count][0]
        return None

    def set_host(self, host: Host) -> None:
        """Put a host in with what it has free, or take it out if it does not get new work."""
        host_id = host.host_id
        for type, _ in self._able.pop(host_id, ()):
            del self.devices[host_id, type]
            self.everywhere -= self._of_type[type].remove(host_id)
        self._able[host_id] = able = []
        if host.state is not HostState.OK:
            return
        for type in dict.fromkeys(device.type for device in host.report.devices):
            all_of_type = [d for d in host.report.devices if d.type == type]
            able.append((type, sorted(d.device_id for d in all_of_type if d.healthy)))
            if type not in self._of_type:
                self._of_type[type] = _Hosts()
                self.types = tuple(sorted(each for each in self._of_type if is_type_for("", each)))
            self.devices[host_id, type] = []
            self._of_type[type].add(host_id, len(all_of_type))
        self.refresh(host_id)

    def refresh(self, host_id: HostId) -> None:
        """Somebody has taken or left devices of this host."""
        tenants, claims = self._tenants, self._claims
        for type, able in self._able[host_id]:
            free = [d for d in able if d not in tenants and d not in claims]
            hosts, has = self._of_type[type], len(free)
            had, hosts.count[host_id] = hosts.count[host_id], has
            self.devices[host_id, type] = free
            if had != has:
                self.everywhere += has - had
                hosts.total += has - had
                with_as_many = hosts.by_count[had]
                del with_as_many[bisect_left(with_as_many, host_id)]
                insort(hosts.by_count[has], host_id)
                if has > hosts.most:
                    hosts.most = has
                while hosts.most and not hosts.by_count[hosts.most]:
                    hosts.most -= 1


SIZES_KEPT = 10_000


class Sizes:
    """What hosts could hold, in devices. Implements `SizesView`."""

    def __init__(self, hosts: Mapping[HostId, Host]) -> None:
        self._hosts = hosts
        self._ever: dict[SchedulingClass, int] = {}
        self._now: dict[SchedulingClass, int] = {}
        self._on_host: dict[tuple[SchedulingClass, str], int] = {}
        self.kept: Mapping[DeviceId, tuple[KeptFrom, ...]] = {}
        """As `View.kept`."""
        self.now_s = 0.0

    def forget(self) -> None:
        """A host has changed."""
        self._ever.clear()
        self._now.clear()
        self._on_host.clear()

    def ever(self, scheduling_class: SchedulingClass) -> int:
        """The most devices that a job of the class could get on all hosts that are not lost, drained ones
        included."""
        if scheduling_class not in self._ever:
            there = [host for host in self._hosts.values() if not host.lost]
            # A host that goes away may come again.
            however_long = msgspec.structs.replace(scheduling_class, stay_s=0)
            _keep(self._ever, scheduling_class, largest(however_long, there))
        return self._ever[scheduling_class]

    def now(self, scheduling_class: SchedulingClass) -> int:
        """The most devices that a job of the class could get on the hosts that take new work."""
        if scheduling_class not in self._now:
            up = [host for host in self._hosts.values() if host.state is HostState.OK]
            _keep(
                self._now, scheduling_class, largest(scheduling_class, up, self._is_offered(scheduling_class))
            )
        return self._now[scheduling_class]

    def _is_offered(self, scheduling_class: SchedulingClass) -> Callable[[Device], bool]:
        def is_offered(device: Device) -> bool:
            is_free = not is_barred(self.kept, device.device_id, scheduling_class, self.now_s)
            return device.healthy and is_free

        return is_offered

    def on_host(self, scheduling_class: SchedulingClass, type: str) -> int:
        """Most healthy devices of a type on one host that is neither lost nor drained."""
        key = (scheduling_class, type)
        if key not in self._on_host:
            up = [host for host in self._hosts.values() if not host.lost and not host.drained_by]
            most = max((_healthy(host, type) for host in up if suits(host, scheduling_class)), default=0)
            _keep(self._on_host, key, most)
        return self._on_host[key]


def _keep(known: dict[Any, int], key: Any, count: int) -> None:
    if len(known) >= SIZES_KEPT:
        known.clear()
    known[key] = count


def _healthy(host: Host, type: str) -> int:
    return sum(1 for d in host.report.devices if d.type == type and d.healthy)


def largest(
    scheduling_class: SchedulingClass,
    hosts: Sequence[Host],
    is_offered: Callable[[Device], bool] = lambda device: True,
) -> int:
    """Most devices that a job of this class could get on these hosts. `is_offered`: which ones count."""
    types = {d.type for host in hosts for d in host.report.devices}
    wanted = [type for type in types if is_type_for(scheduling_class.gpu_type, type)]
    suited = [host for host in hosts if suits(host, scheduling_class)]
    return max((_largest_of_type(scheduling_class, type, suited, is_offered) for type in wanted), default=0)


def _largest_of_type(
    scheduling_class: SchedulingClass, type: str, hosts: Sequence[Host], is_offered: Callable[[Device], bool]
) -> int:
    counts = []
    for host in hosts:
        fitting = [
            d
            for d in host.report.devices
            if d.type == type and d.usable_mib >= scheduling_class.memory_mib and is_offered(d)
        ]
        spread = not host.report.address.startswith("127.")
        counts.append((len(fitting), spread))
    if scheduling_class.nodes > 1:
        per_node = scheduling_class.gpus // scheduling_class.nodes
        pods = sum(1 for count, spread in counts if spread and count >= per_node)
        return pods * per_node
    alone = max((count for count, _ in counts), default=0)
    together = sum(count for count, spread in counts if spread)
    return alone if scheduling_class.nodes == 1 else max(alone, together)
