"""Which hosts have how many free devices: an index kept up to date per change.

Rule: only the ledger writes it. A host that takes no new work is absent, whatever it has free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sortedcontainers import SortedDict, SortedList

from cotenant.controller.domain.cluster import Host, HostState
from cotenant.controller.domain.ids import DeviceId, HostId


class FreeIndex:
    """Free devices by host and type, and hosts by how many they have free. Implements `FreeHosts`."""

    def __init__(self) -> None:
        self._devices: dict[tuple[HostId, str], SortedList[DeviceId]] = {}
        self._hosts: SortedDict[str, list[SortedList[HostId]]] = SortedDict()  # type -> by count

    def types(self) -> Sequence[str]:
        return list(self._hosts)

    def most(self, type: str) -> int:
        buckets = self._hosts.get(type, [])
        return next((count for count in range(len(buckets) - 1, 0, -1) if buckets[count]), 0)

    def with_free(self, type: str, count: int) -> Iterable[HostId]:
        buckets = self._hosts.get(type, [])
        return buckets[count] if count < len(buckets) else ()

    def devices(self, host_id: HostId, type: str) -> Sequence[DeviceId]:
        devices: Sequence[DeviceId] = self._devices.get((host_id, type), ())
        return devices

    def set_host(self, host: Host, is_free: Iterable[DeviceId]) -> None:
        """Put a host's free devices in, or take it out if it does not get new work."""
        self.remove_host(host.host_id)
        if host.state is not HostState.OK:
            return
        free = set(is_free)
        for type in dict.fromkeys(device.type for device in host.report.devices):
            devices = SortedList(
                d.device_id for d in host.report.devices if d.type == type and d.device_id in free
            )
            self._devices[host.host_id, type] = devices
            self._bucket(type, len(devices)).add(host.host_id)

    def remove_host(self, host_id: HostId) -> None:
        for key in [key for key in self._devices if key[0] == host_id]:
            self._bucket(key[1], len(self._devices[key])).discard(host_id)
            del self._devices[key]

    def take(self, host_id: HostId, type: str, device_id: DeviceId) -> None:
        devices = self._devices.get((host_id, type))
        if devices is not None and device_id in devices:
            self._bucket(type, len(devices)).discard(host_id)
            devices.remove(device_id)
            self._bucket(type, len(devices)).add(host_id)

    def give(self, host_id: HostId, type: str, device_id: DeviceId) -> None:
        devices = self._devices.get((host_id, type))
        if devices is not None and device_id not in devices:
            self._bucket(type, len(devices)).discard(host_id)
            devices.add(device_id)
            self._bucket(type, len(devices)).add(host_id)

    def _bucket(self, type: str, count: int) -> SortedList[HostId]:
        buckets = self._hosts.setdefault(type, [])
        while len(buckets) <= count:
            buckets.append(SortedList())
        return buckets[count]
