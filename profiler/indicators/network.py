"""Bytes that a host has sent and received, since it started.

Rule: InfiniBand is counted at its ports, because traffic by RDMA passes the kernel's interfaces by; the
interfaces that belong to such a port (IP over InfiniBand) are then left out, or their bytes would count
twice. RDMA over Ethernet is in neither count.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import psutil

INFINIBAND: Final = Path("/sys/class/infiniband")
WORD_BYTES: Final = 4
"""The ports count in words."""


class Sent(NamedTuple):
    sent: int
    received: int


class Port(NamedTuple):
    """One that speaks InfiniBand."""

    interfaces: frozenset[str]
    sent: int
    received: int


def network(infiniband: Path = INFINIBAND) -> Sent:
    ports = list(_ports(infiniband))
    if not ports:
        total = psutil.net_io_counters(nowrap=True)
        return Sent(total.bytes_sent, total.bytes_recv)
    own = {name for port in ports for name in port.interfaces}
    others = [each for name, each in psutil.net_io_counters(pernic=True).items() if name not in own]
    return Sent(
        sum(each.bytes_sent for each in others) + sum(port.sent for port in ports),
        sum(each.bytes_recv for each in others) + sum(port.received for port in ports),
    )


def _ports(infiniband: Path) -> Iterator[Port]:
    """Those whose counters can be read."""
    for port in sorted(infiniband.glob("*/ports/*")):
        try:
            if (port / "link_layer").read_text().strip() != "InfiniBand":
                continue
            sent = WORD_BYTES * int((port / "counters" / "port_xmit_data").read_text())
            received = WORD_BYTES * int((port / "counters" / "port_rcv_data").read_text())
        except (OSError, ValueError):
            continue
        interfaces = frozenset(each.name for each in (port.parents[1] / "device" / "net").glob("*"))
        yield Port(interfaces, sent, received)
