"""The table of causes, row by row, and that of Xids."""

from __future__ import annotations

from typing import get_args

import pytest

from cotenant.agent.gpus.causes import BY_BUCKET, CAUSES, Proof
from cotenant.agent.gpus.xid import ROWS, Bucket, bus_address, meaning, xid_in
from cotenant.controller.domain import DeviceState

# fmt: off
WANTED = {  # What it means, what ends it, and after how many seconds of quiet.
    "lost":     ("lost", {"reset"}, 0),
    "reset":    ("draining", {"person", "reset"}, 0),
    "odd":      ("suspect", {"quiet", "person", "reset"}, 600),
    "silent":   ("suspect", {"quiet", "person", "reset"}, 300),
    "program":  ("suspect", {"quiet", "person", "reset"}, 0),
    "server":   ("suspect", {"quiet", "person", "reset"}, 0),
    "kept":     ("suspect", {"quiet", "person", "reset"}, 0),
    "mode":     ("suspect", {"quiet", "person", "reset"}, 0),
    "renewed":  ("suspect", {"quiet", "person", "reset"}, 60),
    "cuda":     ("suspect", set(), 0),
    "unknown":  ("ok", set(), 0),
    "foreign":  ("ok", set(), 0),
    "intruder": ("ok", set(), 0),
    "remains":  ("ok", set(), 0),
    "held":     ("ok", set(), 0),
}
# fmt: on


def test_every_row() -> None:
    assert {name: (row.state, set(row.ended_by), row.quiet_s) for name, row in CAUSES.items()} == WANTED


def test_the_worst_is_told_first_and_the_worse_a_device_is_the_fewer_proofs_bring_it_back() -> None:
    states = get_args(DeviceState)
    gravity = [states.index(row.state) for row in CAUSES.values()]
    assert gravity == sorted(gravity, reverse=True)
    assert {proof for row in CAUSES.values() for proof in row.ended_by} == set(get_args(Proof))
    for row in CAUSES.values():
        assert row.state != "lost" or row.ended_by == {"reset"}, "nobody but the device itself"
        assert not row.quiet_s or "quiet" in row.ended_by
        assert row.state != "draining" or "quiet" not in row.ended_by


# --- Xids ------------------------------------------------------------------------------------------


def test_each_xid_has_one_row_and_a_bucket_that_leads_somewhere() -> None:
    numbers = [row.number for row in ROWS]
    assert len(numbers) == len(set(numbers))
    assert {row.bucket for row in ROWS} == {*BY_BUCKET, "note"} == set(get_args(Bucket))
    for row in ROWS:
        assert not (row.by_program and row.bucket != "restart"), "a program breaks no device"
        assert row.bucket not in ("drain", "lost") or row.action, f"{row}: what is to be done?"
        assert row.bucket != "lost" or row.ends == "everybody", "what ran there is gone"


def test_an_unknown_xid_fails_safe() -> None:
    row = meaning(9999)
    assert (row.bucket, row.ends, row.by_program) == ("suspect", "nobody", False)


def test_an_xid_that_follows_from_a_kill_has_no_consequence() -> None:
    assert meaning(45).bucket == "note"


LINES = {
    "NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python3, Ch 00000008": ("0:3b:0", 31, 4711),
    "4,1234,5678,-;NVRM: Xid (PCI:00000001:3B:00.0): 79, GPU has fallen off the bus.": ("1:3b:0", 79, None),
    "[  12.3] NVRM: Xid (0000:03:00): 45, pid='<unknown>', name=<unknown>": ("0:3:0", 45, None),
    "NVRM: Xid (PCI:0009:01:00): 45, pid=88, name=python3, Ch 00000001 caused by previous Xid 149": (
        "9:1:0",
        45,
        88,
    ),
    "NVRM: Xid (PCI:0000:c1:00): 94, pid='<unknown>', name=<unknown>, Contained: SM (0x1). RST: No": (
        "0:c1:0",
        94,
        None,
    ),
    "kernel: NVRM: Xid (PCI:0000:1a:00): 31, pid=47, name=python3, channel 0x00000002, intr 00000000.": (
        "0:1a:0",
        31,
        47,
    ),
    "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)": (
        "0:1:0",
        154,
        None,
    ),
    "NVRM: Xid (PCI:0000:3b:00): 13, pid=0, Graphics Exception": ("0:3b:0", 13, None),
}


@pytest.mark.parametrize("line", LINES)
def test_xids_in_the_kernels_log(line: str) -> None:
    found = xid_in(line)
    assert found is not None
    assert (found.pci, found.xid, found.pid) == LINES[line]
    assert found.recovery == (2 if found.xid == 154 else None)


@pytest.mark.parametrize(
    ("text", "recovery"),
    [
        ("154, GPU recovery action changed from 0x1 (PF FLR) to 0x0 (None)", 0),
        ("154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", 4),
        ("154, GPU Recovery Action Changed", None),
        ("31, pid=4, name=x, MMU Fault: ENGINE GRAPHICS faulted @ 0x7f00 to 0x1 (x)", None),
    ],
)
def test_what_the_driver_wants_done_is_read_from_xid_154_alone(text: str, recovery: int | None) -> None:
    found = xid_in(f"NVRM: Xid (PCI:0000:01:00): {text}")
    assert found is not None
    assert found.recovery == recovery


def test_other_lines_of_the_kernel_are_none_of_our_business() -> None:
    assert xid_in("NVRM: GPU at PCI:0000:3b:00: GPU-1a2b") is None


def test_a_bus_address_is_the_same_however_it_is_written() -> None:
    assert bus_address("00000000:3B:00.0") == bus_address("0000:3b:00") == "0:3b:0"
