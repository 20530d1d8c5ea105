"""Xids in the kernel's log, which names the process where NVML's events do not. Pure.

A line, whatever stands before it: `NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python3, ...`. The function
number and the domain's leading zeros are written or left out, and the pid may be missing or unknown. What
stands before it in /dev/kmsg begins `priority,record,...;`: records are numbered from the boot on.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

KERNEL_LOG: Final = "/dev/kmsg"
XID: Final = "NVRM: Xid"
_RECORD: Final = re.compile(r"\d+,(\d+),[^;]*;")
_LINE: Final = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9A-Fa-f:.]+)\): (?P<xid>\d+)(?:, pid=(?P<pid>\d+))?"
)


class XidLine(msgspec.Struct, frozen=True, kw_only=True):
    pci: str
    """As `bus_address` writes it."""
    xid: int
    pid: int | None


def xid_in(line: str) -> XidLine | None:
    match = _LINE.search(line)
    if match is None:
        return None
    pid = int(match["pid"]) if match["pid"] else None
    return XidLine(pci=bus_address(match["pci"]), xid=int(match["xid"]), pid=pid or None)


def record_of(line: str) -> int | None:
    """The number of the record that begins with this line; None: it goes on with another, or is no record."""
    match = _RECORD.match(line)
    return int(match[1]) if match is not None else None


def bus_address(text: str) -> str:
    """domain:bus:device in lower case, without leading zeros and without the function: NVML writes
    00000000:3B:00.0 where the kernel writes 0000:3b:00."""
    parts = text.lower().partition(".")[0].split(":")
    return ":".join(part.lstrip("0") or "0" for part in parts[-3:])
