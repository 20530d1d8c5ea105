"""What is left of a pair while the bounds of both are kept."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.performance import (
    UNBOUNDED,
    Interference,
    ShareBound,
    keep_bounds,
    leaves_too_little,
)

xis = st.builds(
    lambda first, second: Interference(first=first, second=second, source="observed"),
    st.floats(1.0, 4.0),
    st.floats(1.0, 4.0),
)
bounds = st.one_of(st.just(UNBOUNDED), st.builds(ShareBound, max=st.floats(1.01, 3.0), is_own=st.booleans()))
GUEST_MIN = 0.2


@given(xis, bounds, bounds)
def test_who_shares_keeps_the_bounds_that_count(
    xi: Interference, first: ShareBound, second: ShareBound
) -> None:
    kept = keep_bounds(xi, first, second, GUEST_MIN)
    if kept.over_bound:
        return
    for mine, own, other in ((kept.first, first, second), (kept.second, second, first)):
        counts = own.max if own.is_own or not other.is_own else inf
        assert mine <= counts + 1e-9
        assert counts != inf or mine <= max(1.0 / GUEST_MIN, xi.first, xi.second) + 1e-9


@given(xis, bounds, bounds)
def test_it_does_not_matter_who_comes_first(xi: Interference, first: ShareBound, second: ShareBound) -> None:
    one = keep_bounds(xi, first, second, GUEST_MIN)
    other = keep_bounds(xi.swap(), second, first, GUEST_MIN).swap()
    assert (one.first, one.second, one.over_bound) == (other.first, other.second, other.over_bound)


def test_a_guest_that_was_seen_to_hardly_move_is_left_too_little() -> None:
    seen, own = Interference(first=1.1, second=7.5, source="observed"), ShareBound(max=1.1, is_own=True)
    assert leaves_too_little(seen, own, UNBOUNDED, GUEST_MIN)
    assert leaves_too_little(seen.swap(), UNBOUNDED, own, GUEST_MIN)
    assert not leaves_too_little(seen, own, UNBOUNDED, 0.1)
    assert not leaves_too_little(seen, UNBOUNDED, UNBOUNDED, GUEST_MIN), "nobody waits for anybody"


@given(xis)
def test_without_bounds_nothing_changes(xi: Interference) -> None:
    assert keep_bounds(xi, UNBOUNDED, UNBOUNDED, GUEST_MIN) is xi


@pytest.mark.parametrize(
    ("first_xi", "guest_xi", "share_max", "guest"),
    [
        (1.5, 1.0, 1.1, 5.0),  # u = 0.1 / 0.5
        (1.4, 1.5, 1.2, 3.0),  # u = 0.5, and beside the job it takes 1.5 times as long
        (1.08, 1.9, 1.1, 1.9),  # within the bound: nobody waits
    ],
)
def test_the_guest_pays_for_the_bound(
    first_xi: float, guest_xi: float, share_max: float, guest: float
) -> None:
    xi = Interference(first=first_xi, second=guest_xi, source="observed")
    kept = keep_bounds(xi, ShareBound(max=share_max, is_own=True), UNBOUNDED, GUEST_MIN)
    assert not kept.over_bound and kept.second == pytest.approx(guest)
    assert kept.first == pytest.approx(min(first_xi, share_max))


def test_a_guest_that_would_hardly_move_is_none() -> None:
    xi = Interference(first=2.0, second=1.2, source="observed")
    assert keep_bounds(xi, ShareBound(max=1.1, is_own=True), UNBOUNDED, GUEST_MIN).over_bound
    assert not keep_bounds(xi, ShareBound(max=1.1, is_own=True), UNBOUNDED, 0.05).over_bound
