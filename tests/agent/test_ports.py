"""Agents that know nothing of each other give their gangs different ports; see agent/host/ports.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.agent.host.ports import FIXED_FIRST, OWN_END, OWN_FIRST, BadPorts, first_port

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


@given(st.integers(1, OWN_END - OWN_FIRST), st.integers(0, 2**31), st.text(max_size=40))
def test_the_range_stays_where_no_client_is_given_a_port(count: int, uid: int, name: str) -> None:
    first = first_port(0, count, alone=True, uid=uid, folder=Path("/", name.replace("\0", "")))
    assert first >= OWN_FIRST
    assert first + count <= OWN_END


@pytest.mark.parametrize(("first", "count"), [(80, 200), (65_500, 200), (0, 20_000)])
def test_a_range_that_cannot_be_is_refused_with_the_setting_s_name(first: int, count: int) -> None:
    with pytest.raises(BadPorts, match=r"agent\.port_"):
        first_port(first, count, alone=True, uid=1, folder=HOME)
