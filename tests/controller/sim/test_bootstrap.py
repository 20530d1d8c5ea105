"""Paired block bootstrap: what a ratio may be off by, over windows, cells and groups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.sim.results.paired import Ratio, paired_windows, ratio

NUMBERS = st.floats(0.1, 1e6)
WINDOWS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=12)


def whole(found: Ratio | None) -> tuple[float, float, float]:
    assert found is not None and found.low is not None and found.high is not None
    return found.mean, found.low, found.high


def test_a_constant_ratio_is_sure_however_much_windows_differ() -> None:
    """What windows have in common drops out: this is what pairing is for."""
    windows = [(0.9 * value, value) for value in (1.0, 50.0, 3e5, 7.0)]
    mean, low, high = whole(ratio([[windows]]))
    assert (mean, low, high) == pytest.approx((0.9, 0.9, 0.9))
    assert Ratio(mean, low, high).differs


def test_one_window_says_nothing_of_others() -> None:
    assert ratio([[[(2.0, 1.0)]]]) == Ratio(2.0, None, None)
    assert ratio([[[(2.0, 1.0), (0.0, 0.0)]]]) == Ratio(2.0, None, None)
    assert not Ratio(2.0, None, None).differs


def test_nobody_waited_is_no_ratio_and_a_window_without_waiting_divides_nothing() -> None:
    assert ratio([[[(0.0, 0.0), (0.0, 0.0)]]]) is None
    assert ratio([]) is None
    mean, low, high = whole(ratio([[[(0.0, 0.0), (2.0, 4.0), (0.0, 0.0), (3.0, 6.0)]]]))
    assert (mean, low, high) == pytest.approx((0.5, 0.5, 0.5))


def test_groups_that_disagree_are_wider_than_their_windows_together() -> None:
    """Twenty windows of two VCs are no twenty VCs."""
    one, other = [(1.0, 2.0)] * 10, [(2.0, 1.0)] * 10
    apart, together = whole(ratio([[one], [other]])), whole(ratio([[[*one, *other]]]))
    assert apart[0] == pytest.approx(1.0)
    assert apart[2] - apart[1] > together[2] - together[1]
    assert apart[1:] == pytest.approx((0.5, 2.0))


def test_cells_of_a_group_are_drawn_again_too() -> None:
    low, high = whole(ratio([[[(1.0, 2.0)] * 5, [(2.0, 1.0)] * 5]]))[1:]
    assert (low, high) == pytest.approx((0.5, 2.0))


@given(windows=WINDOWS, seed=st.integers(0, 5))
def test_the_same_seed_gives_the_same_interval_and_it_stays_between_the_windows(
    windows: list[tuple[float, float]], seed: int
) -> None:
    found = whole(ratio([[windows]], seed=seed, draws=200))
    assert found == whole(ratio([[windows]], seed=seed, draws=200))
    ratios = [one / other for one, other in windows]
    assert min(ratios) * (1 - 1e-9) <= found[1] <= found[2] <= max(ratios) * (1 + 1e-9)


def summary(
    label: str, window: int, jct_s: float, *, seed: int = 0, interrupted: bool = False
) -> dict[str, object]:
    times = {"mean": jct_s}
    return {
        "label": label, "window": window, "seed": seed, "interrupted": interrupted, "jct_s": times,
        "wait_s": {"mean": 0.0}, "bsld": None,
    }  # fmt: skip


def test_windows_are_compared_with_the_first_policy_on_the_same_windows() -> None:
    both = [summary("a", 0, 10.0), summary("b", 0, 5.0), summary("a", 1, 40.0), summary("b", 1, 20.0)]
    more = [summary("a", 2, 1.0), summary("b", 2, 9.0, interrupted=True), summary("b", 3, 9.0)]
    (found,) = paired_windows([*both, *more])
    assert (found["policy"], found["against"], found["windows"]) == ("b", "a", 2)
    assert found["jct_ratio"] == pytest.approx({"mean": 0.5, "low": 0.5, "high": 0.5})
    assert found["wait_ratio"] is None and found["bsld_ratio"] is None


def test_seeds_of_a_window_are_one_block() -> None:
    runs = [
        summary(label, 0, jct_s, seed=seed) for seed in (0, 1) for label, jct_s in (("a", 2.0), ("b", 3.0))
    ]
    (found,) = paired_windows(runs)
    assert found["jct_ratio"] == {"mean": 1.5, "low": None, "high": None}
