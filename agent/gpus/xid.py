"""What an Xid means here: the driver's error numbers, and what we do about each.

Source: NVIDIA's Xid catalog (docs.nvidia.com/deploy/xid-errors, as of November 2026, Ampere and newer), its
number, short name and immediate action; the words are ours. What follows from an action for jobs that share
a GPU is ours too. Xids that are not listed fail safe: the device is suspect until it has been quiet.

Rule: a new Xid is a new row. A row says three things: what becomes of the device, who is ended, and whether a
program can have caused it (only then is anybody blamed).

    restart   the program's own error. Without MPS it stays in its process; under MPS it hits every client
    suspect   something is odd: no new work until the device has been quiet for a while
    drain     no new work until the device was reset; what runs may go on, unless the row ends it
    lost      the device does not work any more
    note      a consequence or a record: nothing follows from it alone
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

Bucket = Literal["restart", "suspect", "drain", "lost", "note"]
Ends = Literal["nobody", "clients", "everybody"]
"""clients: under MPS all clients of the device, without it nobody but whoever dies by itself."""


class Xid(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    name: str
    bucket: Bucket
    ends: Ends = "nobody"
    by_program: bool = False
    """A program can have caused it."""
    action: str = ""
    """What a person does about the device."""

    def __str__(self) -> str:
        return f"Xid {self.number} ({self.name})"


RESET: Final = "reset it when it is idle (`nvidia-smi --gpu-reset`), or reboot the host"
REBOOT: Final = "reboot the host; if it comes back, have the GPU looked at"

ROWS: Final[tuple[Xid, ...]] = (
    Xid(number=8, name="GPU stopped processing", bucket="restart", ends="clients", by_program=True),
    Xid(number=13, name="graphics engine exception", bucket="restart", ends="clients", by_program=True),
    Xid(number=31, name="GPU memory page fault", bucket="restart", ends="clients", by_program=True),
    Xid(number=43, name="a channel was reset", bucket="restart", ends="clients", by_program=True),
    # What is left of a process that was killed, or that another error has ended.
    Xid(number=45, name="clean-up after a process", bucket="note"),
    Xid(number=48, name="uncorrectable memory error", bucket="drain", ends="everybody", action=RESET),
    Xid(number=63, name="a memory row is to be replaced", bucket="drain", action=RESET),
    Xid(number=64, name="a memory row could not be replaced", bucket="drain", action=RESET),
    Xid(number=74, name="NVLink error", bucket="drain", action=RESET),
    Xid(number=79, name="fallen off the bus", bucket="lost", ends="everybody", action=REBOOT),
    Xid(number=94, name="contained memory error", bucket="drain", ends="clients", action=RESET),
    Xid(number=95, name="uncontained memory error", bucket="drain", ends="everybody", action=RESET),
    Xid(number=119, name="its firmware does not answer", bucket="lost", ends="everybody", action=REBOOT),
    Xid(number=120, name="its firmware has failed", bucket="lost", ends="everybody", action=REBOOT),
    Xid(number=154, name="the driver wants it recovered", bucket="drain", action=RESET),
)
_BY_NUMBER: Final = {row.number: row for row in ROWS}


def meaning(number: int) -> Xid:
    """The row of an Xid; one for those that have none."""
    known = _BY_NUMBER.get(number)
    return known if known is not None else Xid(number=number, name="not in our table", bucket="suspect")
