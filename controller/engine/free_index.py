"""Which hosts have how many free devices: an index kept up to date per change.

Rule: only the ledger writes it. A host that takes no new work is absent, whatever it has free.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Sequence

from cotenant.controller.domain import DeviceId, Host, HostId, HostState


class _Hosts:
    """Hosts with devices of one type, by how many of them are free."""

    __slots__ = ("by_count", "most", "total")

    def __init__(self) -> None:
        self.by_count: list[list[HostId]] = [[]]
        self.most = 0
        self.total = 0

    def add(self, host_id: HostId, count: int, of: int) -> None:
        """A host with so many free devices `of` all that it has."""
        while len(self.by_count) <= of:
            self.by_count.append([])
        insort(self.by_count[count], host_id)
        self.total += count
        if count > self.most:
            self.most = count

    def remove(self, host_id: HostId, count: int) -> None:
        hosts = self.by_count[count]
        del hosts[bisect_left(hosts, host_id)]
        self.total -= count
        while self.most and not self.by_count[self.most]:
            self.most -= 1


class FreeIndex:
    """Free devices by host and type, and hosts by how many they have free. Implements `FreeHosts`.

    A host has a handful of devices and a type a few hundred hosts: plain sorted lists are the fastest.
    """

    def __init__(self) -> None:
        self._devices: dict[tuple[HostId, str], list[DeviceId]] = {}
        self._of_type: dict[str, _Hosts] = {}
        self._types: tuple[str, ...] = ()
        self._count = 0
        """Of all types."""

    def types(self) -> Sequence[str]:
        return self._types

    def most(self, type: str) -> int:
        hosts = self._of_type.get(type)
        return 0 if hosts is None else hosts.most

    def total(self, type: str) -> int:
        hosts = self._of_type.get(type)
        return 0 if hosts is None else hosts.total

    def any(self) -> bool:
        return self._count > 0

    def everywhere(self) -> int:
        return self._count

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

    def devices(self, host_id: HostId, type: str) -> Sequence[DeviceId]:
        return self._devices.get((host_id, type), ())

    def set_host(self, host: Host, is_free: Iterable[DeviceId]) -> None:
        """Put a host's free devices in, or take it out if it does not get new work."""
        self.remove_host(host.host_id)
        if host.state is not HostState.OK:
            return
        free = set(is_free)
        for type in dict.fromkeys(device.type for device in host.report.devices):
            all_of_type = [d.device_id for d in host.report.devices if d.type == type]
            devices = sorted(free.intersection(all_of_type))
            self._devices[host.host_id, type] = devices
            if type not in self._of_type:
                self._of_type[type] = _Hosts()
                self._types = tuple(sorted(self._of_type))
            self._of_type[type].add(host.host_id, len(devices), of=len(all_of_type))
            self._count += len(devices)

    def remove_host(self, host_id: HostId) -> None:
        for key in [key for key in self._devices if key[0] == host_id]:
            count = len(self._devices.pop(key))
            self._of_type[key[1]].remove(host_id, count)
            self._count -= count

    def take(self, host_id: HostId, type: str, device_ids: Collection[DeviceId]) -> None:
        """Devices of one host and type are not free any more; those that were not stay so."""
        if (host_id, type) in self._devices:
            devices = self._devices[host_id, type]
            self._set(host_id, type, devices, [d for d in devices if d not in device_ids])

    def give(self, host_id: HostId, type: str, device_ids: Collection[DeviceId]) -> None:
        """Devices of one host and type are free; those that were stay so."""
        if (host_id, type) in self._devices:
            devices = self._devices[host_id, type]
            self._set(host_id, type, devices, sorted({*devices, *device_ids}))

    def _set(self, host_id: HostId, type: str, before: list[DeviceId], after: list[DeviceId]) -> None:
        had, has, hosts = len(before), len(after), self._of_type[type]
        if had == has:
            return
        self._devices[host_id, type] = after
        self._count += has - had
        hosts.total += has - had
        with_as_many = hosts.by_count[had]
        del with_as_many[bisect_left(with_as_many, host_id)]
        insort(hosts.by_count[has], host_id)
        if has > hosts.most:
            hosts.most = has
        else:
            while hosts.most and not hosts.by_count[hosts.most]:
                hosts.most -= 1
