"""Xids, the driver's error numbers: what we do about each, and how the kernel's log tells of them. Pure.

Source: NVIDIA's Xid catalog (docs.nvidia.com/deploy/xid-errors, analyzing-xid-catalog, table 1, read in
November 2026: Ampere to Blackwell, Xids 1 to 172), its number, short name and immediate action; the words
are ours. What follows from an action for jobs that share a GPU is ours too:

    RESTART_APP   restart: clients of an MPS server share what it breaks
    RESET_GPU     drain; the jobs on it are ended where the device computes no more
    RESTART_BM    lost
    IGNORE        note
    a workflow    by its subcodes, most of which an Xid does not carry: suspect, and Xid 154, in which the
                  driver itself sums up what is to be done, drains the device if that is needed (from 565 on)

We are stricter than the catalog in a few rows. 63 and 94: a row of memory is to be replaced, which takes a
reset; no new work before that. 119 and 120: calls into a driver whose firmware does not answer can hang. 43
(IGNORE there) and 8 end all clients of an MPS server, since one of them broke it. Xids that are not listed
fail safe: the device is suspect until it has been quiet.

Rule: a new Xid is a new row. A row says three things: what becomes of the device, who is ended, and whether a
program can have caused it (only then is anybody blamed).

    restart   an error of whoever used it. Without MPS it stays in its process; under MPS it hits every client
    suspect   something is odd: no new work until the device has been quiet for a while
    drain     no new work until the device was reset; what runs may go on, unless the row ends it
    lost      the device does not work any more
    note      a consequence or a record: nothing follows from it alone

The kernel's log names the process where NVML's events do not. A line of it, whatever stands before it:
`NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python3, ...`. The function number and the domain's leading
zeros are written or left out, `GPU-I:05 GPU-CI:00` behind them names a MIG instance, and the pid may be
missing or unknown. What stands before it in /dev/kmsg
begins `priority,record,...;`: records are numbered from the boot on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal

import msgspec

Bucket = Literal["restart", "suspect", "drain", "lost", "note"]
Ends = Literal["nobody", "clients", "everybody"]
"""clients: under MPS all clients of the device, without it only those that fail of it."""


class Xid(msgspec.Struct, frozen=True, kw_only=True):
    number: int = 0
    name: str = ""
    bucket: Bucket
    ends: Ends = "nobody"
    by_program: bool = False
    """A program can have caused it."""
    action: str = ""
    """What a person does about the device."""

    def __str__(self) -> str:
        return f"Xid {self.number} ({self.name})" if self.number > 0 else self.name

    @property
    def advice(self) -> str:
        """Its number and name, and what a person does about the device."""
        return f"{self}: {self.action}" if self.action else str(self)


RESET: Final = (
    "reset it when it is idle (`nvidia-smi --gpu-reset`) and say `cotenant nodes resume`, or reboot the host"
)
REBOOT: Final = "reboot the host; if it comes back, have the GPU looked at"
NO_PEERS: Final = "end every process that uses peer-to-peer, then look at `nvidia-smi -q` again"
RECOVERY_CHANGED: Final = 154
"""Its text carries what is to be done; NVML has it as a field."""
OFF_THE_BUS, NOT_INITIALISED, SWITCH_FAILED = 0, -1, -2
"""Errors to which the driver gives no Xid."""


_KINDS: Final[dict[str, Xid]] = {
    # The catalog says RESTART_APP, and looks for the cause in the program.
    "program": Xid(bucket="restart", ends="clients", by_program=True),
    # RESTART_APP as well, but it sends one to NVIDIA: no program is blamed.
    "engine": Xid(bucket="restart", ends="clients"),
    "note": Xid(bucket="note"),
    "link": Xid(bucket="suspect"),
    "drain": Xid(bucket="drain", action=RESET),
    "drain, clients": Xid(bucket="drain", ends="clients", action=RESET),
    "drain, all": Xid(bucket="drain", ends="everybody", action=RESET),
    "drain, guest": Xid(bucket="drain", action="restart the virtual machine"),
    "lost": Xid(bucket="lost", ends="everybody", action=REBOOT),
}
_TABLE: Final[tuple[tuple[str, Iterable[int], str], ...]] = (
    ("program", (8,), "GPU stopped processing"),
    ("program", (11, 25), "invalid commands in a program's stream"),
    ("program", (13,), "graphics engine exception"),
    ("program", (31,), "GPU memory page fault"),
    ("program", (43,), "a channel was reset"),
    ("program", (69,), "graphics engine class error"),
    ("program", (80,), "corrupted commands"),
    # The catalog: mostly the quality of the PCI link, and generally no doing of a program.
    ("engine", (32,), "corrupted command stream"),
    ("engine", (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)), "copy engine error"),
    ("engine", (60, 68, 83, 84, 88, 89, 96, 97, 98), "video decoder error"),
    ("engine", (82, *range(99, 106)), "image decoder error"),
    ("engine", (86, 139), "optical flow engine error"),
    # Test messages, errors that the firmware has dealt with (37 to 67), clean-up after a killed process (45),
    # many corrected errors (92, 121), refused accesses over NVLink (108, 137), which fail in their program,
    # retirements to come (157 to 161), power smoothing (162 to 165), details of Xid 48 (171, 172).
    ("note", (14, 37, 38, 44, 45, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 157), "a record"),
    ("note", (*range(160, 166), 171, 172), "a record"),
    ("drain, all", (46,), "GPU stopped processing, and stays so"),
    ("drain, all", (48,), "uncorrectable memory error"),
    ("drain, all", (62,), "an internal controller has halted"),
    ("drain", (63,), "a memory row is to be replaced"),
    ("drain", (64,), "a memory row could not be replaced"),
    ("drain", (74,), "NVLink error"),
    ("drain, clients", (94,), "contained memory error"),
    ("drain, all", (95,), "uncontained memory error"),
    ("drain, clients", (109,), "context switch timeout"),
    ("drain, all", (110,), "security fault"),
    ("drain", (136,), "link training failed"),
    ("drain, all", (140,), "uncorrectable memory error that was not put on record"),
    ("drain, all", (143,), "it could not be initialised"),
    ("drain, guest", (151,), "key rotation failed"),
    ("drain", (155,), "NVLink went down"),
    ("drain", (156,), "a part of it is to be retired"),
    ("drain, all", (158,), "fatal timeout"),
    ("lost", (79,), "fallen off the bus"),
    ("lost", (119,), "its firmware does not answer"),
    ("lost", (120,), "its firmware has failed"),
    ("link", range(144, 151), "NVLink error"),
    ("lost", (OFF_THE_BUS,), "fallen off the bus, without an Xid"),
    ("link", (NOT_INITIALISED,), "the driver could not initialise it"),
    ("link", (SWITCH_FAILED,), "a fatal error of an NVSwitch (SXid)"),
)
ROWS: Final = tuple(
    msgspec.structs.replace(_KINDS[kind], number=number, name=name)
    for kind, numbers, name in _TABLE
    for number in numbers
)
_BY_NUMBER: Final = {row.number: row for row in ROWS}

_RECOVERY: Final = {
    0: ("the driver wants nothing done", ""),
    1: ("the driver wants it reset", RESET),
    2: ("the driver wants the host rebooted", REBOOT),
    3: ("the driver wants peer-to-peer drained", NO_PEERS),
    4: ("the driver wants it drained and reset", RESET),
    5: ("the driver wants its IMEX domain recovered", "recover the IMEX domain (its service), then reset it"),
    6: ("the driver wants its bus reset", REBOOT),
    7: ("the driver wants the system rebooted", REBOOT),
}
"""By what the driver wants done (NVML's nvmlDeviceGpuRecoveryAction_t): the name, and what a person does. The
Xid that it sums up has ended the attempts concerned, so none of these ends another."""
_ANY_RECOVERY: Final = ("the driver wants it recovered", RESET)


def meaning(number: int, recovery: int | None = None) -> Xid:
    """The row of an Xid; one for those that have none.

    recovery: of Xid 154, what the driver wants done; None: it was not said, and may be anything.
    """
    if number == RECOVERY_CHANGED:
        name, action = _ANY_RECOVERY if recovery is None else _RECOVERY.get(recovery, _ANY_RECOVERY)
        return Xid(number=number, name=name, bucket="drain" if action else "note", action=action)
    known = _BY_NUMBER.get(number)
    return known if known is not None else Xid(number=number, name="not in our table", bucket="suspect")


KERNEL_LOG: Final = "/dev/kmsg"
ABOUT_GPUS: Final = re.compile(r"NVRM: (?:Xid|GPU |The NVIDIA GPU |\(PCI ID)|nvidia-nvswitch\d+: SXid")
BEGINS: Final = re.compile(r"NVRM: The NVIDIA GPU [0-9A-Fa-f:.]+\s*$")
"""A record that says of which GPU the next one tells."""
_RECORD: Final = re.compile(r"\d+,(\d+),[^;]*;")
_LINE: Final = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9A-Fa-f:.]+)(?: GPU-I:(?P<instance>\d+))?(?: GPU-CI:\d+)?\): "
    r"(?P<xid>\d+)(?:, pid=(?P<pid>\d+))?"
)
_WITHOUT_XID: Final = re.compile(
    r"NVRM: (?:The NVIDIA )?GPU (?P<pci>[0-9A-Fa-f:]+)\.\d\b.*?"
    r"(?P<what>fallen off the bus|RmInitAdapter failed)"
)
_SWITCH: Final = re.compile(r"nvidia-nvswitch\d+: SXid \([^)]*\): \d+, Fatal")
_SUMMED_UP: Final = re.compile(r"\bto 0x([0-9A-Fa-f]{1,4})\b")
"""Xid 154: `GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)`. The number is NVML's;
the words in brackets differ between drivers."""


class XidLine(msgspec.Struct, frozen=True, kw_only=True):
    pci: str
    """As `bus_address` writes it; empty: it is about all GPUs."""
    xid: int
    pid: int | None = None
    recovery: int | None = None
    """Of Xid 154: what the driver wants done now, as NVML numbers it."""
    instance: int | None = None
    """The GPU instance (MIG) that the error is about; None: the GPU."""


def xid_in(line: str) -> XidLine | None:
    """The error that a line tells of; of those that have no Xid as `OFF_THE_BUS` and its like number them."""
    match = _LINE.search(line)
    if match is None:
        return _without_xid(line)
    pid = int(match["pid"]) if match["pid"] else None
    xid = int(match["xid"])
    action = _SUMMED_UP.search(line, match.end()) if xid == RECOVERY_CHANGED else None
    recovery = int(action[1], 16) if action is not None else None
    instance = int(match["instance"]) if match["instance"] else None
    pci = bus_address(match["pci"])
    return XidLine(pci=pci, xid=xid, pid=pid or None, recovery=recovery, instance=instance)


def _without_xid(line: str) -> XidLine | None:
    if _SWITCH.search(line):
        return XidLine(pci="", xid=SWITCH_FAILED)
    match = _WITHOUT_XID.search(line)
    if match is None:
        return None
    xid = NOT_INITIALISED if match["what"].startswith("Rm") else OFF_THE_BUS
    return XidLine(pci=bus_address(match["pci"]), xid=xid)


def record_of(line: str) -> int | None:
    """The number of the record that begins with this line; None: it goes on with another, or is no record."""
    match = _RECORD.match(line)
    return int(match[1]) if match is not None else None


def bus_address(text: str) -> str:
    """domain:bus:device in lower case, without leading zeros and without the function: NVML writes
    00000000:3B:00.0 where the kernel writes 0000:3b:00."""
    parts = text.lower().partition(".")[0].split(":")
    return ":".join(part.lstrip("0") or "0" for part in parts[-3:])
