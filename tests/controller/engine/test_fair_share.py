"""Fair share: who has used less goes first, and usage is what was held, decayed."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.domain import HostId, LimitSettings, PolicySettings
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import EngineConfig
from cotenant.controller.engine.stages.fair_share import decayed_usage, level
from cotenant.controller.engine.state.ledger import DecayedUsage
from cotenant.controller.policies import registry
from tests.controller.building import Desk, engine, report, spec
from tests.controller.driver import Driver, Truth

HALF_LIFE_S = 2_000.0


@given(used=st.floats(1.0, 1e12), more=st.floats(2.0, 1e6, exclude_min=True))
def test_twice_as_much_is_another_level(used: float, more: float) -> None:
    assert level(used * more) > level(used) or level(used) == 63


@given(held=st.lists(st.tuples(st.floats(0.0, 64.0), st.floats(0.1, 10_000.0)), min_size=1, max_size=8))
def test_usage_is_the_integral_of_what_was_held_decayed(held: list[tuple[float, float]]) -> None:
    now_s, usage = 0.0, DecayedUsage(device_s=0.0, at_s=0.0, devices=0.0)
    for devices, lasts_s in held:
        usage = DecayedUsage(device_s=decayed_usage(usage, HALF_LIFE_S, now_s), at_s=now_s, devices=devices)
        now_s += lasts_s
    expected, at_s, steps = 0.0, 0.0, 500
    for devices, lasts_s in held:
        for step in range(steps):
            middle_s = at_s + lasts_s * (step + 0.5) / steps
            expected += devices * lasts_s / steps * 2.0 ** ((middle_s - now_s) / HALF_LIFE_S)
        at_s += lasts_s
    assert math.isclose(decayed_usage(usage, HALF_LIFE_S, now_s), expected, rel_tol=1e-4, abs_tol=1e-6)


def used_s(driver: Driver, user: str) -> float:
    """What the engine has charged, from its snapshot."""
    accounts = driver.engine.snapshot().ledger.accounts
    return decayed_usage(accounts.get(user), HALF_LIFE_S, driver.engine.now_s)


@pytest.mark.parametrize("policy", ["fifo", "srtf", "patient", "castor"])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=2, deadline=None)
def test_with_equal_demand_nobody_stays_above_twice_anothers_usage(policy: str, seed: int) -> None:
    """Three users whose demand is equal, each more than the cluster: after the first half-life no two are
    more apart than a factor of two and what runs at the moment."""
    chance = random.Random(seed)
    driver = Driver(
        engine(policy, ageing_s=0.0, fair_share_half_life_s=HALF_LIFE_S, validate=False), [report("a", 4)]
    )
    number = 0
    for user, first_s in (("ann", 0.0), ("bob", 60.0), ("eve", 120.0)):
        for _ in range(40):
            number += 1
            train_s = chance.uniform(60.0, 240.0)
            job = spec(number, user=user, expected_s=train_s)
            driver.submit(job, Truth(train_s=round(train_s)), first_s)
    slack_s = 4 * 250.0
    for at_s in range(2_000, 6_000, 200):
        driver.run(until_s=float(at_s))
        waiting = {job.spec.user for job in driver.engine.ledger.queue.jobs_in_order()}
        if waiting != {"ann", "bob", "eve"}:
            break
        used = {user: used_s(driver, user) for user in waiting}
        most, least = max(used, key=used.__getitem__), min(used, key=used.__getitem__)
        assert used[most] <= 2.0 * used[least] + slack_s, (at_s, used)
    assert at_s > 2_000, "nobody waited"


def test_without_fair_share_the_first_to_come_has_it_all() -> None:
    desk = Desk("fifo", report("a", 1))
    for number in range(3):
        desk.submit(number, user="ann")
    desk.submit(9, user="bob")
    desk.wait(100.0)
    desk.end(0)
    assert desk.phase(1) == "loading"


def test_who_has_used_less_goes_first_and_explain_says_so() -> None:
    desk = Desk("fifo", report("a", 1), fair_share_half_life_s=HALF_LIFE_S)
    for number in range(3):
        desk.submit(number, user="ann")
    desk.submit(9, user="bob")
    desk.wait(400.0)
    said = [str(reason) for reason in desk.engine.explain("1", desk.now_s)]  # type: ignore[arg-type]
    assert any("bob has used 0.00, so job 9 goes first" in line for line in said), said
    said = [str(reason) for reason in desk.engine.explain("9", desk.now_s)]  # type: ignore[arg-type]
    assert any(line == "devices are held by ann (1)" for line in said), said
    used = desk.engine.decayed_usage("user", desk.now_s)
    assert used is not None and used.get("bob", 0.0) == 0.0 < used["ann"] < 400.0, "a part of it has decayed"
    assert desk.engine.decayed_usage("organisation", desk.now_s) is None
    desk.end(0)
    assert (desk.phase(9), desk.phase(1)) == ("loading", "queued")


@pytest.mark.parametrize("policy", registry.ours_available())
def test_under_every_policy_who_has_used_less_goes_first(policy: str) -> None:
    desk = Desk(policy, report("a", 1), fair_share_half_life_s=HALF_LIFE_S)
    for number in (1, 2, 3):
        desk.submit(number, user="ann", expected_s=10.0, job_class="hp")
    desk.submit(9, user="bob", expected_s=100.0, job_class="hp")
    desk.wait(1_000.0)
    desk.end(1)
    desk.wait(1_000.0)
    assert desk.phase(9) == "loading"


def test_a_shared_device_counts_half_for_each() -> None:
    desk = Desk(
        "sjf-ffs", report("a", 1, device={"max_tenants": 2}), fair_share_half_life_s=1e8,
    )  # fmt: skip
    for number, user in ((1, "ann"), (2, "bob")):
        desk.submit(number, user=user, memory_mib=100, expected_s=1000.0)
        desk.run(number)
    assert desk.devices(1) == desk.devices(2)
    before_s = desk.now_s
    desk.wait(1000.0)
    desk.end(1)
    ledger = desk.engine.snapshot().ledger
    used = {user: decayed_usage(ledger.accounts[user], 1e8, desk.now_s) for user in ("ann", "bob")}
    assert used["bob"] == pytest.approx(500.0, rel=0.02), (used, before_s)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="fair_share_half_life_s must be 0"):
        PolicySettings(fair_share_half_life_s=0.5)
    with pytest.raises(ValueError, match="must not be negative"):
        LimitSettings(user_jobs=-1)
    assert EngineConfig().limits.any is False


def test_under_a_limit_as_well_a_persons_first_job_starts_first() -> None:
    limits = LimitSettings(user_devices=1)
    desk = Desk("fifo", report("a", 1), fair_share_half_life_s=HALF_LIFE_S, limits=limits)
    desk.submit(1)
    desk.wait(1_000.0)  # What it uses gives ann another level.
    desk.end(1)
    desk.tell(ev.HostDrained(host_id=HostId("a"), by="root"))
    for number in (2, 3, 4):
        desk.submit(number)
    desk.tell(ev.HostResumed(host_id=HostId("a"), by="root"))
    for number in (2, 3, 4):
        assert desk.phase(number) == "loading", desk.why(number)
        desk.end(number)


def test_jobs_of_one_person_keep_their_order_while_the_use_of_that_person_decays() -> None:
    """Had each its level from when it came, the later one would stand before the other."""
    desk = Desk("fifo", report("a", 1), fair_share_half_life_s=HALF_LIFE_S)
    desk.submit(1, user="ann")
    desk.wait(1_000.0)
    desk.submit(8, user="bob")
    desk.end(1)
    used_s = [level(used) for used in (desk.engine.decayed_usage("user", desk.now_s) or {}).values()]
    desk.submit(2, user="ann")
    while level((desk.engine.decayed_usage("user", desk.now_s) or {})["ann"]) == used_s[0]:
        desk.wait(1.0)
    desk.submit(3, user="ann")
    assert [job.job_id for job in desk.engine.ledger.queue.jobs_in_order()] == ["2", "3"]


HAPPENINGS = st.lists(
    st.tuples(
        st.sampled_from(("ann", "ann", "bob", "end", "end", "drain", "resume", "restart")),
        st.sampled_from((0.0, 1.0, 40.0, 300.0, 3_000.0)),
    ),
    min_size=10,
    max_size=60,
)


@given(policy=st.sampled_from(tuple(registry.ours_available())), happenings=HAPPENINGS, jobs=st.booleans())
@settings(deadline=None)
def test_of_one_persons_equal_jobs_the_earlier_never_starts_after_the_later(
    policy: str, happenings: list[tuple[str, float]], jobs: bool
) -> None:
    limits = LimitSettings(user_jobs=2) if jobs else LimitSettings(user_devices=2)
    desk = Desk(policy, report("a", 3), fair_share_half_life_s=HALF_LIFE_S, limits=limits)
    for number, (what, after_s) in enumerate(happenings, 1):
        desk.wait(after_s)
        active = [job_id for job_id, job in desk.engine.jobs.items() if job.attempt.hosts_left]
        if what == "restart":
            desk.restart()
        elif what in ("drain", "resume"):
            event = ev.HostDrained if what == "drain" else ev.HostResumed
            desk.tell(event(host_id=HostId("a"), by="root"))
        elif what != "end":
            desk.submit(number, user=what, expected_s=100.0)
        elif active:
            desk.end(active[0])
        for user in ("ann", "bob"):
            theirs = [job for job in desk.engine.jobs.values() if job.spec.user == user]
            started = [job.first_start_s is not None or job.attempt.number > 0 for job in theirs]
            assert started == sorted(started, reverse=True), [str(job.reason) for job in theirs]
