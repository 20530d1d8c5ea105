"""Guests of a job that names a bound: a pair never measured is tried under the pace, and learned from."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.domain import SharingSettings, StartAttempt
from cotenant.controller.domain import events as ev
from cotenant.controller.performance import Interference, ShareBound, maxima, trial_ratios
from cotenant.controller.planning import Plan
from cotenant.controller.policies.record_slots import RecordSlots
from tests.controller.building import Desk, profile, report
from tests.controller.policies.test_bounds import job, lost

KNOWN: dict[str, Any] = {"profile": None, "memory_mib": 100}
"""Nobody knows how these fare beside others."""
UNKNOWN: dict[str, Any] = {"profile": None, "memory_mib": None}
BOUNDED = {**KNOWN, "share": "max=1.1"}


def desk_of(host: Any = None, **settings: Any) -> Desk:
    return Desk("cotenant", host or report("a", 1, memory_mib=4000), **settings)


def test_a_pair_never_measured_is_tried_under_the_pace_that_keeps_the_bound() -> None:
    """Half of the bounded job's time is taken to be idle, so the guest loses little and the job a tenth."""
    desk = desk_of()
    desk.run(1, **job("x.py", 400.0, resumable=False, **BOUNDED))
    desk.submit(2, **job("y.py", 300.0, **KNOWN))
    assert desk.phase(2) == "loading", desk.why(2)
    xi = desk.engine.ledger.pairs.interference(desk.job(2), desk.job(1))
    assert xi.trial == pytest.approx((1.0 / (1.0 - 0.5 / 1.1), 1.1))


@pytest.mark.parametrize(("busy", "phase"), [(0.1, "loading"), (0.6, "loading"), (1.0, "queued")])
def test_the_measured_busy_time_of_the_bounded_job_says_what_is_left_for_a_guest(
    busy: float, phase: str
) -> None:
    desk = desk_of()
    measured = profile(8, (1, 0.01, 100.0), duty=busy)
    desk.run(1, **job("x.py", 400.0, resumable=False, profile=measured, share="max=1.1"))
    desk.submit(2, **job("y.py", 300.0, profile=profile(8, (1, 0.01, 100.0), duty=0.9)))
    assert desk.phase(2) == phase, desk.why(2)


def test_a_kind_that_could_not_be_held_is_parted_and_not_tried_again_and_another_is() -> None:
    desk = desk_of()
    desk.run(1, **job("x.py", 2000.0, resumable=False, **BOUNDED))
    desk.submit(2, **job("y.py", 300.0, **KNOWN))
    desk.start(2)
    lost(desk, 1, 2)
    desk.durable(2, 4)
    desk.end(2, "stopped", step=4)
    desk.submit(3, **job("y.py", 300.0, **KNOWN))
    assert desk.phase(3) == "queued"
    desk.submit(4, **job("z.py", 300.0, **UNKNOWN))
    assert desk.phase(4) == "loading", desk.why(4)


def test_a_kind_that_could_be_held_is_predicted_from_its_measured_speed() -> None:
    desk = desk_of()
    desk.run(1, **job("x.py", 2000.0, resumable=False, **BOUNDED))
    desk.submit(2, **job("y.py", 300.0, **KNOWN))
    desk.start(2)
    for _ in range(2):
        desk.engine.ledger.pairs.observe(desk.job(1), desk.job(2), 1.05)
        desk.engine.ledger.pairs.observe(desk.job(2), desk.job(1), 1.25)
    xi = desk.engine.ledger.pairs.interference(desk.job(2), desk.job(1))
    assert (xi.first, xi.second, xi.trial, xi.over_bound) == (1.25, 1.05, None, False)


