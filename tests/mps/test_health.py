"""Answers of the control daemon, as observed without a GPU on 550.163.01, and everything close to them; then
the pure half of looking after a daemon: what is wrong, what to do, what happened to its clients.
"""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.mps.answers import (
    Incomplete,
    Rejected,
    ServerState,
    answer_before_sentinel,
    control_version,
    percentage,
    pids,
    query,
    refuses_termination,
    server_state,
)
from cotenant.mps.detection import Mode, choose
from cotenant.mps.health import TABLE, DaemonCondition, Remedy, condition
from cotenant.mps.process import MpsProcessIdentity
from cotenant.mps.servers import DaemonStatus, Server, losses

# --- Answers ---------------------------------------------------------------------------------------


SENTINEL = "end-of-answer-7f3a"
COMPLAINT = f'Unknown command "{SENTINEL}"'
LINES = st.lists(st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=30), max_size=5)
PIDS = st.integers(min_value=0, max_value=2**22)


class TestSentinel:
    def test_a_query_ends_with_it(self) -> None:
        assert query("get_server_list", SENTINEL) == f"get_server_list\n{SENTINEL}\n"

    @pytest.mark.parametrize("command", ["", " ", "quit\nquit", "quit\0"])
    def test_only_one_command_goes_into_a_query(self, command: str) -> None:
        with pytest.raises(ValueError, match="single-line"):
            query(command, SENTINEL)

    @pytest.mark.parametrize("word", ["quit", "ps", "a b c d e f", "x" * 65, "8-starts-with-a-digit"])
    def test_it_can_be_no_real_command(self, word: str) -> None:
        with pytest.raises(ValueError, match="sentinel"):
            query("ps", word)

    def test_none_is_an_answer_once_it_came_back(self) -> None:
        assert pids(answer_before_sentinel(f"{COMPLAINT}\n", SENTINEL)) == ()

    @pytest.mark.parametrize("output", ["", "\n", "123\n", 'Unknown command "other"\n', f"{SENTINEL}\n"])
    def test_without_it_nothing_is_believed(self, output: str) -> None:
        with pytest.raises(Incomplete):
            answer_before_sentinel(output, SENTINEL)

    @given(LINES)
    def test_what_stands_before_it_is_the_answer(self, lines: list[str]) -> None:
        text = "".join(f"{line}\n" for line in lines)
        assert f"{answer_before_sentinel(f'{text}{COMPLAINT}', SENTINEL)}\n" == (text or "\n")

    @given(LINES, st.integers(min_value=1, max_value=200))
    def test_a_cut_answer_is_never_taken_for_a_whole_one(self, lines: list[str], cut: int) -> None:
        whole = "".join(f"{line}\n" for line in lines) + COMPLAINT
        with pytest.raises(Incomplete):
            answer_before_sentinel(whole[: max(0, len(whole) - len('7f3a"') - cut)], SENTINEL)


ERRORS = [
    "Server 999 not found",
    "Server not found",
    'Unknown command "lspart"',
    "Insufficient privileges for UID 1000",
    "Not enough privilege to execute quit command",
    "A server PID is required",
    "Cannot find MPS control daemon process",
    "Cannot send command to MPS control daemon process",
    "Cannot access CUDA_MPS_PIPE_DIRECTORY=/run/x",
    "Invalid priority value - must be 0 or 1!",
    "An instance of this daemon is already running",
]


@pytest.mark.parametrize("text", ERRORS)
def test_an_error_is_never_taken_for_a_value(text: str) -> None:
    """All of these come with exit status 0 or 1 alike, on standard output."""
    for parse in (pids, percentage, server_state):
        with pytest.raises(Rejected, match=text.split("(")[0][:20]):
            parse(text + "\n")
    assert refuses_termination(f"{text}\n")


@given(st.lists(PIDS, max_size=20))
def test_lists_hold_one_pid_a_line(expected: list[int]) -> None:
    assert pids("".join(f"{pid}\n" for pid in expected)) == tuple(expected)


@pytest.mark.parametrize("text", ["12x", "-1", "1 2", "٣", "9" * 5000])
def test_anything_else_in_a_list_is_rejected(text: str) -> None:
    with pytest.raises(Rejected):
        pids(f"12\n{text}\n")


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("INITIALIZING", ServerState.INITIALIZING),
        ("ACTIVE\n", ServerState.ACTIVE),
        ("Server 12 is in state FAULT.", ServerState.FAULT),
        ("INACTIVE", ServerState.UNKNOWN),
        ("ACTIVE then FAULT", ServerState.UNKNOWN),
        ("", ServerState.UNKNOWN),
    ],
)
def test_server_states(text: str, state: ServerState) -> None:
    assert server_state(text) is state


def test_the_percentage_is_the_value_in_force() -> None:
    assert percentage("100.0\n") == 100.0
    for text in ("", "0.0", "120", "50\n60", "nan", "1e1"):
        with pytest.raises(Rejected):
            percentage(text)


@pytest.mark.parametrize(
    ("text", "refuses"),
    [
        ("0", False),
        ("CUDA_SUCCESS\n", False),
        ("Server 7 not found\nServer 7 not found\n1\n", True),
        ("1", True),
        ("", False),
        ("client is leaving", False),
    ],
)
def test_a_termination_that_is_refused(text: str, refuses: bool) -> None:
    assert refuses_termination(text) is refuses


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("CUDA MPS Control binary version: 13030\n", (13, 3)),
        ("CUDA MPS Control binary version: 12090", (12, 9)),
        ("Cannot find MPS control daemon process\n", None),
        ("", None),
    ],
)
def test_the_version(text: str, version: tuple[int, int] | None) -> None:
    assert control_version(text) == version


@given(st.text(max_size=300))
def test_no_text_whatsoever_breaks_a_parser(text: str) -> None:
    """A daemon of another version may answer anything; it is rejected, never believed and never a crash."""
    for parse in (pids, percentage, server_state):
        with contextlib.suppress(Rejected):
            parse(text)
    refuses_termination(text)
    assert control_version(text) is None or "version" in text


# --- Daemons ---------------------------------------------------------------------------------------


def identity(pid: int) -> MpsProcessIdentity:
    return MpsProcessIdentity(pid=pid, start_ticks=1, boot_id="b")


def test_the_worst_that_applies_counts_and_each_has_a_remedy() -> None:
    order = list(DaemonCondition)
    assert set(TABLE) == set(order)
    assert condition({}) is DaemonCondition.HEALTHY
    for number, wanted in enumerate(order):
        assert condition(dict.fromkeys(order[number:], True)) is wanted
        assert condition({**dict.fromkeys(order, False), wanted: True}) is wanted


def test_nothing_is_ended_under_running_jobs_nor_of_somebody_else() -> None:
    assert Remedy.REPLACE not in {in_use for _, in_use in TABLE.values()}
    assert set(TABLE[DaemonCondition.STRANGER]) == {Remedy.REFUSE}


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
    chosen, reason = choose(mode, uuids, one_uid=one_uid)
    assert chosen == groups
    assert why in reason
