"""The pure half of looking after a daemon: what is wrong, what to do, what happened to its clients."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.mps.detection import Mode, choose
from cotenant.mps.health import (
    SILENT_MAX,
    TABLE,
    DaemonCondition,
    Remedy,
    Server,
    Sight,
    condition,
    faults,
    remedy,
)
from cotenant.mps.process import MpsProcessIdentity
from cotenant.mps.replies import ServerState

SIGHTS = {
    DaemonCondition.STRANGER: Sight(stranger=True, ours=1),
    DaemonCondition.ABSENT: Sight(ours=0),
    DaemonCondition.DOUBLED: Sight(ours=2),
    DaemonCondition.DISPLACED: Sight(ours=1, in_place=False),
    DaemonCondition.WEDGED: Sight(ours=1, silent=SILENT_MAX),
    DaemonCondition.HEALTHY: Sight(ours=1),
}


def identity(pid: int) -> MpsProcessIdentity:
    return MpsProcessIdentity(pid=pid, start_ticks=1, boot_id="b")


def test_every_cell_of_the_table_can_be_reached_and_there_is_no_other() -> None:
    assert {condition(sight) for sight in SIGHTS.values()} == set(DaemonCondition)
    assert set(TABLE) == set(itertools.product(DaemonCondition, (False, True)))
    for wanted, sight in SIGHTS.items():
        for in_use in (False, True):
            assert condition(sight) is wanted
            assert remedy(sight, in_use=in_use) is TABLE[wanted, in_use]


@given(
    st.builds(
        Sight,
        stranger=st.booleans(),
        ours=st.integers(0, 3),
        in_place=st.booleans(),
        silent=st.integers(0, 5),
    )
)
def test_nothing_is_ended_under_running_jobs_nor_of_somebody_else(sight: Sight) -> None:
    assert remedy(sight, in_use=True) is not Remedy.REPLACE
    if sight.stranger:
        assert remedy(sight, in_use=False) is Remedy.REFUSE


def test_one_silence_is_no_proof() -> None:
    assert condition(Sight(ours=1, silent=SILENT_MAX - 1)) is DaemonCondition.HEALTHY


# --- Faults ----------------------------------------------------------------------------------------

SERVER, FIRST, SECOND = identity(10), identity(11), identity(12)
WELL = Server(identity=SERVER, state=ServerState.ACTIVE, clients=(FIRST, SECOND))
ILL = Server(identity=SERVER, state=ServerState.FAULT, clients=(FIRST, SECOND))
EVERYBODY = (SERVER, FIRST, SECOND)


def test_a_server_that_falls_into_fault_is_told_once() -> None:
    assert faults([WELL], [ILL], EVERYBODY) == ["its MPS server is in FAULT"]
    assert faults([ILL], [ILL], EVERYBODY) == []
    assert faults([], [ILL], EVERYBODY) == ["its MPS server is in FAULT"]


def test_a_server_that_goes_away_under_its_clients_is_a_fault_and_after_them_is_none() -> None:
    assert faults([WELL], [], [FIRST]) == ["its MPS server (pid 10) went away under 1 clients"]
    assert faults([WELL], [], []) == []
    assert faults([Server(identity=SERVER)], [], [FIRST]) == []
    assert faults([WELL], [], EVERYBODY) == [], "not listed any more, and alive"


# --- The choice of daemons -------------------------------------------------------------------------

CHOICES: dict[str, tuple[Mode, tuple[str, ...], bool, tuple[tuple[str, ...], ...], str]] = {
    "per device by default": ("auto", ("a", "b"), True, (("a",), ("b",)), "the default"),
    "per device when asked": ("per-device", ("a", "b"), True, (("a",), ("b",)), "a fault reaches one device"),
    "per host when asked": ("per-host", ("a", "b"), True, (("a", "b"),), "one daemon for all devices"),
    "not per host with several users": ("per-host", ("a", "b"), False, (("a",), ("b",)), "several users"),
    "none when switched off": ("off", ("a",), True, (), "switched off"),
    "none without devices": ("auto", (), True, (), "no device here"),
}


@pytest.mark.parametrize(("mode", "uuids", "one_uid", "groups", "why"), CHOICES.values(), ids=CHOICES.keys())
def test_the_choice(
    mode: Mode, uuids: tuple[str, ...], one_uid: bool, groups: tuple[tuple[str, ...], ...], why: str
) -> None:
    choice = choose(mode, uuids, one_uid=one_uid)
    assert choice.groups == groups
    assert why in choice.reason
    assert choice.per_host is (len(groups) == 1 and len(uuids) == 2)
