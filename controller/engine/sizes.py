"""The largest placement that a shape could get on these hosts, counted once until a host changes.

Rule: busy or not does not matter here; these are the questions "ever?" and "were the hosts empty?".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cotenant.controller.domain.cluster import Host, HostState
from cotenant.controller.domain.ids import HostId
from cotenant.controller.domain.view import Shape, suits

SIZES_KEPT = 10_000


class Sizes:
    """What hosts could hold, in devices."""

    def __init__(self, hosts: Mapping[HostId, Host]) -> None:
        self._hosts = hosts
        self._ever: dict[Shape, int] = {}
        self._now: dict[Shape, int] = {}
        self._on_host: dict[tuple[Shape, str], int] = {}

    def forget(self) -> None:
        """A host has changed."""
        self._ever.clear()
        self._now.clear()
        self._on_host.clear()

    def ever(self, shape: Shape) -> int:
        """On all hosts that are not lost, drained ones included."""
        known = self._ever.get(shape)
        if known is None:
            known = largest(shape, [host for host in self._hosts.values() if not host.lost])
            _keep(self._ever, shape, known)
        return known

    def now(self, shape: Shape) -> int:
        """On the hosts that take new work."""
        known = self._now.get(shape)
        if known is None:
            up = [host for host in self._hosts.values() if host.state is HostState.OK]
            known = largest(shape, up, offered=True)
            _keep(self._now, shape, known)
        return known

    def on_host(self, shape: Shape, type: str) -> int:
        """Most healthy devices of a type on one host that is neither lost nor drained."""
        key = (shape, type)
        known = self._on_host.get(key)
        if known is None:
            up = [host for host in self._hosts.values() if not host.lost and not host.drained_by]
            known = max((_healthy(host, type) for host in up if suits(host, shape)), default=0)
            _keep(self._on_host, key, known)
        return known


def _keep(known: dict[Any, int], key: Any, count: int) -> None:
    if len(known) >= SIZES_KEPT:
        known.clear()
    known[key] = count


def _healthy(host: Host, type: str) -> int:
    return sum(1 for d in host.report.devices if d.type == type and d.healthy)


def largest(shape: Shape, hosts: Sequence[Host], *, offered: bool = False) -> int:
    """Most devices that a job of this shape could get on these hosts. `offered`: only what takes work."""
    types = {d.type for host in hosts for d in host.report.devices}
    wanted = types & {shape.gpu_type} if shape.gpu_type else types
    suited = [host for host in hosts if suits(host, shape)]
    return max((_largest_of_type(shape, type, suited, offered) for type in wanted), default=0)


def _largest_of_type(shape: Shape, type: str, hosts: Sequence[Host], offered: bool) -> int:
    counts = []
    for host in hosts:
        fitting = [
            d
            for d in host.report.devices
            if d.type == type and d.usable_mib >= shape.memory_mib and (d.healthy or not offered)
        ]
        spread = not host.report.address.startswith("127.")
        counts.append((len(fitting), spread))
    if shape.nodes > 1:
        per_node = shape.gpus // shape.nodes
        pods = sum(1 for count, spread in counts if spread and count >= per_node)
        return pods * per_node
    alone = max((count for count, _ in counts), default=0)
    together = sum(count for count, spread in counts if spread)
    return alone if shape.nodes == 1 else max(alone, together)
