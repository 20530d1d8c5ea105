"""Xids in the kernel's log, which names the process where NVML's events do not. Pure.

A line, whatever stands before it: `NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python3, ...`. The function
number and the domain's leading zeros are written or left out, and the pid may be missing or unknown. What
stands before it in /dev/kmsg begins `priority,record,...;`: records are numbered from the boot on.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from cotenant.agent.gpus.xid import RECOVERY_CHANGED

KERNEL_LOG: Final = "/dev/kmsg"
XID: Final = "NVRM: Xid"
_RECORD: Final = re.compile(r"\d+,(\d+),[^;]*;")
_LINE: Final = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9A-Fa-f:.]+)\): (?P<xid>\d+)(?:, pid=(?P<pid>\d+))?"
)
_RECOVERY: Final = re.compile(r"\bto 0x([0-9A-Fa-f]{1,4})\b")
"""Xid 154: `GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)`. The number is NVML's;
the words in brackets differ between drivers."""


class XidLine(msgspec.Struct, frozen=True, kw_only=True):
    pci: str
    """As `bus_address` writes it."""
    xid: int
    pid: int | None
    recovery: int | None = None
    """Of Xid 154: what the driver wants done now, as NVML numbers it."""


def xid_in(line: str) -> XidLine | None:
    match = _LINE.search(line)
    if match is None:
        return None
    pid = int(match["pid"]) if match["pid"] else None
    xid = int(match["xid"])
    action = _RECOVERY.search(line, match.end()) if xid == RECOVERY_CHANGED else None
    recovery = int(action[1], 16) if action is not None else None
    return XidLine(pci=bus_address(match["pci"]), xid=xid, pid=pid or None, recovery=recovery)


def record_of(line: str) -> int | None:
    """The number of the record that begins with this line; None: it goes on with another, or is no record."""
    match = _RECORD.match(line)
    return int(match[1]) if match is not None else None


def bus_address(text: str) -> str:
    """domain:bus:device in lower case, without leading zeros and without the function: NVML writes
    00000000:3B:00.0 where the kernel writes 0000:3b:00."""
    parts = text.lower().partition(".")[0].split(":")
    return ":".join(part.lstrip("0") or "0" for part in parts[-3:])
