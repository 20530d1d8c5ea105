"""Preempting is earned: the rule of `cotenant` over drawn histories, in a world with accounts of its own."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.domain import (
    AnyCommand,
    Booking,
    ExitVerdict,
    JobId,
    Phase,
    Preempt,
    StartAttempt,
    StopAttempt,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.policies.earned import COST_SHARE
from tests.controller.building import Desk, report, spec
from tests.controller.building import engine as made
from tests.controller.policies.test_cotenant import EARNED_S, LIGHT, job, pair, trained

NEAR = 1e-6


class Row(NamedTuple):
    """A job as the world knows it; times are in seconds."""

    job_id: str
    submit_s: float
    trains_s: float
    loads_s: tuple[float, ...]
    """Of its attempts, in turn."""
    pause_s: float
    more: dict[str, Any]


class Account(msgspec.Struct):
    """What the world has seen of a job."""

    row: Row
    attempt: int = 0
    host: str = ""
    is_training: bool = False
    is_leaving: bool = False
    since_s: float = 0.0
    trained_s: float = 0.0
    load_s: float = 0.0
    """Of this attempt."""
    cost_s: float = 0.0
    """Of all its preemptions."""
    preemptions: int = 0
    had_s: float = 0.0
    """The training that its last preemption, if that had to be earned, was decided by."""

    def now_trained_s(self, now_s: float) -> float:
        return self.trained_s + (now_s - self.since_s if self.is_training else 0.0)


class Play:
    """An engine under `cotenant`, and a world of jobs that load, train, tell their length after a minute,
    save and leave. Co-tenants do not slow each other here."""

    def __init__(self, rows: Sequence[Row], devices: int, **parameters: bool) -> None:
        self.engine = made("cotenant", late_share=0.5, validate=False)
        self.now_s = 0.0
        self.accounts = {JobId(row.job_id): Account(row) for row in rows}
        self._ticket = count()
        self._heap: list[tuple[float, int, str, str, int]] = []
        self.wrong: list[str] = []
        """Preemptions that had not been earned."""
        self.told: list[str] = []
        self.handle(ev.PolicyChanged(name="cotenant", parameters={**parameters}))
        self.handle(ev.HostJoined(report=report("a", devices)))
        for row in rows:
            self._push(row.submit_s, "submit", row.job_id, 0)

    def _push(self, at_s: float, what: str, job_id: str, attempt: int) -> None:
        heapq.heappush(self._heap, (at_s, next(self._ticket), what, job_id, attempt))

    def run(self) -> Play:
        while self._heap or any(one.phase is Phase.QUEUED for one in self.engine.jobs.values()):
            alarm_s = self.engine.next_alarm_s
            if alarm_s is not None and (not self._heap or alarm_s <= self._heap[0][0]):
                self.now_s = max(self.now_s, alarm_s)
                self.handle(ev.AlarmRang())
                continue
            assert self._heap, "somebody waits, and nothing will ever happen"
            self.now_s, _, what, job_id, attempt = heapq.heappop(self._heap)
            account = self.accounts[JobId(job_id)]
            if account.attempt == attempt:
                getattr(self, f"_{what}")(account)
        return self

    def handle(self, event: ev.AnyEvent) -> None:
        before = {job_id: (one.phase, self._expects_s(job_id)) for job_id, one in self.engine.jobs.items()}
        commands = self.engine.handle(event, self.now_s)
        for action in self.engine.decision.actions:
            phase, expected_s = (
                before.get(action.job_id, ("", 0.0)) if isinstance(action, Preempt) else ("", 0.0)
            )
            if isinstance(action, Preempt) and phase in (Phase.RUNNING, Phase.LOADING):
                self._check(action, expected_s)
        self._obey(commands)

    def _expects_s(self, job_id: str) -> float:
        estimate = self.engine.jobs[JobId(job_id)].estimate
        return max(estimate.load_s, self.accounts[JobId(job_id)].load_s) + estimate.pause_s

    def _check(self, action: Preempt, expected_s: float) -> None:
        """By the world's account, a preemption has been earned, or is exempt."""
        jobs, account = self.engine.jobs, self.accounts[action.job_id]
        account.preemptions += 1
        account.had_s = float("inf")
        if action.for_job is not None:
            spec, aged = jobs[action.for_job].spec, jobs[action.for_job].aged
            if aged or spec.job_class == "hp" or spec.priority > jobs[action.job_id].spec.priority:
                return
        had_s, here_s = account.now_trained_s(self.now_s), self.now_s - account.since_s
        account.had_s = had_s
        if account.cost_s + expected_s > COST_SHARE * had_s + NEAR or here_s < account.load_s - NEAR:
            self.wrong.append(
                f"{action.job_id} at {self.now_s:.1f}: cost {account.cost_s:.1f} + {expected_s:.1f} of "
                f"{had_s:.1f}, {here_s:.1f} since a load of {account.load_s:.1f}"
            )

    def _obey(self, commands: Sequence[AnyCommand]) -> None:
        for command in commands:
            if isinstance(command, StartAttempt):
                account = self.accounts[command.job_id]
                account.attempt, account.host, account.since_s = command.attempt, command.host_id, self.now_s
                loads_s = account.row.loads_s
                account.load_s = loads_s[(command.attempt - 1) % len(loads_s)]
                self._push(self.now_s + account.load_s, "load", command.job_id, command.attempt)
            elif isinstance(command, StopAttempt):
                account = self.accounts[command.job_id]
                assert command.save is account.is_training
                account.trained_s, account.is_training = account.now_trained_s(self.now_s), False
                account.since_s, account.is_leaving = self.now_s, True
                self._push(self.now_s + account.row.pause_s, "leave", command.job_id, account.attempt)

    # --- What happens ------------------------------------------------------------------------------

    def _of(self, account: Account) -> dict[str, Any]:
        return {"job_id": account.row.job_id, "attempt": account.attempt, "host_id": account.host}

    def _submit(self, account: Account) -> None:
        more = {"expected_s": None, "batch_size": 32, "pause_s": account.row.pause_s, **account.row.more}
        self.handle(ev.JobArrived(spec=spec(account.row.job_id, **more)))

    def _load(self, account: Account) -> None:
        if account.is_leaving:
            return
        of, step = self._of(account), int(account.trained_s)
        if account.attempt > 1:
            account.cost_s += account.load_s
            is_as_expected = len(set(account.row.loads_s)) == 1
            if is_as_expected and account.cost_s > COST_SHARE * account.had_s + NEAR:
                self.wrong.append(f"{account.row.job_id}: {account.cost_s} after {account.had_s}")
        self.handle(ev.AttemptStarted(**of))
        self.handle(ev.CapabilitiesSeen(**of, resumable=True, step=step))
        account.is_training, account.since_s = True, self.now_s
        left_s = account.row.trains_s - account.trained_s
        self._push(self.now_s + left_s, "end", account.row.job_id, account.attempt)
        self._push(self.now_s + 60.0, "tell", account.row.job_id, account.attempt)
        self.handle(ev.FirstStepDone(**of, step=step))

    def _tell(self, account: Account) -> None:
        if account.is_training:
            step, total = int(account.now_trained_s(self.now_s)), int(account.row.trains_s) + 1
            of = self._of(account)
            del of["host_id"]
            self.handle(ev.ProgressSeen(**of, step=step, step_s=1.0, total_steps=total))

    def _leave(self, account: Account) -> None:
        account.cost_s += self.now_s - account.since_s
        account.is_leaving = False
        of = self._of(account)
        if account.trained_s:
            self.handle(ev.CheckpointDurable(**of, step=int(account.trained_s)))
        self.handle(ev.AttemptEnded(**of, verdict=ExitVerdict(outcome="stopped")))

    def _end(self, account: Account) -> None:
        if account.is_training:
            account.trained_s, account.is_training = account.now_trained_s(self.now_s), False
            self.handle(ev.AttemptEnded(**self._of(account), verdict=ExitVerdict(outcome="finished")))
            account.attempt += 1  # Nothing more of it happens.


