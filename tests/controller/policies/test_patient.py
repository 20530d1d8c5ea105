"""patient: what pays and what does not as tables; that no preemption is futile, over histories and runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.domain import Job, Phase, Preempt
from cotenant.controller.domain import events as ev
from cotenant.controller.policies import registry
from cotenant.controller.sim import Cluster, Workload, simulate
from tests.controller.building import Desk, report
from tests.controller.building import engine as made
from tests.controller.histories import HOSTS, STEPS, WAITS_S, Step, event_of
from tests.controller.policies.test_classic import (
    FOUR,
    TWO,
    Before,
    Row,
    later,
    nothing,
    queued,
    running,
    then,
)
from tests.controller.policies.test_whole_queue import planned

COSTS: dict[str, Any] = {"load_s": 10.0, "pause_s": 5.0}
"""So a change costs 20 s: the victim's load and two of its pauses."""


FREE: dict[str, Any] = {"load_s": 0.0, "pause_s": 0.0}


def job(expected_s: float | None, **more: Any) -> dict[str, Any]:
    return {"expected_s": expected_s, **COSTS, **more}


def waiting(number: int, expected_s: float, **more: Any) -> Before:
    return queued(number, **job(expected_s, **more))


# fmt: off
ROWS: list[Row] = [
    ("free devices before preemption", [TWO], running(job(900)), job(1), ["place 9 on a/cpu1"]),
    ("the one with the most service is preempted", [report("a", 2), report("b", 1)],
     running(job(600, gpus=2), job(900)), job(100), ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("a preemption that costs what it gains is left", [report("a", 1)], running(job(130)), job(100), []),
    ("one that gains a second is not", [report("a", 1)], running(job(131)), job(100),
     ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("rounding is no gain", [report("a", 1)], then(later(1926.028), running(job(582, **FREE))),
     job(582, **FREE), []),
    ("the victim's own load and pause count", [report("a", 1)], running(job(131, load_s=11.0)), job(100), []),
    ("the newcomer's load counts", [report("a", 1)], running(job(131)), job(100, load_s=11.0), []),
    ("a gang with more service preempts nobody, however short", [TWO], running(job(150), job(150)),
     job(100, gpus=2), []),
    ("a gang with less service than each of its victims has", [TWO], running(job(900), job(900)),
     job(100, gpus=2), ["preempt 1 for 9", "preempt 2 for 9", "place 9 on a/cpu0 a/cpu1"]),
    ("all victims of a gang pay or none is taken", [TWO], running(job(900), job(120)), job(100, gpus=2), []),
    ("a gang that would wait longer than all its victims lose, though one has less service", [TWO],
     running(job(900), job(400)), job(250, gpus=2),
     ["preempt 1 for 9", "preempt 2 for 9", "place 9 on a/cpu0 a/cpu1"]),
    ("a gang whose victims lose more than it would wait", [TWO], running(job(500), job(400)),
     job(250, gpus=2), []),
    ("what each victim's change costs counts in that", [TWO],
     running(job(600), job(400, pause_s=25.0)), job(250, gpus=2), []),
    ("a gang preempts no hp, however long it would wait", [TWO],
     running(job(9000), job(9000, job_class="hp")), job(10, gpus=2), []),
    ("a job that loads is never preempted", [report("a", 1)],
     queued(1, **job(900), resumable=True), job(1), []),
    ("devices that become free before the load would be over are waited for", [TWO],
     running(job(900), job(15)), job(100), []),
    ("those that become free later are not", [TWO], running(job(900), job(16)), job(100),
     ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("the newcomer's load counts in that, not the victim's", [TWO],
     running(job(900), job(65)), job(100, load_s=60.0), []),
    ("however long the victim's load is", [TWO], running(job(900, load_s=60.0), job(65)), job(100),
     ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("a job that is late is not waited for", [TWO], then(running(job(900), job(15)), later(16)), job(100),
     ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("two jobs do not wait for the same device", [report("a", 3)],
     then(running(job(900), job(900), job(15)), waiting(8, 90)), job(100),
     ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("a reservation is replaced by a smaller job", [report("a", 1)],
     then(running(job(900)), waiting(8, 500)), job(100), ["preempt 8 for 9", "place 9 on a/cpu0"]),
    ("a reservation is not replaced by one that takes longer to load and end", [report("a", 1)],
     then(running(job(900)), waiting(8, 100)), job(95, load_s=20.0), []),
    ("a reservation of class hp is not replaced", [report("a", 1)],
     then(running(job(900)), waiting(8, 500, job_class="hp")), job(100), []),
    ("what a gang leaves over is taken before anybody else is preempted", [FOUR, report("b", 1)],
     then(running(job(900, gpus=4), job(800)), waiting(8, 50)), job(60), ["place 9 on a/cpu1"]),
    ("hp is never preempted", [report("a", 1)], running(job(900, job_class="hp")), job(1), []),
    ("what cannot resume is never preempted", [report("a", 1)],
     running(job(900, resumable=False)), job(1), []),
    ("a newcomer of unknown length is expected to need five minutes", [report("a", 1)], running(job(900)),
     job(None), ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("and preempts nobody where that costs what it gains", [report("a", 1)], running(job(330)),
     job(None), []),
    ("a job of unknown length is expected to need as much as it has had", [report("a", 1)],
     then(running(job(None)), later(1020)), job(900), ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("and is not preempted by one that needs more", [report("a", 1)], then(running(job(None)), later(1020)),
     job(1000), []),
    ("one that ends before a late job can start may preempt meanwhile", [TWO],
     then(running(job(900), job(900, job_class="hp")), waiting(3, 1, gpus=2), later(200)), job(2),
     ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("nothing to do without hosts that are free", [report("a", 1, device={"healthy": False})], nothing,
     job(1), []),
]
# fmt: on


@pytest.mark.parametrize("row", ROWS, ids=[row[0].replace(" ", "-") for row in ROWS])
def test_the_plan(row: Row) -> None:
    _, hosts, before, newcomer, wanted = row
    desk = Desk("patient", *hosts, ageing_s=150.0)
    before(desk)
    desk.submit(9, **newcomer)
    assert planned(desk) == wanted


def test_the_rule_for_each_victim_alone_is_still_there_to_compare_with() -> None:
    desk = Desk("patient", TWO)
    desk.engine.handle(ev.PolicyChanged(name="patient", parameters={"gang": "each"}), desk.engine.now_s)
    running(job(900), job(400))(desk)
    desk.submit(9, **job(250, gpus=2))
    assert planned(desk) == []


@pytest.mark.parametrize(("width_power", "first"), [(0.75, 2), (1.0, 3)])
def test_width_counts_for_less_than_time_in_the_order(width_power: float, first: int) -> None:
    desk = Desk("patient", TWO)
    change = ev.PolicyChanged(name="patient", parameters={"width_power": width_power})
    desk.engine.handle(change, desk.engine.now_s)
    desk.run(1, **job(50, gpus=2))
    desk.submit(2, **job(100, gpus=2))
    desk.submit(3, **job(180))
    desk.end(1)
    assert desk.phase(first) == "loading"


@pytest.mark.parametrize("wrong", [{"gang": "none"}, {"width_power": -1.0}, {"waits_load": "both"}, {"n": 1}])
def test_a_wrong_parameter_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        registry.make("patient", wrong)


def test_a_gang_that_gains_nothing_by_preempting_is_told_so() -> None:
    desk = Desk("patient", TWO)
    running(job(400), job(400))(desk)
    desk.submit(9, **job(250, gpus=2))
    assert desk.why(9) == (
        "has 4m20s to run, and no running job has enough more left to make preempting it pay"
    )


def test_the_end_of_a_load_lets_those_that_waited_for_it_preempt() -> None:
    desk = Desk("patient", report("a", 1))
    desk.submit(1, **job(900))
    desk.submit(2, **job(100))
    assert planned(desk) == []
    desk.start(1)
    assert planned(desk) == ["preempt 1 for 2", "place 2 on a/cpu0"]


def test_one_that_waited_for_a_device_which_did_not_become_free_preempts_after_all() -> None:
    desk = Desk("patient", report("a", 2))
    desk.run(1, **job(900))
    desk.run(2, **job(12))
    desk.submit(3, **job(100))
    assert desk.why(3) == "enough devices become free by themselves before a preemption would be of use"
    desk.wait(15)
    assert (desk.phase(1), desk.phase(2), desk.phase(3)) == ("checkpointing", "running", "reserved")


def test_one_that_waited_starts_as_soon_as_the_device_is_free() -> None:
    desk = Desk("patient", report("a", 2))
    desk.run(1, **job(900))
    desk.run(2, **job(12))
    desk.submit(3, **job(100))
    desk.wait(12)
    desk.end(2)
    assert (desk.phase(1), desk.phase(3)) == ("running", "loading")


def test_why_a_preemption_was_worth_it_is_told_to_both() -> None:
    desk = Desk("patient", report("a", 1))
    desk.run(1, **job(900))
    desk.submit(2, **job(100))
    preempt, place = desk.engine.decision.actions
    assert str(preempt.reason) == (
        "preempted for 2, which has 1m50s to run; this job has 15m00s left, more than that "
        "and 20s for switching"
    )
    assert str(place.reason) == (
        "has 1m50s to run, and switching costs 20s; job 1, which makes room, has 15m00s left"
    )


def test_one_that_gains_nothing_by_preempting_is_told_so() -> None:
    desk = Desk("patient", report("a", 1))
    desk.run(1, **job(100))
    desk.submit(2, **job(100))
    assert desk.why(2) == (
        "has 1m50s to run, and no running job has enough more left to make preempting it pay"
    )


@given(steps=STEPS)
@settings(max_examples=int(settings().max_examples * 0.5))
def test_whatever_happens_no_load_is_for_nothing_and_each_preemption_pays(steps: list[Step]) -> None:
    engine = made("patient", ageing_s=5000.0)
    for host in HOSTS:
        engine.handle(ev.HostJoined(report=host), 0.0)
    for step in steps:
        event = event_of(engine, step, ("patient",))
        before = {job.job_id: job.phase for job in engine.jobs.values()}
        engine.handle(event, engine.now_s + WAITS_S[step[3] % len(WAITS_S)])
        assert not any(job.counts.futile_preemptions for job in engine.jobs.values())
        for action in engine.decision.actions:
            if isinstance(action, Preempt):
                assert before[action.job_id] in (Phase.RUNNING, Phase.RESERVED, Phase.LOADING)
                newcomer = engine.jobs[action.for_job] if action.for_job else None
                assert newcomer is not None
                check_pays(engine.jobs[action.job_id], newcomer, engine.now_s)


def check_pays(victim: Job, newcomer: Job, now_s: float) -> None:
    """A victim that ran had more left than all that the change takes; it is now on its way out."""
    assert newcomer.estimate.remaining_s is not None
    assert victim.estimate.remaining_s is not None
    assert victim.preemptible
    assert victim.spec.job_class != "hp"
    if victim.phase is Phase.CHECKPOINTING:
        change_s = newcomer.estimate.load_s + victim.estimate.load_s + 2 * victim.estimate.pause_s
        assert victim.estimate.remaining_s > newcomer.estimate.remaining_s + change_s


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    n = draw(st.integers(5, 60))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    gaps_s = rng.choice([0.0, 1.0, 10.0, 100.0], n)
    gaps_s[0] = 0.0
    duration_s = rng.choice([5.0, 30.0, 200.0, 3000.0], n) * rng.uniform(0.5, 1.5, n)
    return Workload(
        name="drawn",
        synthetic=True,
        submit_s=np.cumsum(gaps_s),
        duration_s=duration_s,
        expected_s=duration_s * rng.choice([1.0, 0.3, 3.0], n),
        gpus=rng.choice([1, 1, 1, 2, 4, 8], n).astype(np.int32),
        load_s=rng.choice([0.0, 5.0, 60.0], n),
        pause_s=rng.choice([0.0, 2.0, 20.0], n),
        model=np.full(n, -1, np.int16),
        models=(),
        hp=rng.random(n) < 0.1,
        organisation=np.full(n, -1, np.int16),
        organisations=(),
        excluded={},
    )


@pytest.mark.parametrize("parameters", [{}, {"gang": "each", "width_power": 1.0}], ids=["default", "before"])
@given(workload=workloads())
@settings(max_examples=max(2, int(settings().max_examples * 0.1)), deadline=None)
def test_in_simulated_runs_everything_ends_and_no_load_is_for_nothing(
    parameters: dict[str, Any], workload: Workload
) -> None:
    outcome = simulate(workload, Cluster(hosts=2, gpus_per_host=4), "patient", parameters, validate=True)
    assert outcome.finished.all()
    assert outcome.preemptions[workload.hp].sum() == 0
    assert outcome.futile_preemptions.sum() == 0
    assert outcome.futile_s.sum() == 0.0


@pytest.mark.parametrize("policy", ["ssf", "srsf", "srtf-full", "tiresias", "interval-60"])
@given(workload=workloads())
@settings(max_examples=max(2, int(settings().max_examples * 0.1)), deadline=None)
def test_in_simulated_runs_of_the_others_everything_ends(policy: str, workload: Workload) -> None:
    outcome = simulate(workload, Cluster(hosts=2, gpus_per_host=4), policy, validate=True)
    assert outcome.finished.all()
