"""GFS: the quota with its feedback, the demand it knows, who is placed where, who has to leave."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.domain import HostId, Preempt
from cotenant.controller.papers.gfs.demand import HOUR_S, SLOT_S, DemandHistory, quantile
from cotenant.controller.papers.gfs.evictions import Evictions
from cotenant.controller.papers.gfs.forecasting import DemandForecaster
from cotenant.controller.papers.gfs.parameters import GfsParameters
from cotenant.controller.papers.gfs.policy import Gfs
from cotenant.controller.papers.gfs.quota import ETA_MAX, ETA_MIN, inventory, next_eta, spot_quota
from cotenant.controller.papers.gfs.scheduling import Criteria
from cotenant.controller.policies import registry
from cotenant.controller.policies.base import Parameters, Policy
from tests.controller.building import Desk, engine, report, spec
from tests.controller.driver import Driver, Truth
from tests.controller.policies.test_classic import TWO, Before, queued, running, then
from tests.controller.policies.test_whole_queue import planned

A = HostId("a")


def hp(expected_s: float = 100.0, **more: Any) -> dict[str, Any]:
    return {"expected_s": expected_s, "job_class": "hp", **more}


def spot(expected_s: float = 100.0, **more: Any) -> dict[str, Any]:
    return {"expected_s": expected_s, **more}


def both(*jobs: dict[str, Any]) -> Before:
    return running(*jobs)


# fmt: off
Wanted = tuple[str, list[Any], Before, dict[str, Any], list[str] | None]
ROWS: list[tuple[str, Wanted]] = [
    (policy, row) for policy in ("gfs", "gfs-rise", "yarn-cs", "fgd") for row in (
    ("hp takes the devices of spot", [report("a", 1)], both(spot()), hp(),
     ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("free devices come first", [TWO], both(spot()), hp(), ["place 9 on a/cpu1"]),
    ("hp is never preempted, by hp either", [report("a", 1)], both(hp(900)), hp(1), []),
    ("spot preempts nobody", [report("a", 1)], both(spot(900)), spot(1), []),
    ("a gang gets all or nothing", [TWO], both(hp(), spot()), hp(gpus=2), []),
    ("a gang takes all it needs", [TWO], both(spot(), spot()), hp(gpus=2),
     ["preempt 1 for 9", "preempt 2 for 9", "place 9 on a/cpu0 a/cpu1"]),
    ("no more than are needed leave", [TWO], both(spot(), spot(gpus=1)), hp(gpus=1), None),
)] + [
    ("yarn-cs", ("the newest leaves", [TWO], then(both(spot()), queued(2, **spot(), resumable=True)), hp(),
                 ["preempt 2 for 9", "place 9 on a/cpu1"])),
    ("lyra", ("a host is taken back whole", [TWO], both(spot(), spot()), hp(),
              ["preempt 1 for 9", "preempt 2 for 9", "place 9 on a/cpu0"])),
    ("lyra", ("spot jobs run on hosts without hp only", [TWO], both(hp()), spot(), [])),
    ("chronus", ("within its lease nobody leaves", [report("a", 1)], both(spot()), hp(), [])),
    ("gfs", ("the fewest victims", [report("a", 2), report("b", 2)],
             both(spot(), spot(), spot(gpus=2)), hp(gpus=2),
              ["preempt 3 for 9", "place 9 on b/cpu0 b/cpu1"])),
]
# fmt: on


@pytest.mark.parametrize("policy", ["yarn-cs", "lyra", "fgd"])
@pytest.mark.parametrize(("backfill", "starts"), [("any", "loading"), ("none", "queued")])
def test_a_baseline_keeps_the_order_of_a_class_where_it_is_asked_to(
    policy: str, backfill: str, starts: str
) -> None:
    desk = Desk(policy, TWO, make=lambda name, given: registry.make(name, {**given, "backfill": backfill}))
    desk.run(1, **spot())
    desk.submit(2, gpus=2, **spot())
    desk.submit(3, **spot())
    assert (desk.phase(2), desk.phase(3)) == ("queued", starts)


@pytest.mark.parametrize(("policy", "row"), ROWS, ids=lambda each: each if isinstance(each, str) else each[0])
def test_who_is_placed_and_who_leaves(policy: str, row: Wanted) -> None:
    name, hosts, before, job, wanted = row
    desk = Desk(policy, *hosts)
    before(desk)
    desk.submit(9, **job)
    found = planned(desk)
    if wanted is None:
        assert sum("preempt" in line for line in found) == 1, name
    else:
        assert sorted(found) == sorted(wanted), name


# --- The quota ------------------------------------------------------------------------------------


def test_what_the_forecast_leaves_times_eta_and_no_more_than_there_is() -> None:
    assert inventory(100, 70.0) == 30.0
    assert inventory(100, 130.0) == 0.0, "demand above the capacity leaves nothing"
    assert spot_quota(30.0, 1.0, idle=50, running=5) == 30
    assert spot_quota(30.0, 2.0, idle=10, running=5) == 15


def test_eta_falls_when_too_many_are_evicted_and_rises_when_few_are_and_somebody_waits() -> None:
    given = {"p": 0.9, "theta_s": 3600.0, "power": 1.0}
    assert next_eta(1.0, rate=0.2, wait_s=0.0, **given) == pytest.approx(0.5)
    assert next_eta(1.0, rate=0.0, wait_s=4000.0, **given) == pytest.approx(1.5)
    assert next_eta(1.0, rate=0.0, wait_s=10.0, **given) == 1.0, "nobody waits long"
    assert next_eta(1.0, rate=0.1, wait_s=4000.0, **given) == 1.0, "neither many nor few"
    assert next_eta(1.9, rate=0.0, wait_s=4000.0, **given) == ETA_MAX
    assert next_eta(0.11, rate=1.0, wait_s=0.0, **given) == ETA_MIN
    assert next_eta(1.0, rate=0.2, wait_s=0.0, **{**given, "power": 1 / 12}) == pytest.approx(0.5 ** (1 / 12))


def layered(name: str, **parameters: Any) -> tuple[Driver, Gfs]:
    def make(_: str, given: Parameters) -> Policy:
        return registry.make(name, {**parameters, **given})

    made = engine(name, make=make, ageing_s=0.0, stop_deadline_s=1e9)
    driver = Driver(made, [report("a", 4, checkpoint_domain="nfs")])
    layer = driver.engine.current.policy
    assert isinstance(layer, Gfs)
    return driver, layer


def submit(driver: Driver, number: int, at_s: float, train_s: float, **more: Any) -> None:
    driver.submit(spec(number, expected_s=train_s, **more), Truth(train_s=train_s), at_s)


def test_the_feedback_is_alive_in_both_directions() -> None:
    driver, layer = layered("gfs")
    for number in range(1, 5):  # Four spot jobs that give way one after another.
        submit(driver, number, 0.0, 9000.0)
        submit(driver, 4 + number, 100.0 * number, 6000.0, job_class="hp")
    seen: list[float] = []
    observe = layer.observe

    def observed(*given: Any) -> None:
        observe(*given)
        seen.append(layer._state.eta)

    layer.observe = observed  # type: ignore[method-assign, assignment]
    driver.run(until_s=12_000.0)
    lowest = seen.index(min(seen))
    assert min(seen) < 0.5, "in the first hour all runs that ended were evicted"
    assert max(seen[lowest:]) > 2 * min(seen), "then nobody was, and spot jobs had waited over an hour"
    assert layered("gfs-d")[1].parameters.feedback is False


def test_a_spot_job_is_withheld_with_the_numbers_that_keep_it_back() -> None:
    driver, layer = layered("gfs-rise")
    submit(driver, 1, 0.0, 500.0, gpus=4, job_class="hp")
    submit(driver, 2, 600.0, 500.0, gpus=4, job_class="hp")
    driver.run(until_s=10_000.0)
    layer._state.demand.see(10_000.0, {})
    layer._state.rise = {"cpu": 3}
    submit(driver, 3, 10_001.0, 50.0, gpus=2)
    submit(driver, 4, 10_002.0, 50.0, gpus=1)
    driver.run(until_s=10_003.0)
    jobs = driver.engine.jobs
    assert jobs[spec(4).job_id].phase.value in ("loading", "running"), "one device is not kept back"
    said = str(driver.engine.explain(spec(3).job_id, driver.engine.now_s)[0])
    assert "withheld: it needs 2 devices, and spot jobs may take 0 more" in said and "(3)" in said, said


# --- Demand ---------------------------------------------------------------------------------------


def test_the_history_holds_the_highest_of_each_hour_and_of_ten_minutes() -> None:
    history = DemandHistory()
    history.see(0.0, {("a100", "x"): 4, ("a100", "y"): 2})
    history.see(700.0, {("a100", "x"): 10, ("a100", "y"): 2})
    history.see(900.0, {("a100", "x"): 1})
    history.see(HOUR_S + 10.0, {("a100", "x"): 3})
    assert history.hours == {"a100": {"x": [10], "y": [2]}}
    assert history.slots == {"a100": [6, 12, 1, 1, 1, 1]}
    history.see(4 * HOUR_S, {})
    assert history.hours["a100"]["x"] == [10, 3, 3, 3], "between events nothing changes"
    assert history.total("a100") == 0


def test_the_rise_is_what_demand_grew_by_at_this_time_of_day() -> None:
    history = DemandHistory()
    for day in range(4):  # Every day at 10:00 twelve more are asked for, for two hours.
        for slot in range(144):
            gpus = 20 if 60 <= slot < 72 else 8
            history.see(day * 86_400.0 + slot * SLOT_S, {("a", "x"): gpus})
    history.see(4 * 86_400.0 + 9 * HOUR_S, {("a", "x"): 8})
    assert history.rise("a", 0.95, 1) == 12
    history.see(4 * 86_400.0 + 20 * HOUR_S, {("a", "x"): 8})
    assert history.rise("a", 0.95, 1) == 0, "at night it never rose"
    assert quantile([1, 2, 3], 0.95) == 3 and quantile([], 0.9) == 0


@given(st.lists(st.tuples(st.floats(0, 9000), st.integers(0, 30), st.sampled_from("xyz")), max_size=40))
@settings(max_examples=30)
def test_all_series_of_a_type_are_equally_long(steps: list[tuple[float, int, str]]) -> None:
    history, now_s, demand = DemandHistory(), 0.0, dict[tuple[str, str], int]()
    for wait_s, gpus, organisation in steps:
        now_s += wait_s
        demand["t", organisation] = gpus
        history.see(now_s, demand)
        lengths = {len(series) for series in history.hours.get("t", {}).values()}
        assert len(lengths) <= 1
        assert len(history.slots.get("t", ())) <= int(now_s // SLOT_S)


def test_the_forecast_says_what_it_rests_on_and_goes_on_after_a_restart_as_before() -> None:
    history, forecaster = DemandHistory(), DemandForecaster(GfsParameters())
    notes, restarted, found = list[str](), DemandForecaster(GfsParameters()), None
    for hour in range(60):
        history.see(hour * HOUR_S, {("a", "x"): 10 + hour % 24, ("a", "y"): 5})
        if hour:
            found = forecaster.forecast(history, hour * HOUR_S)["a"]
            notes.append(found.note)
            if hour == 40:
                restarted.load(forecaster.save())
            elif hour > 40:
                assert restarted.forecast(history, hour * HOUR_S)["a"] == found
    assert "less than a day" in notes[0] and "no model was trained" in notes[-1]
    assert found is not None and found.reserved >= found.upper[0] - 1e-9, (
        "eq. 9 reserves for each organisation"
    )
    assert len(found.median) == 2, "a promise of an hour touches two"


# --- Evictions ------------------------------------------------------------------------------------


def test_a_host_with_many_evictions_rests_for_spot_and_attracts_hp() -> None:
    evictions = Evictions()
    for number in range(5):
        evictions.evict(1000.0 + number, [A])
    criteria = Criteria(evictions, GfsParameters())
    assert evictions.host_rate(A, 1100.0, 0.8, 24.0) == pytest.approx(0.8 * 5 + 0.2 * 5 / 24)
    assert criteria.penalty(A, 1100.0) < 1.0 == min(1.0, 0.01 * 3.0**5)
    evictions.evict(1100.0, [A])
    assert criteria.penalty(A, 1101.0) == 1.0, "the circuit breaker"
    assert criteria.penalty(A, 1101.0 + HOUR_S) < 0.02, "an hour later it is closed"
    assert evictions.rate(0.0) == 1.0
    evictions.finish(1200.0)
    assert evictions.rate(0.0) == pytest.approx(6 / 7)
    evictions.forget(200_000.0)
    assert not evictions.evicted_s and not evictions.on_host and evictions.evicted == 6


@pytest.mark.parametrize(
    ("given", "said"),
    [({"p": 1.0}, "p must be"), ({"hours": 0}, "hours must be"), ({"m": 1.0}, "m must be"),
     ({"interval_s": 1.0}, "interval_s"), ({"nonsense": 1}, "no parameter nonsense")],
)  # fmt: skip
def test_a_parameter_out_of_range_is_refused(given: Parameters, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        registry.make("gfs", given)


def test_a_preemption_of_the_order_among_spot_jobs_is_no_eviction() -> None:
    driver, layer = layered("gfs-rise", order="srtf-full")
    submit(driver, 1, 0.0, 5000.0, gpus=4)
    submit(driver, 2, 100.0, 50.0, gpus=4)
    driver.run(until_s=400.0)
    assert layer._state.evictions.evicted == 0
    assert not any(isinstance(a, Preempt) for a in driver.engine.decision.actions)