@st.composite
def histories(draw: st.DrawFn) -> list[Row]:
    """Long jobs, and tries that come in arrays or alone, some of them urgent."""
    rows: list[Row] = []
    seconds = st.sampled_from((1.0, 5.0, 20.0, 60.0))
    at_s = 0.0
    for number in range(1, draw(st.integers(4, 14))):
        at_s += draw(st.sampled_from((0.0, 1.0, 30.0, 200.0)))
        load_s, pause_s = draw(seconds), draw(st.sampled_from((0.0, 3.0, 10.0)))
        loads_s = (load_s, 3.0 * load_s) if draw(st.integers(0, 3)) == 0 else (load_s,)
        trains_s = draw(st.sampled_from((5.0, 15.0, 100.0, 700.0, 3000.0)))
        more: dict[str, Any] = {
            "gpus": draw(st.sampled_from((1, 1, 1, 2))),
            "priority": draw(st.sampled_from((0, 0, 0, 0, 5))),
            "job_class": draw(st.sampled_from(("spot",) * 6 + ("hp",))),
            "expected_s": draw(st.sampled_from((None, None, trains_s))),
        }
        tasks = draw(st.sampled_from((0, 0, 5)))
        for task in range(max(1, tasks)):
            job_id, limit = (f"{number}_{task}", {"array_limit": 2}) if tasks else (str(number), {})
            rows.append(Row(job_id, at_s, trains_s, loads_s, pause_s, more | limit))
    return rows


