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
    DaemonStatus,
    Remedy,
    Server,
    ServerState,
    Sight,
    condition,
    losses,
    remedy,
)
from cotenant.mps.process import MpsProcessIdentity

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


def test_a_daemon_is_in_fault_as_long_as_a_server_of_it_is() -> None:
    assert DaemonStatus(shares=False, servers=(WELL, ILL)).in_fault
    assert not DaemonStatus(shares=True, servers=(WELL,)).in_fault


def test_a_server_that_goes_away_under_its_clients_is_a_loss_and_after_them_is_none() -> None:
    assert losses([WELL], [FIRST]) == ["its MPS server (pid 10) went away under 1 clients"]
    assert losses([WELL], []) == []
    assert losses([Server(identity=SERVER)], [FIRST]) == []
    assert losses([WELL], EVERYBODY) == [], "not listed any more, and alive"


# --- The choice of daemons -------------------------------------------------------------------------

CHOICES: dict[str, tuple[Mode, tuple[str, ...], bool, tuple[tuple[str, ...], ...], str]] = {
    "per host by default": ("auto", ("a", "b"), True, (("a", "b"),), "the default"),
    "per device when asked": ("per-device", ("a", "b"), True, (("a",), ("b",)), "a fault reaches one device"),
    "per host when asked": ("per-host", ("a", "b"), True, (("a", "b"),), "one daemon for all devices"),
    "per host and user with several users": ("auto", ("a", "b"), False, (("a", "b"),), "for each user"),
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
