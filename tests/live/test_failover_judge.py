"""The judge of storms over two controllers, on histories made by hand."""

from __future__ import annotations

import pytest

from tests.live.failover_judge import (
    Arrived,
    Asked,
    Listed,
    Reign,
    Stretch,
    Submitted,
    Written,
    judge_attempts,
    judge_devices,
    judge_lists,
    judge_signs,
    judge_submissions,
    judge_writers,
)

REIGNS = (Reign(1, 100), Reign(1, 101), Reign(2, 200))
ENTRIES = (Written(1, 1, 100), Written(2, 1, 101), Written(3, 2, 200))
ARRIVED = (Arrived(2, "k1", "j1"), Arrived(5, "k2", "j2"), Arrived(9, "k3", "j3"))


def submitted(number: int, began_s: float, ended_s: float) -> Submitted:
    return Submitted(Asked(began_s, ended_s), f"k{number}", f"j{number}")


def listed(began_s: float, ended_s: float, *numbers: int) -> Listed:
    return Listed(Asked(began_s, ended_s), frozenset(f"j{number}" for number in numbers))


def test_each_term_writes_by_its_own_connections() -> None:
    assert not list(judge_writers(ENTRIES, REIGNS))


def test_a_sign_of_who_did_not_lead_is_found() -> None:
    assert not list(judge_signs(REIGNS, REIGNS))
    assert len(list(judge_signs((*REIGNS, Reign(2, 101)), REIGNS))) == 1


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        (Written(4, 2, 101), "did not lead in it"),
        (Written(4, 1, 101), "is of term 1"),
        (Written(5, 2, 200), "entries 4 to 4 are missing"),
    ],
)
def test_an_entry_of_who_did_not_lead_is_found(entry: Written, complaint: str) -> None:
    found = list(judge_writers((*ENTRIES, entry), REIGNS))
    assert len(found) == 1 and complaint in found[0]


def test_submissions_at_the_same_time_may_arrive_in_any_order() -> None:
    acknowledged = (submitted(2, 0.0, 4.0), submitted(1, 1.0, 5.0), submitted(3, 4.5, 6.0))
    assert not list(judge_submissions(acknowledged, ARRIVED))


@pytest.mark.parametrize(
    ("acknowledged", "arrived", "complaint"),
    [
        ((submitted(4, 0, 1),), ARRIVED, "is lost"),
        ((submitted(1, 0, 1),), (Arrived(2, "k1", "j7"),), "is lost"),
        ((), (*ARRIVED, Arrived(10, "k3", "j4")), "arrived 2 times"),
        ((submitted(2, 0, 1), submitted(1, 2, 3)), ARRIVED, "explained by entry 2"),
    ],
)
def test_what_is_wrong_with_submissions_is_found(
    acknowledged: tuple[Submitted, ...], arrived: tuple[Arrived, ...], complaint: str
) -> None:
    found = list(judge_submissions(acknowledged, arrived))
    assert len(found) == 1 and complaint in found[0]


def test_a_list_shows_all_that_was_acknowledged_before_and_may_show_more() -> None:
    acknowledged = (submitted(1, 0.0, 1.0), submitted(2, 2.0, 5.0))
    lists = (listed(1.5, 1.6, 1), listed(2.5, 3.0, 1, 2), listed(2.6, 3.5, 1), listed(5.5, 6.0, 1, 2, 3))
    assert not list(judge_lists(lists, acknowledged, ARRIVED))


@pytest.mark.parametrize(
    ("lists", "complaint"),
    [
        ((listed(3, 4, 1, 3),), "has a gap"),
        ((listed(3, 4, 1, 4),), "never arrived"),
        ((listed(3, 4),), "explained by entry 0"),
        ((listed(3, 4, 1, 2), listed(5, 6, 1)), "explained by entry 1"),
    ],
)
def test_a_list_of_a_leader_that_is_one_no_more_is_found(lists: tuple[Listed, ...], complaint: str) -> None:
    found = list(judge_lists(lists, (submitted(1, 0.0, 1.0),), ARRIVED))
    assert len(found) == 1 and complaint in found[0]


def test_two_on_a_device_and_two_attempts_at_once_are_found() -> None:
    one = Stretch("j1", 1, "a:0", 0.0, 5.0)
    assert not list(
        judge_devices((one, Stretch("j2", 1, "a:0", 5.5, 6.0), Stretch("j3", 1, "a:1", 1.0, 2.0)))
    )
    (found,) = judge_devices((one, Stretch("j3", 1, "b:0", 2.0, 2.5), Stretch("j2", 1, "a:0", 4.9, 6.0)))
    assert found.startswith("device a:0")
    (found,) = judge_devices((one, Stretch("j1", 2, "b:0", 4.0, 6.0)))
    assert found.startswith("job j1")


def test_an_attempt_that_was_started_twice_is_found() -> None:
    assert not list(judge_attempts({"j1": (1, 3)}, ("j1",), {"j1": 1}))
    assert len(list(judge_attempts({"j1": (1, 2, 2)}, ("j1",), {"j1": 1}))) == 1
    assert len(list(judge_attempts({"j1": (2, 1)}, ("j1",), {"j1": 1}))) == 1
    assert len(list(judge_attempts({"j1": (1,)}, ("j1",), {}))) == 1
