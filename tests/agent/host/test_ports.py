"""Agents that know nothing of each other give their gangs different ports; see agent/host/locks.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.agent.host.locks import (
    FIXED_FIRST,
    OWN_END,
    OWN_FIRST,
    BadPorts,
    DeviceLocks,
    LockOwner,
    first_port,
)

HOME = Path("/home/ada/.local/state/cotenant/agent")


def test_a_range_that_was_set_is_taken_as_it_is() -> None:
    assert first_port(15_000, 200, alone=True, uid=1, folder=HOME) == 15_000
    assert first_port(15_000, 200, alone=False, uid=1, folder=HOME) == 15_000


def test_hosts_that_must_find_each_other_keep_to_the_fixed_range() -> None:
    assert first_port(0, 200, alone=False, uid=1, folder=HOME) == FIXED_FIRST


def test_an_agent_has_the_same_ports_after_a_restart() -> None:
    assert len({first_port(0, 200, alone=True, uid=7, folder=HOME) for _ in range(3)}) == 1


def test_ten_users_of_one_machine_mostly_have_ports_of_their_own() -> None:
    firsts = {first_port(0, 200, alone=True, uid=1000 + n, folder=HOME) for n in range(10)}
    assert (
        len(firsts) >= 8
    )  # 63 ranges: by chance two of ten may share one; all in one would be the old habit


def test_agents_of_one_machine_never_hold_the_same_ports(tmp_path: Path) -> None:
    """Thirty agents draw from the same 63 ranges, some have larger ones: no port is held twice."""
    owner = LockOwner(pid=1, uid=1, user="ada", host="h", since="now", token="t")
    agents = [DeviceLocks(tmp_path, owner) for _ in range(30)]
    held: list[range] = []
    for number, locks in enumerate(agents):
        count = 300 if number % 3 == 0 else 200
        first = first_port(0, count, alone=True, uid=7, folder=HOME / str(number // 2), take=locks.take)
        assert not any(set(range(first, first + count)) & set(other) for other in held)
        held.append(range(first, first + count))
    agents[4].release()
    assert first_port(0, 200, alone=True, uid=7, folder=HOME / "2", take=agents[4].take) == held[4].start
    for locks in agents:
        locks.release()


def test_where_all_ranges_are_held_a_gang_still_gets_a_port() -> None:
    assert first_port(0, 200, alone=True, uid=7, folder=HOME, take=lambda names: "in use") >= OWN_FIRST


@given(st.integers(1, OWN_END - OWN_FIRST), st.integers(0, 2**31), st.text(max_size=40))
def test_the_range_stays_where_no_client_is_given_a_port(count: int, uid: int, name: str) -> None:
    first = first_port(0, count, alone=True, uid=uid, folder=Path("/", name.replace("\0", "")))
    assert first >= OWN_FIRST
    assert first + count <= OWN_END


@pytest.mark.parametrize(("first", "count"), [(80, 200), (65_500, 200), (0, 20_000)])
def test_a_range_that_cannot_be_is_refused_with_the_setting_s_name(first: int, count: int) -> None:
    with pytest.raises(BadPorts, match=r"agent\.port_"):
        first_port(first, count, alone=True, uid=1, folder=HOME)
