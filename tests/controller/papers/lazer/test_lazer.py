"""Lazer's orchestrator, DWQ, DRQ and completion handler with a fixed deferral; over random histories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.domain import (
    ON_DEVICES,
    AnyAction,
    AnyCommand,
    ComputeRequest,
    Decision,
    Defer,
    ExitVerdict,
    HostId,
    Job,
    JobId,
    Phase,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine, Snapshot
from cotenant.controller.papers.lazer.learning import KIND, Learner, Prediction
from cotenant.controller.papers.lazer.parameters import LazerParameters
from cotenant.controller.papers.lazer.policy import Lazer
from cotenant.controller.planning import View
from cotenant.controller.wire import pack, unpack
from tests.controller.building import Desk, engine, report, spec
from tests.controller.histories import HOSTS, STEPS, Step, event_of
from tests.controller.policies.test_classic import Before, decided, later, running, then
from tests.controller.policies.test_classic import queued as submitted
from tests.controller.watching import Watcher

LONG = {"expected_s": 1000.0}
TWO = report("a", 2)


class Fixed(Learner):
    """Always the same deferral."""

    x_s = 20.0

    def predict(
        self, now_s: float, remaining_s: float, load_s: float, pause_s: float, already: int = 0
    ) -> Prediction:
        return Prediction(self.x_s, "exploitation", 0.0, load_s, pause_s)


class LazerDesk(Desk):
    """A desk under Lazer; `x_s` is how long it will defer."""

    def __init__(self, *hosts: Any, x_s: float = 20.0, ageing_s: float = 0.0, **options: Any) -> None:
        parameters = LazerParameters(**options)
        self.policy = Lazer(parameters)
        self.policy.learner = Fixed(parameters)
        self.defers(x_s)
        super().__init__("lazer", *hosts, make=lambda name, given: self.policy, ageing_s=ageing_s)

    def defers(self, x_s: float) -> None:
        assert isinstance(self.policy.learner, Fixed)
        self.policy.learner.x_s = x_s

    def leaves(self, job_id: int) -> None:
        """A preempted job saves and goes."""
        self.durable(job_id, self.job(job_id).progress.step + 1)
        self.end(job_id, "stopped")


# fmt: off
Row = tuple[str, dict[str, Any], list[Any], Before, dict[str, Any], list[str]]
ARRIVALS: list[Row] = [
    ("free devices come first", {}, [TWO], running(LONG), {"expected_s": 1}, ["place 9 on a/cpu1"]),
    ("a shorter newcomer is deferred, and so are its victims", {}, [report()], running(LONG),
     {"expected_s": 10}, ["defer 9 until 20 for 1"]),
    ("a deferral of nothing is a preemption", {"x_s": 0.0}, [report()], running(LONG),
     {"expected_s": 10}, ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("a longer newcomer waits", {}, [report()], running({"expected_s": 50.0}), {"expected_s": 100}, []),
    ("one of equal length waits", {}, [report()], running(LONG), dict(LONG), []),
    ("one of unknown length is expected to need five minutes", {}, [report()], running(LONG), {},
     ["defer 9 until 20 for 1"]),
    ("and waits where that is longer", {}, [report()], running({"expected_s": 250.0}), {}, []),
    ("the longest is taken first", {}, [TWO], running({"expected_s": 500.0}, LONG), {"expected_s": 10},
     ["defer 9 until 20 for 2"]),
    ("as many as are needed are taken", {}, [TWO], running({"expected_s": 500.0}, LONG),
     {"expected_s": 10, "gpus": 2}, ["defer 9 until 20 for 2 1"]),
    ("one shorter job in the way of a gang keeps it waiting", {}, [TWO], running({"expected_s": 5.0}, LONG),
     {"expected_s": 10, "gpus": 2}, []),
    ("class hp is never taken", {}, [report()], running({"job_class": "hp", **LONG}), {"expected_s": 10}, []),
    ("what cannot resume is never taken", {}, [report()], running({"resumable": False, **LONG}),
     {"expected_s": 10}, []),
    ("a job that loads may be taken", {"x_s": 0.0}, [report()], submitted(1, resumable=True, **LONG),
     {"expected_s": 10}, ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("a job that loads may be protected", {"x_s": 0.0, "protect_loading": True}, [report()],
     submitted(1, resumable=True, **LONG), {"expected_s": 10}, []),
    ("victims of a deferral are out of reach for others", {}, [report()],
     then(running(LONG), submitted(2, expected_s=20.0)), {"expected_s": 10}, []),
    ("another newcomer takes the next in line", {}, [TWO],
     then(running(LONG, {"expected_s": 500.0}), submitted(3, expected_s=20.0)), {"expected_s": 10},
     ["defer 9 until 20 for 2"]),
    ("a newcomer does not preempt while an aged job waits for devices", {"ageing_s": 150.0}, [TWO],
     then(running(LONG, {"job_class": "hp", **LONG}), submitted(3, gpus=2, expected_s=1), later(200)),
     {"expected_s": 2}, []),
    ("behind a reserved head nobody preempts", {"reserve_head": True, "x_s": 0.0}, [TWO],
     then(running({"expected_s": 500.0}), submitted(2, gpus=2, expected_s=600.0)), {"expected_s": 700.0}, []),
    ("before a reserved head a newcomer gets the free device", {"reserve_head": True}, [TWO],
     then(running({"expected_s": 500.0}), submitted(2, gpus=2, expected_s=600.0)), {"expected_s": 5.0},
     ["place 9 on a/cpu1"]),
    ("without a reservation a smaller job passes the head", {}, [TWO],
     then(running({"expected_s": 500.0}), submitted(2, gpus=2, expected_s=600.0)), {"expected_s": 700.0},
     ["place 9 on a/cpu1"]),
]
# fmt: on


@pytest.mark.parametrize("row", ARRIVALS, ids=[row[0].replace(" ", "-") for row in ARRIVALS])
def test_on_arrival(row: Row) -> None:
    _, options, hosts, before, newcomer, wanted = row
    desk = LazerDesk(*hosts, **options)
    before(desk)
    desk.submit(9, **newcomer)
    assert decided(desk) == wanted


def deferred(*jobs: dict[str, Any], **options: Any) -> LazerDesk:
    """One device, job 1 runs long; job 9 of 10 s is deferred from 0 to 20 s."""
    desk = LazerDesk(**options)
    running(LONG)(desk)
    desk.submit(9, expected_s=10.0)
    assert decided(desk) == ["defer 9 until 20 for 1"]
    return desk


def test_at_the_wake_the_newcomer_preempts() -> None:
    desk = deferred()
    desk.wait(19.0)
    assert desk.phase(1) == "running"
    assert desk.why(9) == "preempting 1 for it is put off for another 1s"
    desk.wait(1.0)
    assert decided(desk) == ["preempt 1 for 9", "place 9 on a/cpu0"]
    desk.leaves(1)
    assert desk.phase(9) == "loading"
    assert desk.phase(1) == "queued"


def test_the_reasons_name_the_prediction() -> None:
    desk = deferred()
    assert "preempting 1 for it is put off by 20s (exploitation" in str(desk.job(9).reason)
    desk.defers(0.0)
    desk.wait(30.0)
    desk.leaves(1)
    desk.start(9)
    desk.submit(10, expected_s=1.0)
    assert "makes room at once: deferral 0s" in str(desk.job(10).placement.reason)


def test_at_the_wake_others_may_be_longer() -> None:
    desk = LazerDesk(TWO)
    running(LONG, {"expected_s": 600.0})(desk)
    desk.submit(9, expected_s=10.0)
    assert decided(desk) == ["defer 9 until 20 for 1"]
    desk.end(1)
    desk.submit(3, expected_s=2000.0)
    desk.start(3)
    desk.wait(20.0)
    assert decided(desk) == ["preempt 3 for 9", "place 9 on a/cpu0"]


def test_at_the_wake_without_victims_it_joins_the_queue_and_is_not_deferred_again() -> None:
    desk = deferred()
    desk.submit(2, expected_s=5.0)  # Its only victim could be 1, which is taken: it waits.
    desk.end(1)
    desk.start(2)
    desk.wait(20.0)
    assert decided(desk) == []
    assert desk.why(9).startswith("first in lazer order")
    desk.end(2)
    assert decided(desk) == ["place 9 on a/cpu0"]


def test_freed_devices_go_to_the_queue_and_not_to_deferred_newcomers() -> None:
    desk = deferred()
    desk.submit(2, expected_s=500.0)
    desk.end(1)
    assert decided(desk) == ["place 2 on a/cpu0"]


def test_freed_devices_go_to_the_shortest_if_deferred_newcomers_are_offered_them() -> None:
    desk = deferred(dwq_offered=True)
    desk.submit(2, expected_s=500.0)
    desk.end(1)
    assert decided(desk) == ["place 9 on a/cpu0"]
    desk.wait(30.0)
    assert desk.phase(9) == "loading"


def test_devices_nobody_took_are_there_at_the_wake() -> None:
    desk = deferred()
    desk.end(1)
    assert decided(desk) == []
    desk.wait(20.0)
    assert decided(desk) == ["place 9 on a/cpu0"]


def test_all_free_devices_are_offered_to_the_queue_shortest_first() -> None:
    desk = LazerDesk(report("a", 4))
    running({"gpus": 4, "expected_s": 5.0})(desk)
    for number, gpus, expected_s in ((2, 2, 300.0), (3, 3, 100.0), (4, 1, 400.0), (5, 1, 200.0)):
        desk.submit(number, gpus=gpus, expected_s=expected_s)
    desk.end(1)
    assert decided(desk) == ["place 3 on a/cpu0 a/cpu1 a/cpu2", "place 5 on a/cpu3"]


GIVE_BACK: list[tuple[str, Before]] = [
    ("cancelled", lambda desk: desk.tell(ev.CancelRequested(job_id=JobId("9"), by="ann"))),
    ("held", lambda desk: desk.tell(ev.HoldRequested(job_id=JobId("9"), by="ann"))),
]


@pytest.mark.parametrize(("name", "what"), GIVE_BACK, ids=[name for name, _ in GIVE_BACK])
def test_when_a_deferred_newcomer_goes_its_victims_are_back_in_reach(name: str, what: Before) -> None:
    desk = deferred()
    what(desk)
    desk.submit(10, expected_s=20.0)
    assert decided(desk) == ["defer 10 until 20 for 1"]
    desk.wait(20.0)
    assert decided(desk) == ["preempt 1 for 10", "place 10 on a/cpu0"]


def test_a_newcomer_that_was_held_and_released_is_new_again() -> None:
    desk = deferred()
    desk.tell(ev.HoldRequested(job_id=JobId("9"), by="ann"), 5.0)
    desk.tell(ev.ReleaseRequested(job_id=JobId("9"), by="ann"), 1.0)
    assert decided(desk) == ["defer 9 until 26 for 1"]
    desk.wait(14.5)  # Past the first deferral's end.
    assert desk.phase(1) == "running"
    desk.wait(6.0)
    assert desk.phase(1) == "checkpointing"


def test_a_victim_that_was_stopped_and_started_again_is_nobodys_victim() -> None:
    desk = LazerDesk()
    running(LONG)(desk)
    desk.submit(9, expected_s=10.0)
    desk.tell(ev.PreemptRequested(job_id=JobId("1"), by="root"))
    desk.leaves(1)
    desk.start(1)
    desk.submit(10, expected_s=20.0)
    assert decided(desk) == ["defer 10 until 20 for 1"]


def test_a_victim_that_was_lost_gives_the_newcomer_what_is_left_at_the_wake() -> None:
    desk = LazerDesk(report("a", 1), report("b", 1))
    running(LONG, {"expected_s": 900.0})(desk)
    desk.submit(9, expected_s=10.0)
    assert decided(desk) == ["defer 9 until 20 for 1"]
    desk.tell(ev.HostLost(host_id=HostId("a"), by="root"))
    desk.wait(20.0)
    assert decided(desk) == ["preempt 2 for 9", "place 9 on b/cpu0"]


def test_two_deferrals_that_end_together_are_decided_in_order_of_arrival() -> None:
    desk = LazerDesk(TWO)
    running(LONG, {"expected_s": 600.0})(desk)
    desk.submit(8, expected_s=30.0)
    desk.submit(9, expected_s=10.0)
    assert decided(desk) == ["defer 9 until 20 for 2"]
    desk.wait(20.0)
    assert decided(desk) == [
        "preempt 1 for 8",
        "place 8 on a/cpu0",
        "preempt 2 for 9",
        "place 9 on a/cpu1",
    ]


def test_a_preempted_job_is_no_newcomer() -> None:
    desk = LazerDesk(TWO, x_s=0.0)
    running({"expected_s": 600.0}, LONG)(desk)
    desk.submit(9, expected_s=10.0, gpus=2)
    desk.leaves(1)
    desk.leaves(2)
    desk.start(9)
    assert [desk.phase(1), desk.phase(2)] == ["queued", "queued"]
    desk.end(9)
    assert decided(desk) == ["place 1 on a/cpu0", "place 2 on a/cpu1"]


def test_a_newcomer_that_lost_its_reservation_to_another_is_one_of_the_queue() -> None:
    desk = LazerDesk(x_s=0.0)
    running(LONG)(desk)
    desk.submit(9, expected_s=10.0)
    assert desk.phase(9) == "reserved"
    desk.tell(ev.HostSilent(host_id=HostId("a")))
    assert desk.phase(9) == "queued"
    desk.tell(ev.HostBack(host_id=HostId("a")))
    assert decided(desk) == []


def test_after_a_change_of_policy_those_who_were_deferred_wait_in_the_queue() -> None:
    desk = deferred()
    known = desk.policy
    desk.policy = Lazer(LazerParameters())
    desk.policy.learner = Fixed(LazerParameters())
    desk.tell(ev.PolicyChanged(name="lazer", by="root"))
    assert known is not desk.policy
    desk.wait(30.0)
    assert desk.phase(1) == "running"
    assert desk.why(9).startswith("first in lazer order")
    desk.end(1)
    assert decided(desk) == ["place 9 on a/cpu0"]


def test_an_aged_newcomer_is_offered_devices_though_it_is_deferred() -> None:
    desk = deferred(ageing_s=5.0)
    desk.wait(6.0)
    desk.end(1)
    assert decided(desk) == ["place 9 on a/cpu0"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"bootstrap": 1}, "bootstrap must be at least 2"),
        ({"updates_min": 5}, "must not be below bootstrap"),
        ({"updates_max": 50}, "updates_max must be"),
        ({"x_max_s": -0.1}, "x_max_s must be 0 to"),
        ({"x_max_s": float("nan")}, "x_max_s must be 0 to"),
        ({"ei_stop": 1.5}, "ei_stop must be"),
        ({"refit_every": 0}, "refit_every must be"),
        ({"window_s": -1.0}, "window_s must be"),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        LazerParameters(**options)


# --- Random histories -----------------------------------------------------------------------------------


class Eager(Lazer):
    """Learns from a few samples, and writes down whose deferral it found over."""

    def __init__(self, **options: Any) -> None:
        few = {"bootstrap": 2, "updates_min": 3, "updates_max": 6, "refit_every": 1, **options}
        super().__init__(LazerParameters(**few))
        self.over: list[JobId] = []

    def _schedule(self, view: View, due: list[Job]) -> list[AnyAction]:
        self.over = [job.job_id for job in due]
        return super()._schedule(view, due)


OPTIONS = st.fixed_dictionaries(
    {
        "chain": st.sampled_from(("first", "last")),
        "newcomers": st.sampled_from(("first", "every")),
        "dwq_offered": st.booleans(),
        "protect_loading": st.booleans(),
        "reserve_head": st.booleans(),
        "seed": st.integers(0, 3),
    }
)
Told = tuple[ev.AnyEvent, float]


def fresh(options: dict[str, Any], ageing_s: float = 5000.0) -> tuple[Engine, Eager]:
    policy = Eager(**options)
    make = lambda name, given: policy  # noqa: E731
    return engine("lazer", make=make, keep_ended=6, ageing_s=ageing_s), policy


def answer(think: ComputeRequest, z: int) -> ev.Computed:
    """Hyperparameters, or one of the things that go wrong."""
    values = (0.1, 0.0, 20.0, 10.0, 0.3, 0.5, 0.5, 0.5, 0.5)
    wrong = ((), (0.1,) * 3, (-1.0, *values[1:]), (float("nan"), *values[1:]))
    return ev.Computed(
        request_id=think.request_id,
        model_sha256="",
        values=values if z % 3 else wrong[z % len(wrong)],
        error="it broke" if z % 7 == 0 else "",
    )


LENGTHS_S = (3.0, 10.0, 30.0, 100.0, 300.0)
PAUSES_S = (0.0, 0.0, 1.0, 4.0, 12.0, 40.0)


def meaning(engine: Engine, step: Step) -> ev.AnyEvent:
    """Mostly short newcomers on a cluster full of long jobs, and jobs that do as they are told."""
    kind, x, y, z = step
    if kind % 8 < 3:
        gpus, expected_s = (1, 1, 1, 2)[x % 4], LENGTHS_S[y % 5] + x / 100.0
        more = {"resumable": z % 8 > 0, "hold": z % 13 == 0, "load_s": float(z % 40), "pause_s": float(y % 9)}
        newcomer = spec(engine.ledger.next_number, gpus=gpus, expected_s=expected_s, **more)
        return ev.JobArrived(spec=newcomer)
    here = [job for job in engine.jobs.values() if job.phase in ON_DEVICES]
    if kind % 8 < 7 and here:
        job = here[x % len(here)]
        host_id = job.attempt.hosts_left[0]
        if job.phase is Phase.LOADING:
            return ev.FirstStepDone(
                job_id=job.job_id, attempt=job.attempt.number, host_id=host_id, step=job.progress.step + 1
            )
        if job.phase is Phase.RUNNING and y % 3:
            return ev.AlarmRang()
        outcome: Any = "finished" if job.phase is Phase.RUNNING else "stopped"
        return ev.AttemptEnded(
            job_id=job.job_id,
            attempt=job.attempt.number,
            host_id=host_id,
            verdict=ExitVerdict(outcome=outcome),
        )
    return event_of(engine, step, ("lazer",))


def play(engine: Engine, policy: Eager, steps: Sequence[Step]) -> tuple[list[Told], int]:
    """The events that the steps meant, and how many deferrals were watched to their ends."""
    watcher = Watcher(engine)
    told: list[Told] = []
    asked: list[ComputeRequest] = []
    ends: dict[JobId, tuple[float, float]] = {}
    watched = 0

    def tell(event: ev.AnyEvent, now_s: float) -> None:
        nonlocal watched
        event = unpack(pack(event), ev.AnyEvent)
        policy.over = []
        commands: list[AnyCommand] = engine.handle(event, now_s)
        told.append((event, now_s))
        watcher.saw(event, commands)
        asked.extend(command for command in commands if isinstance(command, ComputeRequest))
        watched += follow(engine, policy, ends)

    for host in HOSTS[:2]:
        tell(ev.HostJoined(report=host), 0.0)
    for number in range(1, 7):
        tell(ev.JobArrived(spec=spec(number, expected_s=1000.0 * number, resumable=True)), 0.0)
    for step in steps:
        until_s, alarm_s = engine.now_s + PAUSES_S[step[3] % len(PAUSES_S)], engine.next_alarm_s
        while step[2] % 4 and alarm_s is not None and alarm_s <= until_s:  # Else it is late.
            tell(ev.AlarmRang(), max(alarm_s, engine.now_s))
            alarm_s = engine.next_alarm_s
        answered = asked and step[1] % 3 == 0
        event = answer(asked.pop(), step[2]) if answered else meaning(engine, step)
        if not isinstance(event, ev.PolicyChanged):  # It would come with the same policy, learned and all.
            tell(event, until_s)
    return told, watched


def follow(engine: Engine, policy: Eager, ends: dict[JobId, tuple[float, float]]) -> int:
    """Every deferred newcomer that still waits when its time has come is decided then, at the first event
    at which anything is; and an alarm is set for it."""
    found = 0
    for job_id, (until_s, since_s) in list(ends.items()):
        job = engine.jobs.get(job_id)
        if job is None or (job.phase_since_s != since_s and job_id not in policy.over):
            del ends[job_id]
        elif until_s <= engine.now_s:
            assert job_id in policy.over, f"nobody decided on {job_id}, deferred until {until_s}"
            del ends[job_id]
            found += 1
        else:
            assert job_id not in policy.over
            alarm_s = engine.next_alarm_s
            assert alarm_s is not None and alarm_s <= until_s
    for action in engine.decision.actions:
        if isinstance(action, Defer):
            assert action.job_id not in policy.over, "deferred twice"
            job = engine.jobs[action.job_id]
            assert job.phase is Phase.QUEUED
            ends[action.job_id] = (action.until_s, job.phase_since_s)
    return found


@given(steps=STEPS, options=OPTIONS)
@settings(max_examples=40)
def test_no_deferral_is_lost_and_no_promise_broken(steps: list[Step], options: dict[str, Any]) -> None:
    play(*fresh(options), steps)


@given(steps=STEPS, options=OPTIONS, cut=st.integers(0, 80))
@settings(max_examples=30)
def test_what_was_learned_is_the_same_in_whatever_way_it_was_reached(
    steps: list[Step], options: dict[str, Any], cut: int
) -> None:
    told, _ = play(*fresh(options), steps)
    first, decided = fresh(options)[0], []
    commands = []
    for event, now_s in told:
        commands.append(pack(first.handle(event, now_s)))
        decided.append(pack(first.decision))
    folded = fresh(options)[0]
    for (event, now_s), decision, wanted in zip(told, decided, commands, strict=True):
        assert pack(folded.fold(event, unpack(decision, Decision), now_s)) == wanted
    assert msgspec.msgpack.encode(folded.snapshot()) == msgspec.msgpack.encode(first.snapshot())
    cut = min(cut, len(told))
    before, restored = fresh(options)[0], fresh(options)[0]
    for event, now_s in told[:cut]:
        before.handle(event, now_s)
    restored.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(before.snapshot()), type=Snapshot))
    for (event, now_s), wanted in zip(told[cut:], commands[cut:], strict=True):
        assert pack(restored.handle(event, now_s)) == wanted
    assert msgspec.msgpack.encode(restored.snapshot()) == msgspec.msgpack.encode(first.snapshot())


def test_a_fit_that_never_comes_back_keeps_nobody_waiting() -> None:
    engine, policy = fresh({})
    desk = LazerDesk()
    desk.engine, desk.policy = engine, policy
    desk.tell(ev.HostJoined(report=report("a", 1)))
    number = 0
    while policy.learner.stage != "exploitation" and number < 60:
        number += 1
        desk.submit(number, expected_s=20_000.0 - 300.0 * number)
        desk.wait(150.0)
        if desk.phase(number) == "reserved":
            desk.leaves(int(desk.job(number).waits_for[0]))
        if desk.phase(number) == "loading":
            desk.start(number)
    assert policy.learner.stage == "exploitation"
    asked = [a for a in engine.decision.actions if getattr(a, "kind", "") == KIND]
    assert asked == []