@given(rows=histories(), devices=st.sampled_from((2, 3)))
@settings(max_examples=max(5, int(settings().max_examples * 0.3)), deadline=None)
def test_every_preemption_has_been_earned(rows: list[Row], devices: int) -> None:
    assert not Play(rows, devices).run().wrong


def crowd() -> list[Row]:
    """Three long jobs on three devices, an array of which two tasks may run, and a try every minute."""
    of: dict[str, Any] = {"load_s": 20.0}
    long = [Row(str(n), 0.0, 900.0 + n, (20.0,), 3.0, of) for n in (1, 2, 3)]
    tasks = [Row(f"9_{n}", 45.0, 10.0, (20.0,), 3.0, of | {"array_limit": 2}) for n in range(16)]
    tries = [Row(str(20 + n), 60.0 * (n + 1), 10.0, (20.0,), 3.0, of) for n in range(15)]
    return long + tasks + tries


def test_the_property_fails_without_the_rule() -> None:
    assert Play(crowd(), 3, earned=False).run().wrong


def test_an_array_and_a_stream_of_tries_cost_long_jobs_little() -> None:
    lost_s: dict[bool, float] = {}
    preemptions: dict[bool, int] = {}
    for is_on in (False, True):
        accounts = Play(crowd(), 3, earned=is_on).run().accounts.values()
        lost_s[is_on] = sum(one.cost_s for one in accounts) / sum(one.trained_s for one in accounts)
        preemptions[is_on] = sum(one.preemptions for one in accounts)
    assert preemptions[False] >= 12 > 6 >= preemptions[True], preemptions
    assert lost_s[False] > 0.1 > 0.05 > lost_s[True], lost_s


# --- One by one ------------------------------------------------------------------------------------------


def test_a_job_that_has_just_loaded_is_left_alone_until_it_has_earned_that() -> None:
    desk = Desk("cotenant", report("a", 1))
    desk.run(1, **job(2000.0))
    desk.submit(9, **job(100.0))
    assert desk.phase(1) == "running"
    assert desk.why(9) == (
        "job 1 may be preempted in about 2 min: before that it has to train as long as it loaded, and ten "
        "times what its interruptions cost"
    )
    desk.wait(EARNED_S - 1.0)
    assert desk.phase(1) == "running"
    desk.wait(1.0)
    assert desk.phase(1) == "checkpointing", "the policy has asked to be woken then"


def test_what_a_preemption_has_cost_must_be_earned_before_the_next() -> None:
    desk = Desk("cotenant", report("a", 1))
    trained(job(5000.0))(desk)
    desk.submit(9, **job(100.0))
    desk.wait(5.0)
    desk.end(1, "stopped")
    desk.start(9)
    desk.end(9)
    desk.wait(40.0)  # It loads for so long, instead of 10 s.
    desk.start(1)
    assert desk.job(1).spent.interrupted_s == pytest.approx(45.0)
    desk.submit(10, **job(100.0))
    desk.wait(10.0 * (45.0 + 5.0 + 40.0) - EARNED_S - 1.0)
    assert desk.phase(1) == "running"
    desk.wait(1.0)
    assert desk.phase(1) == "checkpointing"


def test_steps_made_twice_are_a_cost() -> None:
    desk = Desk("cotenant", report("a", 1))
    desk.run(1, **job(2000.0))
    desk.progress(1, 50, step_s=2.0)
    desk.tell(ev.PreemptRequested(job_id=JobId("1"), by="root"))
    desk.end(1, "stopped")  # Nothing of it was saved.
    assert desk.job(1).spent.interrupted_s == pytest.approx(2.0 * 50)


@pytest.mark.parametrize("more", [{"priority": 1}, {"job_class": "hp"}])
def test_greater_priority_and_class_hp_need_not_wait_for_that(more: dict[str, Any]) -> None:
    desk = Desk("cotenant", report("a", 1))
    desk.run(1, **job(2000.0))
    desk.submit(8, **job(100.0))
    assert desk.phase(1) == "running"
    desk.submit(9, **job(100.0), **more)
    assert desk.phase(1) == "checkpointing"


