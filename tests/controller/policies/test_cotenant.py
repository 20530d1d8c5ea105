"""cotenant: each line of its rule as a test by name, then what must hold over histories and whole runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from cotenant.controller.domain import Job, JobId, Phase, Preempt, Reason, Share
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine
from cotenant.controller.performance import Interference, XiSource
from cotenant.controller.planning import Plan
from cotenant.controller.policies import registry
from cotenant.controller.policies.cotenant import CotenantParameters, Sharing
from cotenant.controller.policies.patient import PatientParameters, spare
from cotenant.controller.policies.record_slots import record_ratios
from cotenant.controller.sim import Cluster, Physics, Workload, simulate
from tests.controller.building import Desk, profile, report, spec
from tests.controller.building import engine as made
from tests.controller.histories import HOSTS, STEPS, WAITS_S, Step, event_of
from tests.controller.policies.test_classic import Before, later, queued, running, then
from tests.controller.policies.test_patient import check_pays, workloads
from tests.controller.policies.test_whole_queue import planned

COSTS: dict[str, Any] = {"load_s": 10.0, "pause_s": 5.0, "batch_size": 32}
"""To change a job for another costs its load and two pauses, 20 s, and what its resume risks; the pause
itself is waited for."""
EARNED_S = 150.0
"""Ten times the pause and the load: after so much training a job may be preempted. What its resume risks is
7.5 s by then."""
LIGHT = profile(32, (1, 1.0, 300.0), duty=0.4)
"""Two of them do not slow each other."""
MILD = profile(32, (1, 1.0, 300.0), duty=0.7)
"""Two of them take 1.4 times as long."""
HEAVY = profile(32, (1, 1.0, 300.0), duty=0.9)
"""1.8 times: a little better than taking turns."""
BUSY = profile(32, (1, 1.0, 300.0), duty=1.0)
"""Twice as long: no better."""
UNKNOWN = profile(32, (1, 1.0, 300.0))
"""It says nothing of how busy a device is: the default ratio, unless the kind has a record."""
TWO = report("a", 2)
PATIENT = PatientParameters()
Row = tuple[str, list[Any], Before, dict[str, Any], list[str]]


def job(expected_s: float | None, like: object = BUSY, **more: Any) -> dict[str, Any]:
    return {"expected_s": expected_s, "profile": like, **COSTS, **more}


def loading(expected_s: float, like: object = BUSY) -> Before:
    return queued(1, **job(expected_s, like), resumable=True)


def trained(*jobs: dict[str, Any]) -> Before:
    """They run, have this much left, and have trained for so long that they may be preempted."""
    longer = [more | {"expected_s": more["expected_s"] and more["expected_s"] + EARNED_S} for more in jobs]
    return then(running(*longer), later(EARNED_S))


# fmt: off
ROWS: list[Row] = [
    ("free devices first, whatever a share or a preemption would bring", [TWO], trained(job(900, LIGHT)),
     job(100, LIGHT), ["place 9 on a/cpu1"]),
    # Share or preempt.
    ("a share that costs nothing comes before a preemption", [report("a", 1)], trained(job(900, LIGHT)),
     job(100, LIGHT), ["share 9 on a/cpu0 with s=1"]),
    ("a share that delays both by 80 s comes before a preemption that costs 142.5 s", [report("a", 1)],
     trained(job(900, MILD)), job(100, MILD), ["share 9 on a/cpu0 with s=1"]),
    ("a preemption that costs 142.5 s comes before a share that delays both by 160 s", [report("a", 1)],
     trained(job(900, HEAVY)), job(100, HEAVY), ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("without a share that pays it preempts as patient does", [report("a", 1)], trained(job(900)), job(100),
     ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("a job that says never is not shared but preempts", [report("a", 1)], trained(job(900, LIGHT)),
     job(100, LIGHT, share="never"), ["preempt 1 for 9", "place 9 on a/cpu0"]),
    # Guards of a preemption.
    ("a victim needs more left than the newcomer, its load, two pauses and its risk", [report("a", 1)],
     trained(job(137)), job(100), []),
    ("a second more is enough", [report("a", 1)], trained(job(138)), job(100),
     ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("a job that loads is never a victim", [report("a", 1)], loading(900), job(1), []),
    ("a job that loads may be a partner", [report("a", 1)], loading(900, LIGHT), job(100, LIGHT),
     ["share 9 on a/cpu0 with s=1"]),
    ("a gang all of whose victims have more service left", [TWO], trained(job(900), job(900)),
     job(100, gpus=2), ["preempt 1 for 9", "preempt 2 for 9", "place 9 on a/cpu0 a/cpu1"]),
    ("a gang whose victims together lose less than it would wait", [TWO], trained(job(900), job(400)),
     job(250, gpus=2), ["preempt 1 for 9", "preempt 2 for 9", "place 9 on a/cpu0 a/cpu1"]),
    ("a gang whose victims together lose more waits", [TWO], trained(job(500), job(400)),
     job(250, gpus=2), []),
    ("devices that become free within pause and load are waited for", [TWO], trained(job(900), job(15)),
     job(100), []),
    ("hp is never preempted", [report("a", 1)], trained(job(900, job_class="hp")), job(1), []),
    # Guards of a share.
    ("one that cannot preempt shares where all lose less than it would wait", [report("a", 1)],
     trained(job(100, MILD)), job(100, MILD), ["share 9 on a/cpu0 with s=1"]),
    ("one that would delay others longer than it would wait waits", [report("a", 1)],
     trained(job(20, HEAVY)), job(1000, HEAVY), []),
    ("two that get no more done than taking turns never share", [report("a", 1)],
     trained(job(900, resumable=False)), job(10), []),
    ("a gang shares with one partner and takes what is free", [TWO], trained(job(900, LIGHT)),
     job(800, LIGHT, gpus=2), ["share 9 on a/cpu1 a/cpu0 with s=1"]),
    ("nobody shares behind a job that has aged and waits", [TWO],
     then(trained(job(900, LIGHT, job_class="hp"), job(900, LIGHT, job_class="hp")),
          queued(3, **job(1, gpus=2, share="never")), later(200)), job(2, LIGHT), []),
    # Unknown lengths.
    ("a newcomer of unknown length shares", [report("a", 1)], trained(job(900, LIGHT)), job(None, LIGHT),
     ["share 9 on a/cpu0 with s=1"]),
    ("and is a partner", [report("a", 1)], trained(job(None, LIGHT)), job(900, LIGHT),
     ["share 9 on a/cpu0 with s=1"]),
    ("a newcomer of unknown length preempts as one of five minutes", [report("a", 1)], trained(job(900)),
     job(None), ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("one of five minutes preempts where it would be held up and hold up for 240 s", [report("a", 1)],
     trained(job(900, HEAVY)), job(300, HEAVY), ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("two of unknown length that get no more done than taking turns never share", [report("a", 1)],
     trained(job(None, resumable=False)), job(None), []),
]
# fmt: on


@pytest.mark.parametrize("row", ROWS, ids=[row[0].replace(" ", "-") for row in ROWS])
def test_the_plan(row: Row) -> None:
    _, hosts, before, newcomer, wanted = row
    desk = Desk("cotenant", *hosts, ageing_s=150.0)
    before(desk)
    desk.submit(9, **newcomer)
    assert planned(desk) == wanted


def test_jobs_wait_in_the_order_of_remaining_service() -> None:
    desk = Desk("cotenant", TWO)
    desk.run(1, **job(50, gpus=2, share="never"))
    desk.submit(2, **job(100, gpus=2))
    desk.submit(3, **job(150))
    desk.end(1)
    assert (desk.phase(2), desk.phase(3)) == ("queued", "loading")  # 100 x 2^.75 = 168


def pair(desk: Desk, host_s: float, guest_s: float, like: object = MILD, *, wait_s: float = 0.0) -> None:
    """Jobs 1 and 2 train on one device, for `wait_s`, and have so much left then."""
    trained_s = wait_s / 1.4  # As `MILD` beside another.
    desk.run(1, **job(host_s + trained_s, like))
    desk.submit(2, **job(guest_s + trained_s, like))
    assert desk.devices(2) == desk.devices(1)
    desk.start(2)
    desk.wait(wait_s)


def test_a_job_that_shares_is_a_victim_with_what_it_has_left_alone() -> None:
    desk = Desk("cotenant", report("a", 1))
    pair(desk, 700.0, 600.0)
    desk.submit(3, **job(100, share="never", priority=-5))  # Of lower priority, so it preempts nobody.
    found = {one.job_id: -less_s for less_s, _, _, one in spare(desk.engine.ledger, [desk.job(3)], PATIENT)}
    assert found == {"1": pytest.approx(700.0), "2": pytest.approx(600.0)}
    ends_in_s = desk.job(1).estimate.end_s - desk.now_s
    assert ends_in_s == pytest.approx(980.0)  # 1.4 times as long: when the device becomes free.


def test_a_device_with_two_tenants_is_taken_from_both() -> None:
    desk = Desk("cotenant", report("a", 1))
    pair(desk, 900.0, 900.0, wait_s=EARNED_S)
    desk.submit(3, **job(100))
    assert planned(desk) == ["preempt 1 for 3", "preempt 2 for 3", "place 3 on a/cpu0"]


def test_a_device_with_two_tenants_is_taken_only_if_both_are_valid_victims() -> None:
    desk = Desk("cotenant", report("a", 1))
    pair(desk, 900.0, 100.0, wait_s=EARNED_S)  # The guest has less left than the newcomer needs.
    desk.submit(3, **job(90))
    assert planned(desk) == []


def test_a_device_one_of_whose_two_tenants_loads_is_not_taken() -> None:
    desk = Desk("cotenant", report("a", 1))
    desk.run(1, **job(900, MILD))
    desk.submit(2, **job(900, MILD))
    desk.submit(3, **job(10))
    assert (desk.phase(2), planned(desk)) == ("loading", [])


def test_a_host_that_ends_leaves_the_device_to_its_guest() -> None:
    desk = Desk("cotenant", report("a", 1))
    pair(desk, 300.0, 300.0)
    desk.end(1)
    assert (desk.phase(2), desk.devices(2)) == ("running", ("a/cpu0",))


def test_a_host_that_is_preempted_leaves_the_device_to_its_guest() -> None:
    desk = Desk("cotenant", report("a", 1))
    pair(desk, 300.0, 300.0)
    desk.tell(ev.PreemptRequested(job_id=JobId("1"), by="root"))
    desk.end(1, "stopped")
    assert (desk.phase(2), desk.devices(2)) == ("running", ("a/cpu0",))


def test_a_pair_never_seen_goes_by_the_default_speed_and_each_kinds_own_record() -> None:
    desk = Desk("cotenant", report("a", 3))
    for number, name in enumerate("xyz", 1):
        desk.run(number, **job(9000, UNKNOWN, argv=("python", f"{name}.py")))
    for _ in range(3):
        desk.tell(ev.PairObserved(first=JobId("1"), second=JobId("2"), first_xi=1.25, second_xi=1.0))
    view = desk.engine.ledger
    first, third = desk.job(1), desk.job(3)
    known = record_ratios(view.pairs.interference(first, third))
    assert known.first == pytest.approx(1 / ((1 / 1.5 + 1 / 1.25) / 2))  # Record of x.py: 1 / 1.25.
    assert known.second == pytest.approx(1.5)  # z.py has none.
    slots = Sharing(CotenantParameters().sharing()).slots(Plan(view))
    assert slots.interference(first, third) == known
    seen = record_ratios(view.pairs.interference(first, desk.job(2)))
    assert seen.first == pytest.approx(1.25)


def test_what_is_known_of_a_pair_otherwise_comes_before_the_record() -> None:
    sources: tuple[XiSource, ...] = ("observed", "measured", "predicted", "duty-cycle")
    for source in sources:
        xi = Interference(first=1.9, second=1.8, source=source, first_speed=1.0)
        assert record_ratios(xi) is xi


def test_a_pair_that_is_measured_to_lose_is_parted_and_not_made_again() -> None:
    desk = Desk("cotenant", report("a", 1))
    pair(desk, 900.0, 900.0, wait_s=EARNED_S)
    for _ in range(2):
        desk.tell(ev.PairObserved(first=JobId("1"), second=JobId("2"), first_xi=2.5, second_xi=2.5))
    assert "checkpointing" in (desk.phase(1), desk.phase(2))
    stops = "1" if desk.phase(1) == "checkpointing" else "2"
    desk.end(stops, "stopped")
    assert desk.phase(stops) == "queued"
    assert not any(isinstance(action, Share) for action in desk.engine.decision.actions)


def test_the_reason_of_a_share_has_the_costs_of_the_alternatives() -> None:
    desk = Desk("cotenant", report("a", 1))
    trained(job(900, MILD))(desk)
    desk.submit(9, **job(100, MILD))
    assert str(desk.job(9).reason) == (
        "shares with 1, which delays the jobs involved by about 80 s in all; waiting would delay them by "
        "about 15 min, preempting would delay them by about 2 min; it should end in about 2 min, in whole "
        "batches of 32, each step 1.40 times as long"
    )


def test_the_reason_of_a_preemption_has_the_costs_of_the_alternatives() -> None:
    desk = Desk("cotenant", report("a", 1))
    trained(job(900, HEAVY))(desk)
    desk.submit(9, **job(100, HEAVY))
    preempt, place = desk.engine.decision.actions
    assert str(place.reason) == (
        "preempts 1, with longer to run than the switch costs; this delays the jobs involved by about 2 min "
        "in all, waiting would delay them by about 15 min, sharing would delay them by about 3 min"
    )
    assert str(preempt.reason) == (
        "preempted for 9, which has 1m50s to run; this job has 15m00s left, more than that "
        "and 28s for switching"
    )


def test_one_that_waits_is_told_the_costs_of_the_alternatives() -> None:
    desk = Desk("cotenant", report("a", 1))
    trained(job(20, HEAVY))(desk)
    desk.submit(9, **job(1000, HEAVY))
    assert desk.why(9) == (
        "waits, which delays the jobs involved by about 20 s in all; sharing would delay them by about 30 s; "
        "preempting would delay them by about 17 min"
    )


def test_one_that_can_do_nothing_else_is_told_why() -> None:
    desk = Desk("cotenant", report("a", 1))
    desk.submit(1, **job(20, LIGHT, share="never", job_class="hp"))
    desk.submit(9, **job(1000, LIGHT))
    assert desk.why(9) == (
        "waits, which delays the jobs involved by about 30 s in all; sharing is not possible; preempting is "
        "not possible; cannot share with 1: it was submitted with --share never"
    )


def test_it_composes_with_the_classes_and_the_quota_of_gfs_rise() -> None:
    desk = Desk("cotenant", TWO)
    below: dict[str, str | int | float | bool] = {"order": "cotenant", "share": "castor-cost"}
    desk.tell(ev.PolicyChanged(name="gfs-rise", parameters=below))
    desk.run(1, **job(900, LIGHT))
    desk.run(2, **job(900, LIGHT))
    desk.submit(3, **job(100, LIGHT))
    desk.wait(0.0)
    assert (desk.phase(3), desk.devices(3)) == ("loading", desk.devices(1))  # Spot jobs share.
    desk.submit(4, **job(100, LIGHT, job_class="hp"))
    desk.wait(0.0)
    assert (desk.phase(4), desk.phase(2)) == (
        "reserved",
        "checkpointing",
    )  # hp takes, and shares with nobody.


def test_a_promised_job_is_neither_shared_with_nor_preempted() -> None:
    desk = Desk("cotenant", report("a", 1))
    until = desk.engine.promises.offer((spec(1, **job(900, LIGHT)),), desk.now_s)
    assert not isinstance(until, Reason)
    desk.submit(1, promised_s=until[0], **job(900, LIGHT))
    desk.start(1)
    desk.submit(2, **job(10, LIGHT))
    assert (desk.phase(1), desk.phase(2)) == ("running", "queued")


@pytest.mark.parametrize("wrong", [{"lookahead": 0}, {"observations": 0}, {"width_power": -1.0}, {"n": 1}])
def test_a_wrong_parameter_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        registry.make("cotenant", wrong)


@given(steps=STEPS)
@settings(max_examples=int(settings().max_examples * 0.5))
def test_whatever_happens_every_guard_holds(steps: list[Step]) -> None:
    engine = made("cotenant", ageing_s=5000.0)
    for host in HOSTS:
        engine.handle(ev.HostJoined(report=host), 0.0)
    for step in steps:
        event = event_of(engine, step, ("cotenant",))
        before = {one.job_id: one.phase for one in engine.jobs.values()}
        engine.handle(event, engine.now_s + WAITS_S[step[3] % len(WAITS_S)])
        assert not any(one.counts.futile_preemptions or one.spent.futile_s for one in engine.jobs.values())
        for action in engine.decision.actions:
            if isinstance(action, Preempt) and action.for_job is not None:
                assert before[action.job_id] in (Phase.RUNNING, Phase.RESERVED, Phase.LOADING)
                is_at_risk = before[action.job_id] is Phase.RUNNING
                assert not (is_at_risk and is_refuted(engine, engine.jobs[action.job_id]))
                check_pays(engine.jobs[action.job_id], engine.jobs[action.for_job], engine.now_s)
            elif isinstance(action, Share) and engine.jobs[action.job_id].phase is Phase.LOADING:
                check_share(engine, engine.jobs[action.job_id])


def is_refuted(engine: Engine, job: Job) -> bool:
    return job.spec.resumable is not True and engine.ledger.resumes.counts(job).proof == "refuted"


def check_share(engine: Engine, newcomer: Job) -> None:
    """It costs less than waiting and than preempting, and more gets done than by taking turns."""
    placement = newcomer.placement
    assert placement is not None
    wait, share, preempt = placement.reason.operands[1:4]
    assert isinstance(share, float)
    for other in (wait, preempt):
        assert isinstance(other, str) or (isinstance(other, float) and share < other)
    view = engine.ledger
    for beside in placement.beside:
        xi = record_ratios(view.pairs.interference(newcomer, engine.jobs[beside]))
        assert 1.0 / (xi.first * placement.slowdown) + 1.0 / xi.second > 1.0


@given(workload=workloads())
@settings(max_examples=max(2, int(settings().max_examples * 0.1)), deadline=None)
def test_in_simulated_runs_everything_ends_and_no_load_is_for_nothing(workload: Workload) -> None:
    outcome = simulate(workload, Cluster(hosts=2, gpus_per_host=4), "cotenant", validate=True)
    assert outcome.finished.all()
    assert outcome.futile_preemptions.sum() == 0
    assert outcome.futile_s.sum() == 0.0


@given(workload=workloads())
@settings(max_examples=3, deadline=None)
def test_where_nobody_can_share_it_is_patient(workload: Workload) -> None:
    cluster, alone = Cluster(hosts=1, gpus_per_host=8), Physics(pairs="none")
    options: dict[str, str | int | float | bool] = {"earned": False}
    mine = simulate(replace(workload), cluster, "cotenant", options, physics=alone)
    theirs = simulate(replace(workload), cluster, "patient", physics=alone)
    np.testing.assert_array_equal(mine.jct_s, theirs.jct_s)


# --- Where nothing can resume ----------------------------------------------------------------------------


def test_small_jobs_pass_a_wide_one_until_that_is_late() -> None:
    desk = Desk("cotenant", report("a", 4), ageing_s=100.0)
    desk.submit(1, **job(10_000.0))
    desk.start(1, resumable=False)
    desk.submit(2, **job(10.0), gpus=4)
    desk.submit(3, **job(20_000.0))
    desk.start(3, resumable=False)
    assert desk.phase(2) == "queued"
    desk.wait(101.0)
    desk.submit(4, **job(10.0))
    assert (desk.phase(2), desk.phase(4)) == ("queued", "loading"), "it ends before the wide one can start"
    desk.submit(5, **job(20_000.0))
    assert desk.phase(5) == "queued", "the devices are kept for the wide one"


def test_a_late_job_goes_before_priorities() -> None:
    desk = Desk("cotenant", report("a", 1), ageing_s=100.0)
    for number in range(10, 20):
        desk.submit(number, **job(10.0))
        desk.start(number, resumable=False)
        if number < 19:
            desk.end(number)
    desk.submit(1, **job(10.0))
    desk.wait(101.0)
    desk.submit(2, **job(10.0), priority=5)
    desk.end(19)
    assert (desk.phase(1), desk.phase(2)) == ("loading", "queued")
