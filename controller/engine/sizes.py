"""The largest placement that a scheduling class could get on these hosts, counted once until a host changes.

Rule: it does not matter what is busy; these are the questions "ever?" and "were the hosts empty?".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from cotenant.controller.domain import Host, HostId, HostState, SchedulingClass, suits

SIZES_KEPT = 10_000


class Sizes:
    """What hosts could hold, in devices."""

    def __init__(self, hosts: Mapping[HostId, Host]) -> None:
        self._hosts = hosts
        self._ever: dict[SchedulingClass, int] = {}
        self._now: dict[SchedulingClass, int] = {}
        self._on_host: dict[tuple[SchedulingClass, str], int] = {}

    def forget(self) -> None:
        """A host has changed."""
        self._ever.clear()
        self._now.clear()
        self._on_host.clear()

    def ever(self, scheduling_class: SchedulingClass) -> int:
        """On all hosts that are not lost, drained ones included."""
        if scheduling_class not in self._ever:
            there = [host for host in self._hosts.values() if not host.lost]
            # A host that goes away may come again.
            however_long = msgspec.structs.replace(scheduling_class, stay_s=0)
            _keep(self._ever, scheduling_class, largest(however_long, there))
        return self._ever[scheduling_class]

    def now(self, scheduling_class: SchedulingClass) -> int:
        """On the hosts that take new work."""
        if scheduling_class not in self._now:
            up = [host for host in self._hosts.values() if host.state is HostState.OK]
            _keep(self._now, scheduling_class, largest(scheduling_class, up, offered=True))
        return self._now[scheduling_class]

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


def largest(scheduling_class: SchedulingClass, hosts: Sequence[Host], *, offered: bool = False) -> int:
    """Most devices that a job of this class could get on these hosts. `offered`: only what takes work."""
    types = {d.type for host in hosts for d in host.report.devices}
    wanted = types & {scheduling_class.gpu_type} if scheduling_class.gpu_type else types
    suited = [host for host in hosts if suits(host, scheduling_class)]
    return max((_largest_of_type(scheduling_class, type, suited, offered) for type in wanted), default=0)


def _largest_of_type(
    scheduling_class: SchedulingClass, type: str, hosts: Sequence[Host], offered: bool
) -> int:
    counts = []
    for host in hosts:
        fitting = [
            d
            for d in host.report.devices
            if d.type == type and d.usable_mib >= scheduling_class.memory_mib and (d.healthy or not offered)
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