def test_of_two_a_late_job_preempts_the_one_that_has_earned_its_load() -> None:
    desk = Desk("cotenant", report("a", 2), ageing_s=50.0)
    desk.run(1, **job(100_000.0))
    desk.wait(EARNED_S)
    desk.run(2, **job(400_000.0))
    desk.submit(3, **job(500_000.0, share="never"))
    desk.wait(50.0)
    assert (desk.phase(1), desk.phase(2)) == ("checkpointing", "running")


def test_a_pair_that_loses_is_parted_when_one_has_earned_its_load() -> None:
    desk = Desk("cotenant", report("a", 1))
    pair(desk, 900.0, 900.0)
    for wait_s in (0.0, 0.0, EARNED_S):
        desk.wait(wait_s)
        assert "checkpointing" not in (desk.phase(1), desk.phase(2))
        desk.tell(ev.PairObserved(first=JobId("1"), second=JobId("2"), first_xi=2.5, second_xi=2.5))
    assert "checkpointing" in (desk.phase(1), desk.phase(2))


def preempted(desk: Desk, left_s: float, **more: Any) -> None:
    """Job 1 has been preempted by job 8, and waits with so much left."""
    trained(job(left_s, **more))(desk)
    desk.tell(ev.JobArrived(spec=spec(8, **job(10.0, share="never", priority=1))))
    desk.end(1, "stopped")
    desk.start(8)


def test_the_next_task_of_an_array_takes_the_place_of_its_sibling() -> None:
    desk = Desk("cotenant", report("a", 2))
    desk.submit("5_0", **job(400.0), array_limit=1, share="never")
    desk.start("5_0")
    desk.submit("5_1", **job(400.0), array_limit=1, share="never")
    preempted(desk, 300.0)  # It stands before the next task, which has 400 s to go.
    assert (desk.phase(1), desk.phase("5_1")) == ("queued", "blocked")
    desk.end("5_0")
    assert (desk.phase(1), desk.phase("5_1")) == ("queued", "loading")
    assert str(desk.job("5_1").reason).startswith("takes the place of job 5_0, a task of its array")


def test_a_job_that_was_not_preempted_goes_before_that_task() -> None:
    desk = Desk("cotenant", report("a", 1))
    desk.submit("5_0", **job(400.0), array_limit=1, share="never")
    desk.start("5_0")
    desk.submit("5_1", **job(400.0), array_limit=1, share="never")
    desk.submit(1, **job(395.0), share="never")
    desk.end("5_0")
    assert (desk.phase(1), desk.phase("5_1")) == ("loading", "queued")


def test_a_waiting_task_takes_the_share_of_a_sibling_also_where_another_is_released() -> None:
    desk = Desk("cotenant", report("a", 1))
    desk.run(1, **job(5000.0, LIGHT))
    for task, share in (("5_0", "auto"), ("5_1", "auto"), ("5_2", "never")):
        desk.submit(task, **job(4000.0, LIGHT), array_limit=2, share=share)
    desk.start("5_0")
    assert (desk.phase("5_1"), desk.phase("5_2")) == ("queued", "blocked")
    desk.end("5_0")
    assert (desk.phase("5_1"), desk.phase("5_2")) == ("loading", "queued")


def test_who_was_preempted_joins_no_task_whose_place_the_next_one_takes() -> None:
    for tasks, phase in ((1, "loading"), (2, "queued")):
        desk = Desk("cotenant", report("a", 2))
        desk.submit("5_0", **job(5000.0, LIGHT), array_limit=1)
        desk.start("5_0")
        if tasks == 2:
            desk.submit("5_1", **job(5000.0, LIGHT), array_limit=1)
        preempted(desk, 6000.0, like=LIGHT)
        desk.wait(1.0)
        assert desk.phase(1) == phase, desk.why(1)


def test_who_was_preempted_starts_on_no_device_that_is_reserved_too_soon() -> None:
    for begins_s, phase in ((20.0, "queued"), (30.0, "loading")):  # It loads 10 s, trains 10 s, saves 5 s.
        desk = Desk("cotenant", report("a", 1))
        preempted(desk, 900.0)
        from_s = desk.now_s + begins_s
        booking = Booking(booking_id="r1", user="eve", gpus=1, from_s=from_s, until_s=from_s + 90.0)
        desk.tell(ev.BookingMade(booking=booking, by="eve"))
        desk.end(8)
        assert desk.phase(1) == phase, begins_s