def test_without_a_bound_of_its_own_nobody_is_tried_and_nobody_is_limited() -> None:
    desk = desk_of(sharing=SharingSettings(max=1.1))
    desk.run(1, **job("x.py", 400.0, resumable=False, **KNOWN))
    desk.submit(2, **job("y.py", 300.0, **KNOWN))
    desk.submit(3, **job("z.py", 300.0, **UNKNOWN))
    assert [desk.phase(2), desk.phase(3)] == ["queued", "queued"]
    assert desk.engine.ledger.pairs.interference(desk.job(2), desk.job(1)).trial is None


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_guest_of_unknown_memory_is_limited_to_what_the_bounded_job_leaves(kind: str) -> None:
    desk = desk_of(report("a", 1, memory_mib=4000, kind=kind))
    desk.run(1, **job("x.py", 400.0, resumable=False, **BOUNDED))
    desk.submit(2, **job("y.py", 300.0, **UNKNOWN))
    (start,) = [each for each in desk.commands if isinstance(each, StartAttempt)]
    left = 3900
    assert start.memory_cap_mib == left
    assert start.host_memory_mib == (left if kind == "cpu" else 0)
    desk.start(2)
    desk.end(2, "user-failed", **({"rule": "own memory limit"} if kind == "cpu" else {"out_of_memory": True}))
    assert desk.phase(2) == "queued" and "ran out of device memory" in desk.why(2)


def test_a_guest_of_unknown_memory_waits_where_hardly_anything_is_left() -> None:
    desk = desk_of(report("a", 1, memory_mib=600))
    desk.run(1, **job("x.py", 400.0, resumable=False, **BOUNDED))
    desk.submit(2, **job("y.py", 300.0, **UNKNOWN))
    assert desk.phase(2) == "queued"


@pytest.mark.parametrize("policy", ["cotenant", "castor", "castor-cost", "sjf-ffs"])
def test_memory_that_is_being_measured_is_waited_for_and_that_is_said(policy: str) -> None:
    desk = Desk(policy, report("a", 1))
    desk.run(1, **job("x.py", 900.0, resumable=False, **{**UNKNOWN, "share": "auto"}))
    desk.submit(2, **job("y.py", 300.0, **UNKNOWN))
    soon = "the peak memory of job 1 is not known; it is known about a minute after job 1 starts"
    assert soon in desk.why(2)
    desk.wait(600.0)
    assert "the memory that job 1 needs is not known: give --mem" in desk.why(2)


def test_memory_that_its_like_is_being_measured_for_is_waited_for() -> None:
    desk = Desk("castor-cost", report("a", 2))
    desk.run(1, **job("x.py", 900.0, resumable=False))
    desk.run(2, **job("y.py", 900.0, resumable=False, **UNKNOWN))
    desk.submit(3, **job("y.py", 300.0, **UNKNOWN))
    assert "the peak memory of job 3 is not known; it is known about a minute after job 2" in desk.why(3)


def test_a_gang_that_names_a_bound_tries_one_co_tenant_at_a_time() -> None:
    desk = desk_of(report("a", 2, memory_mib=4000))
    desk.run(1, **job("x.py", 2000.0, gpus=2, resumable=False, **BOUNDED))
    desk.submit(2, **job("y.py", 300.0, **KNOWN))
    desk.submit(3, **job("z.py", 300.0, **KNOWN))
    assert [desk.phase(2), desk.phase(3)] == ["loading", "queued"]
    assert "what sharing with 2 costs it has not been measured yet" in desk.why(3)
    desk.start(2)
    desk.engine.ledger.pairs.observe(desk.job(1), desk.job(2), 1.05)
    desk.engine.ledger.pairs.observe(desk.job(2), desk.job(1), 1.5)
    desk.submit(4, **job("w.py", 300.0, **KNOWN))
    assert sum(desk.phase(each) == "loading" for each in (3, 4)) == 1


