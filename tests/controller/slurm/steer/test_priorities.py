"""Priorities: the order holds, few are set, and nothing is set that Slurm would take for something else."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.slurm.steer.core.priorities import GAP, HIGHEST, LOWEST, changes
from tests.controller.slurm.steer.building import job, with_priorities

ORDERS = st.lists(st.integers(1, 60), min_size=1, max_size=30, unique=True)


def settled(ids: list[int], priorities: dict[int, int], touched: set[int], most: int = 1000) -> int:
    """Round after round until nothing changes; how many were set. `priorities` is what Slurm has."""
    count = 0
    for _ in range(200):
        found = changes(with_priorities(ids, priorities), touched, most)
        assert len(found) <= most
        if not found:
            return count
        assert all(LOWEST <= each <= HIGHEST for each in found.values())
        priorities.update(found)
        touched.update(found)
        count += len(found)
    raise AssertionError("it never settles")


@settings(max_examples=100)
@given(
    ids=ORDERS,
    other=st.lists(st.integers(0, 4_294_967_293), min_size=60, max_size=60),
    most=st.integers(1, 40),
)
def test_after_some_rounds_the_order_holds(ids: list[int], other: list[int], most: int) -> None:
    """Whatever priorities Slurm had, and however few are set in a round."""
    priorities = {each: other[each - 1] for each in ids}
    settled(ids, priorities, set(), most)
    assert sorted(ids, key=lambda each: -priorities[each]) == ids
    assert len({priorities[each] for each in ids}) == len(ids)


@settings(max_examples=100)
@given(first=ORDERS, second=ORDERS)
def test_jobs_that_stand_right_among_each_other_keep_theirs(first: list[int], second: list[int]) -> None:
    priorities = dict.fromkeys({*first, *second}, 100)
    touched: set[int] = set()
    settled(first, priorities, touched)
    again = [each for each in second if each in first]
    standing = sum(each not in first for each in second)
    moved = settled(second, priorities, touched)
    assert sorted(second, key=lambda each: -priorities[each]) == second
    longest = longest_common(again, [each for each in first if each in again])
    assert moved <= standing + len(again) - longest


def longest_common(one: list[int], other: list[int]) -> int:
    """Of two orders of the same: how many can stay."""
    best: list[int] = []
    for place in (other.index(each) for each in one):
        best.append(1 + max((best[at] for at in range(len(best)) if other.index(one[at]) < place), default=0))
    return max(best, default=0)


def test_one_that_comes_in_between_is_the_only_one_that_is_set() -> None:
    priorities = {1: 10, 2: 10, 3: 10, 4: 7}
    touched: set[int] = set()
    assert settled([1, 2, 3], priorities, touched) == 3
    found = changes(with_priorities([1, 4, 2, 3], priorities), touched, 10)
    assert list(found) == [4] and priorities[2] < found[4] < priorities[1]


def test_a_gap_that_is_full_makes_all_be_numbered_anew() -> None:
    priorities, touched = {1: HIGHEST, 2: HIGHEST - 1, 3: 5}, {1, 2}
    assert settled([1, 3, 2], priorities, touched) == 3
    assert priorities[1] - priorities[3] == GAP


def test_a_priority_in_our_range_that_somebody_else_set_is_not_taken_for_ours() -> None:
    priorities = {1: LOWEST + 10, 2: LOWEST + 5}
    assert list(changes(with_priorities([1, 2], priorities), set(), 10)) == [1, 2]


def test_the_first_ones_are_set_first() -> None:
    assert list(changes([job(each) for each in (5, 3, 9)], set(), 2)) == [5, 3]


@pytest.mark.parametrize("count", [1, 2_000])
def test_new_ones_at_the_front_again_and_again_leave_the_others_alone(count: int, seed: int) -> None:
    random = Random(seed)
    ids = list(range(1, count + 1))
    priorities, touched = dict.fromkeys(range(1, count + 31), 3), set[int]()
    settled(ids, priorities, touched, most=count)
    for new in range(count + 1, count + 31):
        ids.insert(random.choice((0, len(ids))), new)
        assert settled(ids, priorities, touched) == 1
