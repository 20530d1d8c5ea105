"""Which hosts have how many free devices: an index kept up to date per change.

Rule: only the ledger writes it. A host that takes no new work is absent, whatever it has free.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence

from cotenant.controller.domain import DeviceId, Host, HostId, HostState


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

    def with_free(self, type: str, count: int) -> Iterable[HostId]:
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
                self.types = tuple(sorted(self._of_type))
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
