"""srtf-full, interval, ssf, srsf and tiresias: plans as tables, then what must hold at any time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from cotenant.controller.domain import HostId, Wake
from cotenant.controller.domain import events as ev
from cotenant.controller.papers.literature.remaining import RemainingTime
from cotenant.controller.planning import Plan
from cotenant.controller.policies import registry
from cotenant.controller.policies.base import is_quiet
from cotenant.controller.policies.toolkit import Candidates
from cotenant.controller.policies.toolkit.whole_queue import rearrange
from tests.controller.building import Desk, report
from tests.controller.building import engine as made
from tests.controller.histories import HOSTS, STEPS, WAITS_S, Step, event_of
from tests.controller.policies.test_classic import (
    LONG,
    TWO,
    Row,
    later,
    nothing,
    queued,
    running,
    then,
    told,
    written,
)

LOADING = queued(1, **LONG, resumable=True)
"""Job 1 has got devices and not finished its first step."""


def planned(desk: Desk) -> list[str]:
    """The last decision, leaving out when to be woken."""
    assert desk.engine.refusals == []
    return [written(action) for action in desk.engine.decision.actions if not isinstance(action, Wake)]


def woken(desk: Desk) -> list[float]:
    return [action.at_s for action in desk.engine.decision.actions if isinstance(action, Wake)]


# fmt: off
SSF: list[Row] = [
    ("a short wide job stands behind a long narrow one", [TWO],
     then(running({}, {}), queued(3, gpus=2, expected_s=60), told(ev.HostJoined(report=report("b", 1)))),
     {"expected_s": 100}, ["place 9 on b/cpu0"]),
    ("nobody is preempted", [TWO], running(dict(LONG), dict(LONG)), {"expected_s": 1}, []),
]
SRSF: list[Row] = [
    ("free devices before preemption", [TWO], running(dict(LONG)), {"expected_s": 1}, ["place 9 on a/cpu1"]),
    ("a gang with less time but more service is preempted first", [report("a", 2), report("b", 1)],
     running({"gpus": 2, "expected_s": 600.0}, dict(LONG)), {"expected_s": 1},
     ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("a gang of less time and more service preempts nobody", [TWO],
     running({"expected_s": 100.0}, {"expected_s": 100.0}), {"gpus": 2, "expected_s": 60.0}, []),
    ("service counts from now on", [TWO],
     then(running({"expected_s": 500.0}, {"expected_s": 800.0}), later(450)), {"expected_s": 100.0},
     ["preempt 2 for 9", "place 9 on a/cpu1"]),
    ("hp is never preempted", [report("a", 1)], running({"job_class": "hp", **LONG}), {"expected_s": 1}, []),
    ("a newcomer of unknown length is expected to need five minutes", [report("a", 1)], running(dict(LONG)),
     {}, ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("and preempts nobody who needs less", [report("a", 1)], running({"expected_s": 200.0}), {}, []),
    ("a job of unknown length is expected to need as much as it has had", [report("a", 1)],
     then(running({}), later(1020)), {"expected_s": 400.0}, ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("and is not preempted by one that needs more", [report("a", 1)], then(running({}), later(1020)),
     {"expected_s": 1100.0}, []),
    ("one that waits does not preempt when another arrives", [TWO],
     then(running({"job_class": "hp", **LONG}, {"resumable": False, **LONG}), queued(3, expected_s=1),
          told(ev.HostJoined(report=report("b", 1)))), {"expected_s": 0.5}, []),
]
FULL: list[Row] = [
    ("free devices before preemption", [TWO], running(dict(LONG)), {"expected_s": 1}, ["place 9 on a/cpu1"]),
    ("the longest is preempted", [TWO], running({"expected_s": 800.0}, dict(LONG)), {"expected_s": 1},
     ["preempt 2 for 9", "place 9 on a/cpu1"]),
    ("an equal job is left alone", [report("a", 1)], running({"expected_s": 5.0}), {"expected_s": 5}, []),
    ("a job that loads may be preempted", [report("a", 1)], LOADING, {"expected_s": 1},
     ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("all victims of a gang or none", [TWO], running(dict(LONG), {"job_class": "hp", **LONG}),
     {"gpus": 2, "expected_s": 1}, []),
    ("devices of two hosts make no gang for one", [report("a", 2), report("b", 2)],
     running({"gpus": 1, "job_class": "hp"}, {"gpus": 2, "job_class": "hp"}, dict(LONG)),
     {"gpus": 2, "expected_s": 1}, []),
    ("one that saves and leaves is left to do so, and its successor keeps its place", [report("a", 1)],
     then(running(dict(LONG)), queued(2, expected_s=50)), {"expected_s": 60}, []),
    ("a reservation is replaced by one that is shorter", [report("a", 1)],
     then(running(dict(LONG)), queued(2, expected_s=50)), {"expected_s": 40},
     ["preempt 2 for 9", "place 9 on a/cpu0"]),
    ("a reservation of class hp is not replaced", [report("a", 1)],
     then(running(dict(LONG)), queued(2, expected_s=50, job_class="hp")), {"expected_s": 40}, []),
    ("a longer job is preempted before a reservation is replaced", [TWO],
     then(running(dict(LONG), {"expected_s": 800.0}), queued(3, expected_s=50)), {"expected_s": 40},
     ["preempt 2 for 9", "place 9 on a/cpu1"]),
    ("what a gang leaves over is taken before somebody else is preempted", [report("a", 4), report("b", 1)],
     then(running({"gpus": 4, **LONG}, {"expected_s": 800.0}), queued(3, expected_s=50)), {"expected_s": 60},
     ["place 9 on a/cpu1"]),
    ("one that ends before a late job can start may preempt meanwhile", [TWO],
     then(running(dict(LONG), {"job_class": "hp", **LONG}), queued(3, gpus=2, expected_s=1), later(200)),
     {"expected_s": 2}, ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("a newcomer of unknown length is expected to need five minutes", [report("a", 1)], running(dict(LONG)),
     {}, ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("and preempts nobody who needs less", [report("a", 1)], running({"expected_s": 200.0}), {}, []),
    ("a job of unknown length is expected to need as much as it has had", [report("a", 1)],
     then(running({}), later(1020)), {"expected_s": 400.0}, ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("and is not preempted by one that needs more", [report("a", 1)], then(running({}), later(1020)),
     {"expected_s": 1100.0}, []),
    ("hp is never preempted", [report("a", 1)], running({"job_class": "hp", **LONG}), {"expected_s": 1}, []),
    ("what cannot resume is never preempted", [report("a", 1)], running({"resumable": False, **LONG}),
     {"expected_s": 1}, []),
    ("devices of a drained host are not worth a preemption", [report("a", 1), report("b", 1)],
     then(running(dict(LONG), {"expected_s": 800.0}), told(ev.HostDrained(host_id=HostId("a"), by="root"))),
     {"expected_s": 1}, ["preempt 2 for 9", "place 9 on b/cpu0"]),
]
TIRESIAS: list[Row] = [
    ("jobs of one queue do not preempt those that came before", [report("a", 1)], running(dict(LONG)),
     {"expected_s": 1}, []),
    ("a job that has had its share of the first queue is preempted", [report("a", 1)],
     then(running({}), later(3250)), {}, ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("just before that it is not", [report("a", 1)], then(running({}), later(3249)), {}, []),
    ("service is time x GPUs", [TWO], then(running({"gpus": 2}), later(1625)), {},
     ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("within the last queue the one that came last is preempted first", [TWO],
     then(running({}, {}), later(4000)), {}, ["preempt 2 for 9", "place 9 on a/cpu1"]),
    ("a gang gets all its devices or none", [TWO],
     then(running({}, {"job_class": "hp"}), later(4000)), {"gpus": 2}, []),
    ("expected times do not matter", [report("a", 1)],
     then(running({"expected_s": 4001.0}), later(4000)), {"expected_s": 9e6},
     ["preempt 1 for 9", "place 9 on a/cpu0"]),
]
INTERVAL: list[Row] = [
    ("nothing happens between two looks, whatever is free", [TWO], nothing, {"expected_s": 1}, []),
]
# fmt: on
TABLES = {"ssf": SSF, "srsf": SRSF, "srtf-full": FULL, "tiresias": TIRESIAS, "las": TIRESIAS}
TABLES["interval-60"] = INTERVAL
ROWS = [(policy, row) for policy, rows in TABLES.items() for row in rows]


@pytest.mark.parametrize(
    ("policy", "row"), ROWS, ids=[f"{policy}: {row[0]}".replace(" ", "-") for policy, row in ROWS]
)
def test_the_plan(policy: str, row: Row) -> None:
    _, hosts, before, newcomer, wanted = row
    desk = Desk(policy, *hosts, ageing_s=0.0 if policy in ("tiresias", "las") else 150.0)
    before(desk)
    desk.submit(9, **newcomer)
    assert planned(desk) == wanted


def test_under_srtf_full_one_that_waits_preempts_when_a_job_ends_and_under_srtf_it_does_not() -> None:
    def after_the_end(policy: str) -> list[str]:
        desk = Desk(policy, report("a", 2), report("b", 1))
        desk.run(1, expected_s=5.0, job_class="hp")  # On host b.
        desk.run(2, expected_s=900.0)
        desk.run(3, expected_s=800.0, job_class="hp")
        desk.submit(4, gpus=2, expected_s=50.0)  # Only host a could hold it, and job 3 keeps its device.
        desk.end(3)
        return planned(desk)

    assert after_the_end("srtf") == []
    assert after_the_end("srtf-full") == ["preempt 2 for 4", "place 4 on a/cpu0 a/cpu1"]


def test_an_interval_policy_starts_at_multiples_what_has_arrived_since() -> None:
    desk = Desk("interval-60", report("a", 1))
    desk.wait(70)
    desk.submit(1, expected_s=900.0, resumable=True)
    assert woken(desk) == [120.0]
    desk.submit(2, expected_s=50.0)
    assert woken(desk) == [], "asked for once"
    assert desk.why(2) == "interval-60 looks at the queue every 1m00s and starts nothing in between"
    desk.wait(49)
    assert (desk.phase(1), desk.phase(2)) == ("queued", "queued")
    desk.wait(1)
    assert desk.phase(2) == "loading", "the shortest of those that came between two looks"


def test_an_interval_policy_does_nothing_at_completions_and_everything_at_the_next_look() -> None:
    desk = Desk("interval-60", report("a", 1))
    for job, expected_s in ((1, 20.0), (2, 50.0)):
        desk.submit(job, expected_s=expected_s)
    desk.wait(60)
    desk.start(1)
    desk.end(1)
    assert desk.phase(2) == "queued"
    desk.wait(60)
    assert desk.phase(2) == "loading"


def test_an_interval_policy_preempts_at_a_look_only() -> None:
    desk = Desk("interval-60", report("a", 1))
    desk.submit(1, expected_s=900.0)
    desk.wait(60)
    desk.start(1)
    desk.submit(2, expected_s=50.0)
    assert desk.phase(1) == "running"
    desk.wait(60)
    assert (desk.phase(1), desk.phase(2)) == ("checkpointing", "reserved")


def test_an_arrival_exactly_at_a_multiple_is_seen_by_a_look_that_was_asked_for_and_asks_for_none() -> None:
    desk = Desk("interval-60", report("a", 2))
    desk.wait(70)
    desk.submit(1, expected_s=900.0)
    desk.now_s = 120.0  # The world's order: what happens at a moment comes before the alarms of that moment.
    desk.submit(2, expected_s=50.0)
    assert (desk.phase(1), desk.phase(2)) == ("loading", "loading"), "the look at 120 sees all that is there"
    desk.now_s = 180.0
    desk.submit(3, expected_s=50.0)
    assert (desk.phase(3), woken(desk)) == ("queued", [240.0]), "nobody had waited for a look at 180"


REPLACES = {"srtf-full": True, "tiresias": False, "patient": True, "srtf": False, "srsf": False}
"""Whether a reservation goes to a later job that is shorter; under tiresias the earlier of two keeps it."""


@pytest.mark.parametrize(("policy", "replaces"), REPLACES.items(), ids=REPLACES)
@pytest.mark.parametrize("more", [{}, {"job_class": "hp"}, {"priority": 5}], ids=str)
def test_a_reserved_job_as_a_victim(policy: str, replaces: bool, more: dict[str, Any]) -> None:
    desk = Desk(policy, report("a", 1), ageing_s=0.0)
    desk.run(1, expected_s=90_000.0)
    desk.wait(3250)
    desk.submit(2, expected_s=5000.0, **more)
    assert (desk.phase(1), desk.phase(2)) == ("checkpointing", "reserved")
    desk.submit(3, expected_s=50.0)
    replaced = replaces and not more
    assert (desk.phase(2), desk.phase(3)) == (("queued", "reserved") if replaced else ("reserved", "queued"))
    assert desk.job(2).counts.futile_preemptions == 0
    assert not desk.engine.refusals


@pytest.mark.parametrize("policy", ["interval-60", "tiresias", "patient"])
def test_an_idle_cluster_is_left_asleep(policy: str) -> None:
    desk = Desk(policy, report("a", 2), ageing_s=0.0)
    desk.submit(1, expected_s=900.0)
    desk.wait(60)
    desk.start(1)
    desk.wait(5000)
    desk.end(1)
    desk.wait(60)
    assert desk.engine.next_alarm_s is None


def test_a_job_is_demoted_while_it_runs_at_the_moment_it_reaches_the_threshold() -> None:
    desk = Desk("tiresias", report("a", 2), ageing_s=0.0)
    desk.run(1, gpus=2)
    desk.wait(1000)
    desk.submit(2)
    assert woken(desk) == [1625.0]
    desk.wait(624)
    assert desk.phase(1) == "running"
    desk.wait(1)
    assert (desk.phase(1), desk.phase(2)) == ("checkpointing", "reserved")


def test_a_demotion_nearer_than_the_one_asked_for_is_seen() -> None:
    desk = Desk("tiresias", report("a", 1), report("b", 4), ageing_s=0.0)
    desk.run(1)
    desk.wait(10)
    desk.submit(2, gpus=4)
    desk.submit(3)
    assert woken(desk) == [3250.0]
    desk.start(2)
    assert woken(desk) == [10 + 3250 / 4]
    desk.wait(3250 / 4)
    assert desk.phase(2) == "checkpointing"


def test_a_demoted_job_waits_behind_all_of_the_first_queue() -> None:
    desk = Desk("tiresias", report("a", 1), ageing_s=0.0)
    desk.run(1)
    desk.wait(3300)
    desk.submit(2)
    desk.submit(3)
    desk.durable(1, 1)
    desk.end(1, "stopped")
    desk.start(2)
    assert desk.why(1) == "no job that could be preempted comes after this one in queue 2 of attained service"
    desk.end(2)
    assert desk.phase(3) == "loading"


@pytest.mark.parametrize(
    ("given", "limits"),
    [("3250", (3250.0,)), (7200, (7200.0,)), ("3250,7200", (3250.0, 7200.0)), ("five-hours", (18000.0,))],
)
def test_thresholds_are_numbers_or_the_name_of_a_preset(given: Any, limits: tuple[float, ...]) -> None:
    policy: Any = registry.make("tiresias", {"thresholds_gpu_s": given})
    assert policy.parameters.limits() == limits


@pytest.mark.parametrize("wrong", ["", "soon", "-5", "0", "7200,3250", "3250,3250"])
def test_thresholds_that_make_no_sense_are_refused_with_what_would(wrong: str) -> None:
    with pytest.raises(ValueError, match="rising numbers above 0 or one of one-hour"):
        registry.make("tiresias", {"thresholds_gpu_s": wrong})


def test_more_queues_than_two() -> None:
    desk = Desk("tiresias", report("a", 2), ageing_s=0.0)
    parameters: Any = {"thresholds_gpu_s": "100,1000"}
    desk.tell(ev.PolicyChanged(name="tiresias", parameters=parameters, by="root"))
    desk.run(1)
    desk.wait(900)
    desk.run(2)
    desk.wait(500)  # Job 1 is in the third queue, job 2 in the second.
    desk.submit(3)
    assert planned(desk) == ["preempt 1 for 3", "place 3 on a/cpu0"]


@pytest.mark.parametrize(
    ("policy", "expected_s", "wanted"),
    [
        (
            "srsf",
            999.0,
            "no job that could be preempted has more GPU time left than this job: 16m39s",
        ),
        (
            "srtf-full",
            999.0,
            "no job that could be preempted has longer to run than this job, which has 16m39s",
        ),
        (
            "tiresias",
            1.0,
            "no job that could be preempted comes after this one in queue 1 of attained service",
        ),
    ],
)
def test_why_the_first_in_the_queue_waits(policy: str, expected_s: float, wanted: str) -> None:
    desk = Desk(policy, report("a", 1))
    desk.run(1, expected_s=20.0)
    desk.submit(9, expected_s=expected_s)
    assert desk.why(9) == wanted


MOVES_ESTIMATES = (ev.ProgressSeen, ev.ProfileLearned, ev.PairObserved, ev.PolicyChanged)


@given(steps=STEPS)
@settings(max_examples=int(settings().max_examples * 0.5))
def test_after_every_event_of_srtf_full_the_whole_queue_has_nothing_left_to_ask_for(
    steps: list[Step],
) -> None:
    """What `whose_turn` rests on: an arrival, with nothing free, is the newcomer's affair alone."""
    engine = made("srtf-full", ageing_s=0.0)
    for host in HOSTS:
        engine.handle(ev.HostJoined(report=host), 0.0)
    for step in steps:
        event = event_of(engine, step, ("srtf-full",))
        if isinstance(event, MOVES_ESTIMATES):
            continue
        engine.handle(event, engine.now_s + WAITS_S[step[3] % len(WAITS_S)])
        while (alarm_s := engine.next_alarm_s) is not None and alarm_s <= engine.now_s:
            engine.handle(ev.AlarmRang(), engine.now_s)
        if not is_quiet(engine.ledger, event) and not engine.refusals:
            plan = Plan(engine.ledger)
            rearrange(plan, RemainingTime("srtf-full"), Candidates(engine.ledger))
            assert plan.actions == []
