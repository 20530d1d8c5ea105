"""The table of device states, cell by cell, and that of Xids."""

from __future__ import annotations

from typing import get_args

import pytest

from cotenant.agent.gpus.device_states import BY_BUCKET, TABLE, DeviceHappening, next_state
from cotenant.agent.gpus.xid import ROWS, Bucket, bus_address, meaning, xid_in
from cotenant.controller.domain import DeviceState

STATES: tuple[DeviceState, ...] = get_args(DeviceState)
HAPPENINGS: tuple[DeviceHappening, ...] = get_args(DeviceHappening)
WORSE: dict[DeviceState, int] = {"ok": 0, "suspect": 1, "draining": 2, "lost": 3}
GOOD = {"proven", "trusted", "renewed"}

# fmt: off
CELLS = {  # restart     suspect     drain       lost    hung        proven      trusted  renewed
    "ok":       ("suspect", "suspect", "draining", "lost", "suspect", "ok", "ok", "ok"),
    "suspect":  ("suspect", "suspect", "draining", "lost", "suspect", "ok", "ok", "suspect"),
    "draining": ("draining", "draining", "draining", "lost", "draining", "draining", "ok", "suspect"),
    "lost":     ("lost", "lost", "lost", "lost", "lost", "lost", "lost", "suspect"),
}
# fmt: on


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("happening", HAPPENINGS)
def test_every_cell(state: DeviceState, happening: DeviceHappening) -> None:
    assert next_state(state, happening) == CELLS[state][HAPPENINGS.index(happening)]


def test_the_table_has_no_other_cells() -> None:
    assert set(TABLE) == {(state, happening) for state in STATES for happening in HAPPENINGS}


def test_no_trouble_makes_a_device_better_and_nothing_but_itself_brings_a_lost_one_back() -> None:
    for (state, happening), then in TABLE.items():
        assert happening in GOOD or WORSE[then] >= WORSE[state], (state, happening)
        assert state != "lost" or then == "lost" or happening == "renewed"


# --- Xids ------------------------------------------------------------------------------------------


def test_each_xid_has_one_row_and_a_bucket_that_leads_somewhere() -> None:
    numbers = [row.number for row in ROWS]
    assert len(numbers) == len(set(numbers))
    assert {row.bucket for row in ROWS} <= set(BY_BUCKET) == set(get_args(Bucket))
    for row in ROWS:
        assert not (row.by_program and row.bucket != "restart"), "a program breaks no device"
        assert row.bucket not in ("drain", "lost") or row.action, f"{row}: what is to be done?"
        assert row.bucket != "lost" or row.ends == "everybody", "what ran there is gone"


def test_an_unknown_xid_fails_safe() -> None:
    row = meaning(9999)
    assert (row.bucket, row.ends, row.by_program) == ("suspect", "nobody", False)


def test_an_xid_that_follows_from_a_kill_has_no_consequence() -> None:
    assert BY_BUCKET[meaning(45).bucket] is None


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
