"""Whom a FAULT of a server concerns: what is known, look by look, and who is ended then."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.agent.gpus.mps_rules import NEWS_LOOKS, RECOVERY_LOOKS, FaultReach, connect_groups

PIPE = "/run/c/mps/1"


def groups(*names: str) -> list[frozenset[str]]:
    """`"ab"`: a job on the devices a and b."""
    return [frozenset(name) for name in names]


class Look:
    def __init__(self) -> None:
        self._reach = FaultReach()

    def __call__(
        self, jobs: Collection[str], known: str = "", *, fault: bool = True, decide: bool = False
    ) -> list[str]:
        seen = {PIPE} if fault else set()
        ended = self._reach.look(seen, {PIPE: groups(*jobs)}, known, decide=decide)
        return ["".join(sorted(group)) for group in ended]


@pytest.mark.parametrize(
    ("jobs", "parts"),
    [
        ((), []),
        (("a", "b"), ["a", "b"]),
        (("a", "ab", "b", "c"), ["ab", "c"]),
        (("ab", "cd", "bc"), ["abcd"]),
    ],
    ids=" ".join,
)
def test_devices_that_share_clients_are_connected_also_over_others(
    jobs: tuple[str, ...], parts: list[str]
) -> None:
    assert sorted("".join(sorted(part)) for part in connect_groups(groups(*jobs))) == parts


@given(st.lists(st.frozensets(st.sampled_from("abcdef"), min_size=1), max_size=8))
def test_every_job_is_in_one_group_and_groups_share_no_device(jobs: list[frozenset[str]]) -> None:
    found = connect_groups(jobs)
    assert all(sum(job <= group for group in found) == 1 for job in jobs)
    assert sum(map(len, found)) == len(frozenset().union(*jobs))


def test_one_group_is_ended_at_once_and_told_once() -> None:
    look = Look()
    assert look(("a", "a")) == ["a"]
    assert look(("a",)) == []
    assert look((), fault=False) == []
    assert look(("a",)) == ["a"], "another fault"


def test_where_an_error_is_known_the_other_devices_clients_go_on() -> None:
    look = Look()
    assert look(("a", "ab", "c"), "b") == ["ab"]
    assert look(("ab", "c"), "ab") == []
    assert [look(("c",)) for _ in range(RECOVERY_LOOKS)] == [[]] * RECOVERY_LOOKS, "it may recover"
    assert look(("c",), fault=False) == []


def test_a_server_that_stays_in_fault_when_they_are_gone_takes_the_others_with_it() -> None:
    look = Look()
    assert look(("a", "b", "c"), "a") == ["a"]
    said = [look(("b", "c")) for _ in range(RECOVERY_LOOKS + 1)]
    assert said == [[]] * RECOVERY_LOOKS + [["b", "c"]]


def test_where_nobody_says_where_it_was_news_is_waited_for_and_then_all_are_ended() -> None:
    look = Look()
    assert [look(("a", "b")) for _ in range(NEWS_LOOKS + 1)] == [[]] * NEWS_LOOKS + [["a", "b"]]
    look = Look()
    assert [look(("a", "b")), look(("a", "b"), "b")] == [[], ["b"]]


def test_who_waits_for_a_verdict_does_not_wait_for_news() -> None:
    assert Look()(("a", "b"), decide=True) == ["a", "b"]
    look = Look()
    assert look(("a", "b"), "a", decide=True) == ["a"]
    assert look(("b",), decide=True) == [], "it may recover"


def test_a_server_without_clients_of_ours_ends_nobody() -> None:
    assert [Look()((), decide=decide) for decide in (False, True)] == [[], []]
