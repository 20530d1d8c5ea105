"""Every cell of the lifecycle table: the allowed changes lead where the design says, all others raise."""

from __future__ import annotations

import pytest

from cotenant.controller.domain.lifecycle import (
    ENDED,
    LEAVING,
    LIFECYCLE,
    ON_DEVICES,
    WAITING,
    Change,
    InvalidTransition,
    Phase,
    advance,
)

# A second, independent writing of the table: rows are phases, entries are "change>after".
WRITTEN = {
    "blocked": "unblock>queued hold>held cancel>cancelled",
    "held": "release>queued block>blocked cancel>cancelled",
    "queued": "block>blocked hold>held reserve>reserved launch>loading cancel>cancelled",
    "reserved": "launch>loading unreserve>queued hold>held cancel>cancelled",
    "loading": "first-step>running stop>stopping save-and-stop>checkpointing LEAVES",
    "running": "save-and-stop>checkpointing stop>stopping LEAVES",
    "checkpointing": "stop>stopping LEAVES",
    "stopping": "LEAVES",
    "done": "begin-again>queued",
    "failed": "begin-again>queued",
    "cancelled": "begin-again>queued",
}
LEAVES = "leave>queued leave-blocked>blocked leave-held>held finish>done fail>failed cancel>cancelled"
WANTED = {
    (Phase(phase), Change(entry.split(">")[0])): Phase(entry.split(">")[1])
    for phase, row in WRITTEN.items()
    for entry in row.replace("LEAVES", LEAVES).split()
}


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("change", Change)
def test_each_cell(phase: Phase, change: Change) -> None:
    if (phase, change) in WANTED:
        assert advance(phase, change) is WANTED[phase, change]
    else:
        with pytest.raises(InvalidTransition, match=f"{change} is not possible for a job that is {phase}"):
            advance(phase, change)


def test_every_phase_is_either_waiting_reserved_on_devices_or_ended() -> None:
    groups = [WAITING, frozenset({Phase.RESERVED}), ON_DEVICES, ENDED]
    assert sorted(phase for group in groups for phase in group) == sorted(Phase)
    assert LEAVING < ON_DEVICES


def test_what_has_ended_stays_ended_unless_somebody_has_it_begin_again() -> None:
    assert {change for phase, change in LIFECYCLE if phase in ENDED} == {Change.BEGIN_AGAIN}


def test_every_phase_can_be_cancelled_and_every_phase_but_queued_or_held_at_arrival_can_be_reached() -> None:
    assert {phase for phase, change in LIFECYCLE if change is Change.CANCEL} == set(Phase) - ENDED
    assert set(LIFECYCLE.values()) == set(Phase)