def test_of_several_who_wait_a_gang_with_a_bound_tries_one() -> None:
    desk = desk_of(report("a", 2, memory_mib=4000))
    desk.run(1, **job("x.py", 2000.0, gpus=2, resumable=False, **{**BOUNDED, "memory_mib": None}))
    desk.submit(2, **job("y.py", 300.0, **KNOWN))
    desk.submit(3, **job("z.py", 300.0, **KNOWN))
    assert [desk.phase(2), desk.phase(3)] == ["queued", "queued"]
    desk.tell(ev.ProfileLearned(job_id=desk.job(1).job_id, profile=profile(8, (1, 0.01, 100.0))))
    desk.wait(0.0)
    assert sorted([desk.phase(2), desk.phase(3)]) == ["loading", "queued"]


SCRIPTS = ("x.py", "y.py", "z.py")
DUTIES = st.none() | st.floats(0.0, 1.0)
SEEN = st.lists(st.tuples(st.sampled_from([(0, 1), (1, 0), (0, 2), (1, 2)]), st.floats(1.0, 3.0)), max_size=8)


@settings(deadline=None)
@given(st.floats(1.03, 3.0), st.tuples(DUTIES, DUTIES), SEEN, st.booleans(), st.floats(0.05, 1.0))
def test_the_plan_never_expects_more_of_a_bounded_job_than_its_bound(
    bound: float,
    duties: tuple[float | None, float | None],
    seen: list[tuple[tuple[int, int], float]],
    is_seen_bounded: bool,
    guest_min: float,
) -> None:
    """Whatever was seen of the two kinds, together or beside others, with a bound or without."""
    desk = desk_of(sharing=SharingSettings(max=1.5, guest_min=guest_min))
    shares = (f"max={bound:.4g}", "auto", "auto")
    for number, (script, share) in enumerate(zip(SCRIPTS, shares, strict=True)):
        known = profile(8, (1, 0.01, 100.0), duty=(*duties, 0.5)[number])
        desk.submit(number + 1, **job(script, 500.0, share=share, profile=known, resumable=False))
    host, guest = desk.job(1), desk.job(2)
    free = desk.job(desk.submit(4, **job(SCRIPTS[0], 500.0, share="auto")))
    for (one, other), ratio in seen:
        jobs = [host if is_seen_bounded else free, guest, desk.job(3)]
        desk.engine.ledger.pairs.observe(jobs[one], jobs[other], ratio)
    plan = Plan(desk.engine.ledger)
    slots = RecordSlots(plan, 2)
    (xi,), (back,) = slots.pairs((guest,), (host,)), slots.pairs((host,), (guest,))
    assert xi[0].over_bound or xi[0].second <= host.spec.share_max
    assert back[0].over_bound or back[0].first <= host.spec.share_max


BOUNDS = st.floats(1.03, 10.0).map(lambda most: ShareBound(max=most, is_own=True))
FREE = st.just(ShareBound()) | st.floats(1.03, 10.0).map(lambda most: ShareBound(max=most))
BUSY = st.none() | st.floats(0.0, 4.0)
RATIOS = st.floats(1.0, 10.0)


@given(BOUNDS, FREE, BUSY, BUSY, RATIOS, RATIOS, st.booleans())
def test_a_trial_never_expects_more_of_the_bounded_job_than_its_bound(
    bound: ShareBound,
    other: ShareBound,
    busy: float | None,
    guest_busy: float | None,
    mine: float,
    theirs: float,
    is_first: bool,
) -> None:
    def of(one: Any, two: Any) -> tuple[Any, Any]:
        return (one, two) if is_first else (two, one)

    first, second = of(mine, theirs)
    xi = Interference(first=first, second=second, source="default")
    bounds = of(bound, other)
    found = trial_ratios(xi, *bounds, of(busy, guest_busy))
    assert all(ratio <= most for ratio, most in zip(found, maxima(*bounds), strict=True))
    assert all(ratio >= 1.0 for ratio in found)
    swapped = trial_ratios(xi.swap(), *bounds[::-1], of(busy, guest_busy)[::-1])
    assert swapped == found[::-1]
