"""What a supervisor does, told as small stories: who says what at which second, and what follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.agent.ipc.channel import LeaseNow, SaveNow, StopNow
from cotenant.agent.ipc.records import Result
from cotenant.agent.supervisor.core.edge import (
    AllGone,
    AnyHappening,
    AnySupervisorEffect,
    ClearLeftovers,
    CouldNotStart,
    EndRanks,
    Finish,
    InterruptRanks,
    Noted,
    OutsideSignal,
    OverMemory,
    Publish,
    RankExited,
    RankMessageCame,
    Sampled,
    Started,
    SupervisorTicked,
    TellRank,
)
from cotenant.agent.supervisor.core.exits import StartProblem
from cotenant.agent.supervisor.core.printed import PrintedFacts
from cotenant.agent.supervisor.core.rank_messages import (
    AnyRankWord,
    DurableSaid,
    FirstStepReached,
    RankFailed,
    RankHello,
    RankWatched,
    Saving,
    StepConfirmed,
    StepDone,
    Stopped,
)
from cotenant.agent.supervisor.core.rank_tracker import LINGER_S, PEER_GRACE_S
from cotenant.agent.supervisor.core.stopping import KILL_GRACE_S, LOADING_GRACE_S, PLAIN_GRACE_S, SAVE_RETRY_S
from cotenant.agent.supervisor.core.supervision import Supervision
from cotenant.controller.domain import METRICS_MAX, HostId
from tests.building.orders import order_of

HOST = HostId("h")
T = TypeVar("T")


class Story:
    """A supervision, its clock, and what it asked for."""

    def __init__(self, ranks: int = 1, **fields: Any) -> None:
        self.order = order_of(ranks, **fields)
        self.now_s = 0.0
        self.supervision = Supervision(self.order, self.now_s)
        self.all: list[AnySupervisorEffect] = []
        self.new: list[AnySupervisorEffect] = []

    def happens(self, event: AnyHappening) -> list[AnySupervisorEffect]:
        self.new = self.supervision.handle(event, self.now_s)
        self.all += self.new
        return self.new

    def says(self, word: AnyRankWord) -> list[AnySupervisorEffect]:
        return self.happens(RankMessageCame(word=word))

    def until(self, when_s: float) -> None:
        """Let time pass, ringing every alarm on the way."""
        for _ in range(10_000):
            alarm_s = self.supervision.next_alarm_s
            if alarm_s > when_s:
                break
            self.now_s = max(self.now_s, alarm_s)
            self.happens(SupervisorTicked())
            assert self.supervision.next_alarm_s > self.now_s, "an alarm that never stops ringing"
        self.now_s = when_s

    def runs(self, *, resumable: bool = True) -> Story:
        """Started, said hello, and made its first step."""
        self.happens(Started())
        world_size = self.order.world_size
        for rank in range(world_size):
            self.says(hello(rank, world_size, resumable=resumable))
        for rank in range(world_size):
            self.says(FirstStepReached(v=1, rank=rank, step=1))
        return self

    def exits(self, *codes: int) -> None:
        for rank, code in enumerate(codes):
            if code >= 0:
                self.happens(RankExited(rank=rank, exit_code=code))
            else:
                self.happens(RankExited(rank=rank, signal=-code))

    def result(self, **gone: Any) -> Result:
        """The end: everything is gone."""
        assert any(isinstance(each, ClearLeftovers) for each in self.all), "processes still run"
        self.happens(AllGone(**gone))
        finish = self.of(Finish)
        assert len(finish) == 1
        assert self.supervision.is_done
        return finish[0].result

    def of(self, kind: type[T], effects: list[AnySupervisorEffect] | None = None) -> list[T]:
        return [each for each in (self.all if effects is None else effects) if isinstance(each, kind)]

    def signals(self) -> list[str]:
        return ["KILL" if each.force else "TERM" for each in self.of(EndRanks)]

    def words(self, effects: list[AnySupervisorEffect] | None = None) -> list[tuple[int, str, str, int, int]]:
        said = [(each.rank, msgspec.json.decode(each.data)) for each in self.of(TellRank, effects)]
        return [(rank, w["m"], w["phase"], w["step"], w["proposal"]) for rank, w in said]

    def agrees(self, *, ok: bool = True) -> int:
        """Every rank answers the last proposal, at the step before it; returns its step."""
        *_, (_, _, phase, step, proposal) = [word for word in self.words() if word[2] == "propose"]
        assert phase == "propose"
        for rank in range(self.order.world_size):
            self.says(StepConfirmed(v=1, rank=rank, proposal=proposal, step=step - 1, ok=ok))
        return step

    def stops_at(self, step: int) -> None:
        ranks = range(self.order.world_size)
        for rank in ranks:
            self.says(Saving(v=1, rank=rank, step=step))
        self.says(DurableSaid(v=1, rank=0, step=step, name=f"a1-s{step}"))
        for rank in ranks:
            self.says(Stopped(v=1, rank=rank, step=step))


def hello(rank: int, world_size: int, *, resumable: bool = True, step: int = 0) -> RankHello:
    return RankHello(v=1, rank=rank, world_size=world_size, resumable=resumable, accumulates=True, step=step)


def stop(*, save: bool, deadline_s: float = 60.0) -> StopNow:
    return StopNow(save=save, deadline_s=deadline_s, reason="preempted")


# --- Ctrl-C ---------------------------------------------------------------------------------------

INTERRUPT = StopNow(save=False, deadline_s=30.0, reason="cancelled by ann", interrupt=True)


def interrupted(ranks: int = 1) -> Story:
    story = Story(ranks=ranks).runs(resumable=False)
    story.happens(INTERRUPT)
    assert (story.of(InterruptRanks), story.signals()) == ([InterruptRanks()], [])
    return story


@pytest.mark.parametrize(("codes", "code"), [((0, 0), 0), ((-2, -2), 130), ((0, 3), 3)])
def test_a_job_that_ends_after_ctrl_c_is_stopped_with_its_own_exit_code(
    codes: tuple[int, int], code: int
) -> None:
    story = interrupted(ranks=2)
    story.exits(*codes)
    verdict = story.result().verdict
    assert (verdict.outcome, verdict.exit_code) == ("stopped", code)
    assert verdict.detail == f"ended after SIGINT with exit code {code} (cancelled by ann)"


def test_a_rank_that_saves_after_ctrl_c_has_its_time_though_others_have_ended() -> None:
    story = interrupted(ranks=2)
    story.exits(-2)
    story.until(29.9)
    assert story.signals() == []
    story.until(30.0)
    assert story.signals() == ["TERM"]
    story.until(30.0 + KILL_GRACE_S)
    assert story.signals() == ["TERM", "KILL"]
    story.happens(RankExited(rank=1, signal=9))
    verdict = story.result().verdict
    assert (verdict.outcome, verdict.exit_code) == ("stopped", None)
    assert story.of(InterruptRanks) == [InterruptRanks()], "once"


def test_a_second_word_cancels_a_job_that_still_ends() -> None:
    story = interrupted()
    story.until(3.0)
    story.happens(INTERRUPT)  # Again, from an agent that started again.
    assert story.signals() == []
    story.happens(CANCEL)
    assert story.signals() == ["TERM"]


def test_ctrl_c_to_a_job_that_is_asked_to_save_is_no_save() -> None:
    story = Story().runs()
    story.happens(stop(save=True))
    story.happens(INTERRUPT)
    assert story.of(InterruptRanks) == [InterruptRanks()]
    story.exits(-2)
    assert story.result().verdict.exit_code == 130


# --- Ends by themselves ---------------------------------------------------------------------------


def test_all_ranks_exit_with_0_and_the_job_is_finished() -> None:
    story = Story(ranks=2).runs()
    story.exits(0, 0)
    result = story.result()
    assert (result.verdict.outcome, result.verdict.exit_code, result.status.first_step) == ("finished", 0, 1)
    assert story.signals() == []


def test_a_rank_that_is_done_early_is_no_failure_and_the_others_are_waited_for() -> None:
    story = Story(ranks=2).runs()
    story.happens(RankExited(rank=0, exit_code=0))
    story.until(100_000.0)
    assert story.signals() == []
    story.happens(RankExited(rank=1, exit_code=0))
    assert story.result().verdict.outcome == "finished"


def test_a_rank_that_fails_gives_the_others_time_to_say_why_and_then_ends_the_gang() -> None:
    story = Story(ranks=2).runs()
    story.happens(RankExited(rank=1, exit_code=1))
    story.until(PEER_GRACE_S - 0.1)
    assert story.signals() == []
    story.until(PEER_GRACE_S)
    assert story.signals() == ["TERM"]
    story.until(PEER_GRACE_S + KILL_GRACE_S)
    assert story.signals() == ["TERM", "KILL"]
    story.happens(RankExited(rank=0, signal=9))
    result = story.result(tails={1: "ValueError: no such thing"})
    assert (result.verdict.outcome, result.verdict.exit_code) == ("user-failed", 1)
    assert result.verdict.detail == "rank 1: exit code 1: ValueError: no such thing"


@pytest.mark.parametrize(
    ("came_s", "outcome"),
    [(0.0, "user-failed"), (70.0, "infra-failed"), (100.0, "infra-failed"), (100.05, "infra-failed")],
    ids=["long before", "before", "with it", "just after"],
)
def test_a_signal_to_the_supervisor_explains_only_ends_of_its_time(came_s: float, outcome: str) -> None:
    story = Story().runs()
    for at_s in sorted({came_s, 100.0}):
        story.until(at_s)
        if at_s == came_s:
            story.happens(OutsideSignal(number=15))
        if at_s == 100.0:
            story.exits(-15)
    assert story.result().verdict.outcome == outcome


def test_what_the_ranks_left_behind_is_ended_before_there_is_a_result() -> None:
    story = Story().runs()
    story.exits(0)
    assert story.of(ClearLeftovers)
    assert not story.of(Finish)
    story.until(1000.0)
    assert not story.of(Finish)
    assert story.result().verdict.outcome == "finished"


def test_a_process_that_cannot_be_started_ends_the_attempt() -> None:
    story = Story(ranks=2)
    problem = StartProblem(rank=1, stage="command", code=2, text="No such file or directory")
    story.happens(CouldNotStart(problem=problem))
    result = story.result()
    assert (result.verdict.outcome, result.verdict.exit_code) == ("user-failed", 127)
    assert result.verdict.detail == "command not found on h: python"


# --- Starting -------------------------------------------------------------------------------------


def test_a_job_that_says_hello_and_then_hangs_is_ended_at_the_start_deadline() -> None:
    story = Story(start_deadline_s=100.0)
    story.happens(Started())
    story.says(hello(0, 1))
    story.until(99.0)
    assert story.signals() == []
    story.until(100.0 + KILL_GRACE_S)
    assert story.signals() == ["TERM", "KILL"]
    story.exits(-9)
    result = story.result()
    assert result.verdict.outcome == "user-failed"
    assert "no first step within 100 s" in result.verdict.detail


@pytest.mark.parametrize(
    ("late", "alive"),
    [
        pytest.param(Sampled(cpu_s=30.0, output_bytes=50), True, id="it computes"),
        pytest.param(Sampled(cpu_s=5.1, output_bytes=51), True, id="it prints"),
        pytest.param(Sampled(cpu_s=5.1, output_bytes=50), False, id="it sleeps"),
    ],
)
def test_a_script_without_the_library_is_ended_at_the_start_deadline_only_if_it_does_nothing(
    late: Sampled, alive: bool
) -> None:
    story = Story(start_deadline_s=100.0)
    story.happens(Started())
    story.until(50.0)
    story.happens(Sampled(cpu_s=5.0, output_bytes=50))
    story.until(99.5)
    story.happens(late)
    story.until(10_000.0)
    assert bool(story.signals()) is not alive


def test_a_watched_job_waits_for_its_first_step_until_that_comes() -> None:
    story = Story(start_deadline_s=100.0)
    story.happens(Started())
    assert not story.supervision.status.watched
    story.says(RankWatched(v=1, rank=0))
    story.until(99.0)
    assert story.of(Publish)[-1].status.watched
    story.says(FirstStepReached(v=1, rank=0, step=1))
    story.says(RankWatched(v=1, rank=0))  # A process that its script has started.
    assert not story.supervision.status.watched


def test_a_watched_job_that_is_alive_at_the_start_deadline_is_waited_for_no_longer() -> None:
    """It may use torch for inference, and never make a step."""
    story = Story(start_deadline_s=100.0)
    story.happens(Started())
    story.says(RankWatched(v=1, rank=0))
    story.until(50.0)
    story.happens(Sampled(cpu_s=5.0, output_bytes=50))
    story.until(99.5)
    story.happens(Sampled(cpu_s=50.0, output_bytes=50))
    assert story.supervision.status.watched
    story.until(101.0)
    assert story.signals() == []
    assert not story.of(Publish)[-1].status.watched
    story.says(RankWatched(v=1, rank=0))
    assert not story.supervision.status.watched


def test_the_first_step_ends_the_start_deadline() -> None:
    story = Story(start_deadline_s=100.0).runs()
    story.until(10_000.0)
    assert story.signals() == []


# --- Stopping -------------------------------------------------------------------------------------


def test_a_resumable_job_stops_at_an_agreed_step_with_its_state_saved() -> None:
    story = Story(ranks=2).runs()
    words = story.words(story.happens(stop(save=True)))
    assert [word[:3] for word in words] == [(0, "stop_at", "propose"), (1, "stop_at", "propose")]
    step = story.agrees()
    assert [word[:4] for word in story.words(story.new)] == [
        (0, "stop_at", "commit", step),
        (1, "stop_at", "commit", step),
    ]
    assert story.supervision.status.stop_step == step
    story.stops_at(step)
    story.exits(0, 0)
    result = story.result()
    assert (result.verdict.outcome, result.step) == ("stopped", step)
    assert result.status.durable[-1].name == f"a1-s{step}"
    assert story.signals() == []


def test_the_jobs_own_word_counts_more_than_exit_codes() -> None:
    """torchrun exits with 1 although its workers have saved and stopped."""
    story = Story(ranks=2).runs()
    story.happens(stop(save=True))
    story.stops_at(story.agrees())
    story.exits(1, -15)
    assert story.result().verdict.outcome == "stopped"


def test_a_good_end_at_a_durable_agreed_step_is_a_stop_even_if_the_last_words_are_lost() -> None:
    story = Story().runs()
    story.happens(stop(save=True))
    step = story.agrees()
    story.says(DurableSaid(v=1, rank=0, step=step, name=f"a1-s{step}"))
    story.exits(0)
    assert story.result().verdict.outcome == "stopped"


def test_a_job_that_finishes_before_the_agreed_step_is_finished() -> None:
    story = Story().runs()
    story.happens(stop(save=True))
    story.agrees()
    story.exits(0)
    assert story.result().verdict.outcome == "finished"


def test_a_job_that_has_stopped_but_does_not_exit_is_ended() -> None:
    story = Story().runs()
    story.happens(stop(save=True, deadline_s=10.0))
    story.stops_at(story.agrees())
    story.until(LINGER_S - 0.1)
    assert story.signals() == []
    story.until(LINGER_S + KILL_GRACE_S)
    assert story.signals() == ["TERM", "KILL"]
    story.exits(-9)
    assert story.result().verdict.outcome == "stopped"


def test_a_job_that_ignores_the_request_is_ended_at_the_deadline_and_goes_back_to_its_last_checkpoint() -> (
    None
):
    story = Story().runs()
    story.says(DurableSaid(v=1, rank=0, step=40, name="a1-s40"))
    story.happens(stop(save=True, deadline_s=30.0))
    story.until(29.9)
    assert story.signals() == []
    story.until(30.0 + KILL_GRACE_S)
    assert story.signals() == ["TERM", "KILL"]
    story.exits(-9)
    result = story.result()
    assert result.verdict.outcome == "stopped"
    assert "did not save and stop within 30 s" in result.verdict.detail
    assert "goes back to step 40" in result.verdict.detail


def test_a_job_that_cannot_save_is_asked_again_and_says_why_in_the_end() -> None:
    story = Story().runs()
    story.happens(stop(save=True, deadline_s=30.0))
    step = story.agrees()
    story.says(Saving(v=1, rank=0, step=step))
    story.says(RankFailed(v=1, rank=0, what="save", error="No space left on device"))
    before = len(story.words())
    story.until(SAVE_RETRY_S)
    assert [word[2] for word in story.words()[before:]] == ["propose"]
    story.until(30.0 + KILL_GRACE_S)
    story.exits(-9)
    assert "save: No space left on device" in story.result().verdict.detail


CANCEL = StopNow(save=False, deadline_s=0.0, reason="cancelled by ann")


@pytest.mark.parametrize(("word", "resumable", "stepped", "grace_s"), [
    pytest.param(stop(save=True), True, False, LOADING_GRACE_S, id="it is loading: nothing to lose"),
    pytest.param(stop(save=True), False, True, PLAIN_GRACE_S, id="it cannot resume"),
    pytest.param(CANCEL, True, True, PLAIN_GRACE_S, id="it is cancelled"),
    pytest.param(CANCEL, True, False, LOADING_GRACE_S, id="it is cancelled while it loads"),
])  # fmt: skip
def test_what_is_not_saved_gets_sigterm_and_time(
    word: StopNow, resumable: bool, stepped: bool, grace_s: float
) -> None:
    story = Story()
    story.happens(Started())
    story.says(hello(0, 1, resumable=resumable))
    if stepped:
        story.says(FirstStepReached(v=1, rank=0, step=1))
    story.happens(word)
    assert story.signals() == ["TERM"]
    assert story.words() == []
    story.until(grace_s - 0.1)
    assert story.signals() == ["TERM"]
    story.until(grace_s)
    assert story.signals() == ["TERM", "KILL"]
    story.exits(-9)
    assert story.result().verdict.outcome == "stopped"


def test_a_script_without_the_library_gets_sigterm_and_time() -> None:
    story = Story()
    story.happens(Started())
    story.happens(stop(save=True))
    assert story.signals() == ["TERM"]
    story.exits(143)
    result = story.result()
    assert (result.verdict.outcome, result.verdict.detail) == ("stopped", "ended on request (preempted)")


def test_a_later_word_without_a_save_overrides() -> None:
    story = Story().runs()
    story.happens(stop(save=True))
    assert story.signals() == []
    story.happens(stop(save=False))
    assert story.signals() == ["TERM"]


def test_a_repeated_word_changes_nothing_and_never_gives_more_time() -> None:
    story = Story().runs()
    story.happens(stop(save=True, deadline_s=30.0))
    count = len(story.words())
    story.now_s = 20.0
    story.happens(stop(save=True, deadline_s=30.0))
    assert len([w for w in story.words() if w[2] == "propose"]) <= count + 1  # The re-send that was due.
    story.until(30.0)
    assert story.signals() == ["TERM"]


def test_a_stop_that_comes_before_the_start_waits_for_it() -> None:
    story = Story()
    story.happens(stop(save=False))
    assert story.signals() == []
    story.happens(Started())
    assert story.signals() == ["TERM"]


def test_if_no_agreement_is_possible_the_job_is_ended_without_waiting_for_the_deadline() -> None:
    story = Story().runs()
    story.happens(stop(save=True, deadline_s=100_000.0))
    story.until(200.0)
    assert story.signals()[:1] == ["TERM"]
    story.exits(-15)
    assert "could not agree" in story.result().verdict.detail


def test_one_rank_without_the_library_makes_the_job_not_resumable() -> None:
    story = Story(ranks=2)
    story.happens(Started())
    story.says(hello(0, 2))
    story.says(FirstStepReached(v=1, rank=0, step=1))
    assert story.supervision.status.resumable is None
    story.happens(stop(save=True))
    assert story.signals() == ["TERM"]


# --- Saving ---------------------------------------------------------------------------------------


def test_saves_come_at_their_period_from_the_first_step_on() -> None:
    story = Story(checkpoint_every_s=100.0)
    story.happens(Started())
    story.says(hello(0, 1))
    story.until(50.0)
    story.says(FirstStepReached(v=1, rank=0, step=1))
    story.until(149.0)
    assert story.words() == []
    story.until(150.0)
    assert [word[1:3] for word in story.words()] == [("save_at", "propose")]
    step = story.agrees()
    story.says(Saving(v=1, rank=0, step=step))
    story.says(DurableSaid(v=1, rank=0, step=step, name=f"a1-s{step}"))
    assert [each.status.saving for each in story.of(Publish)[-2:]] == [True, False]
    story.until(249.0)
    assert len([word for word in story.words() if word[2] == "propose"]) == 1
    story.until(250.0)
    assert len([word for word in story.words() if word[2] == "propose"]) == 2


def test_a_script_that_is_saved_when_it_leaves_is_not_saved_before() -> None:
    story = Story(checkpoint_every_s=10.0)
    story.happens(Started())
    story.says(msgspec.structs.replace(hello(0, 1), leaves_only=True))
    story.says(FirstStepReached(v=1, rank=0, step=1))
    story.until(1000.0)
    assert story.words() == []


def test_a_save_on_request_moves_the_next_one() -> None:
    story = Story(checkpoint_every_s=100.0).runs()
    story.now_s = 60.0
    story.happens(SaveNow())
    step = story.agrees()
    story.says(Saving(v=1, rank=0, step=step))
    story.until(159.0)
    assert len([word for word in story.words() if word[2] == "propose"]) == 1


def test_a_job_that_cannot_resume_is_never_asked_to_save() -> None:
    story = Story(checkpoint_every_s=10.0).runs(resumable=False)
    story.happens(SaveNow())
    story.until(1000.0)
    assert story.words() == []


def test_nothing_is_saved_once_a_stop_is_wanted() -> None:
    story = Story(checkpoint_every_s=10.0).runs()
    story.happens(stop(save=True, deadline_s=100.0))
    story.stops_at(story.agrees())
    story.happens(SaveNow())
    story.until(15.0)
    assert not [word for word in story.words() if word[1] == "save_at"]


# --- The lease ------------------------------------------------------------------------------------


def test_without_a_renewal_it_saves_at_60_percent_and_stops_at_80() -> None:
    story = Story(lease_s=100.0).runs()
    story.until(59.9)
    assert story.words() == []
    story.until(60.0)
    assert [word[1:3] for word in story.words()] == [("save_at", "propose")]
    step = story.agrees()
    story.says(Saving(v=1, rank=0, step=step))
    story.says(DurableSaid(v=1, rank=0, step=step, name=f"a1-s{step}"))
    story.until(79.9)
    assert story.signals() == []
    story.until(80.0)
    assert story.signals() == ["TERM"]
    story.until(89.9)
    assert story.signals() == ["TERM", "KILL"], "all must be gone before the lease ends"
    story.exits(-9)
    result = story.result()
    assert (result.verdict.outcome, result.step) == ("stopped", 1)
    assert f"goes back to step {step}" in result.verdict.detail


def test_renewals_keep_it_running() -> None:
    story = Story(lease_s=100.0).runs()
    for second in range(0, 500, 50):
        story.until(float(second))
        story.happens(LeaseNow(left_s=100.0, full_s=100.0))
    assert story.words() == []
    assert story.signals() == []


def test_an_agent_that_is_cut_off_itself_does_not_make_it_save_again_and_again() -> None:
    story = Story(lease_s=100.0).runs()
    for second in range(60, 80):
        story.until(float(second))
        story.happens(LeaseNow(left_s=100.0 - second, full_s=100.0))
        if second == 60:
            story.says(Saving(v=1, rank=0, step=story.agrees()))
    assert len([word for word in story.words() if word[2] == "propose"]) == 1


def test_after_an_outage_the_next_one_counts_anew() -> None:
    story = Story(lease_s=100.0).runs()
    story.until(70.0)
    story.says(Saving(v=1, rank=0, step=story.agrees()))
    story.happens(LeaseNow(left_s=100.0, full_s=100.0))
    proposals = len([word for word in story.words() if word[2] == "propose"])
    story.until(129.0)
    assert len([word for word in story.words() if word[2] == "propose"]) == proposals
    story.until(130.0)
    assert len([word for word in story.words() if word[2] == "propose"]) == proposals + 1


@pytest.mark.parametrize("wakes_by", [SupervisorTicked(), LeaseNow(left_s=100.0, full_s=100.0)])
def test_who_was_frozen_until_the_lease_was_over_ends_its_ranks_at_once(wakes_by: AnyHappening) -> None:
    """Its job may run elsewhere by now, and no renewal that comes then takes that back."""
    story = Story(lease_s=100.0).runs()
    story.now_s = 130.0
    story.happens(wakes_by)
    assert story.signals() == ["TERM", "KILL"]


def test_a_renewal_that_was_late_but_in_time_keeps_it_running() -> None:
    story = Story(lease_s=100.0).runs()
    story.now_s = 99.0
    story.happens(LeaseNow(left_s=50.0, full_s=100.0))
    assert story.signals() == []


def test_a_late_renewal_keeps_a_job_that_could_not_go_on_elsewhere() -> None:
    story = Story(lease_s=100.0).runs(resumable=False)
    story.now_s = 130.0
    story.happens(LeaseNow(left_s=100.0, full_s=100.0))
    story.until(500.0)
    assert story.signals() == []


@pytest.mark.parametrize("says_hello", [True, False])
def test_a_job_that_cannot_resume_is_neither_saved_nor_stopped(says_hello: bool) -> None:
    story = Story(lease_s=100.0)
    story.happens(Started())
    if says_hello:
        story.says(hello(0, 1, resumable=False))
        story.says(FirstStepReached(v=1, rank=0, step=1))
    story.until(900.0)
    assert story.words() == []
    assert story.signals() == []


def test_a_job_that_is_still_loading_and_may_be_known_to_resume_is_stopped() -> None:
    """The controller could start it elsewhere when the lease ends, and here nothing is lost."""
    story = Story(lease_s=100.0, resume_step=50)
    story.happens(Started())
    story.until(80.0)
    assert story.signals() == ["TERM"]


def test_no_lease_no_end() -> None:
    story = Story(lease_s=100.0).runs()
    story.happens(LeaseNow(left_s=None, full_s=None))
    story.until(10_000.0)
    assert story.signals() == []


# --- Memory and status ----------------------------------------------------------------------------


def test_a_job_that_uses_more_memory_than_it_asked_for_is_killed_at_once() -> None:
    story = Story(host_memory_mib=100).runs()
    story.happens(OverMemory(used_mib=150.0))
    assert story.signals() == ["TERM", "KILL"]
    story.exits(-9)
    result = story.result()
    assert (result.verdict.outcome, result.verdict.exit_code) == ("user-failed", 137)
    assert result.verdict.detail.startswith("used 150 MiB of host memory; it may use 100 MiB (see --host-mem")
    assert result.verdict.is_over_host_limit


def test_facts_are_published_at_once_and_kept_and_progress_once_a_second() -> None:
    story = Story().runs()
    facts = story.of(Publish)
    assert [each.keep for each in facts] == [True, True, True]
    for tenth in range(1, 51):
        story.until(tenth / 10)
        story.says(StepDone(v=1, rank=0, step=tenth, count=1, elapsed_s=0.1, loss=1.0))
    later = story.of(Publish)[len(facts) :]
    assert 4 <= len(later) <= 6
    assert not any(each.keep for each in later)
    assert later[-1].status.step_s == 0.1


def test_a_printed_loss_counts_until_a_rank_tells_one() -> None:
    story = Story()
    story.happens(Started())
    story.happens(Sampled(printed=PrintedFacts((("loss", 2.5),))))
    assert story.supervision.status.loss == 2.5
    story.happens(Sampled())
    assert story.supervision.status.loss == 2.5, "nothing new was printed"
    story.says(StepDone(v=1, rank=0, step=3, count=1, elapsed_s=1.0, loss=0.5))
    story.happens(Sampled(printed=PrintedFacts((("loss", 2.4), ("acc", 0.9)))))
    assert story.supervision.status.loss == 0.5
    metrics = {each.name: (each.value, each.step) for each in story.supervision.status.words.metrics}
    assert metrics == {"loss": (0.5, 3), "acc": (0.9, 3)}


def test_the_newest_metrics_of_the_lowest_rank_are_kept_and_the_first_link() -> None:
    story = Story()
    story.happens(Started())
    many = {f"m{number}": float(number) for number in range(16)}
    story.says(StepDone(v=1, rank=0, step=1, count=1, elapsed_s=1.0, metrics=many))
    story.says(StepDone(v=1, rank=0, step=2, count=1, elapsed_s=1.0, metrics={"new": 1.0, "m5": 5.0}))
    names = [each.name for each in story.supervision.status.words.metrics]
    assert len(names) == METRICS_MAX and names[-1] == "new" and "m0" not in names
    for link in ("https://first.example", "https://second.example"):
        story.happens(Sampled(printed=PrintedFacts((), link)))
    assert story.supervision.status.words.link == "https://first.example"


def test_the_status_says_what_was_heard() -> None:
    story = Story(ranks=2)
    story.happens(Started())
    for rank in (1, 0):
        story.says(hello(rank, 2, step=100))
    story.says(FirstStepReached(v=1, rank=1, step=101))
    story.says(StepDone(v=1, rank=1, step=110, count=4, elapsed_s=2.0, loss=9.0))
    story.says(StepDone(v=1, rank=0, step=111, count=4, elapsed_s=4.0, loss=3.0))
    story.happens(Sampled(memory_mib=10.0, duty_cycle=0.5))
    story.happens(Sampled(memory_mib=8.0, duty_cycle=0.25))
    story.happens(Noted(text="a log\ncannot be written"))
    status = story.supervision.status
    assert (status.resumable, status.capabilities.accumulates, status.start_step, status.first_step) == (
        True,
        True,
        100,
        101,
    )
    assert (status.step, status.step_s, status.loss) == (111, 0.75, 3.0)
    assert (status.memory_mib, status.duty_cycle) == (10.0, 0.25)
    assert status.failed == ("a log cannot be written",)


def test_after_the_end_nothing_follows() -> None:
    story = Story().runs()
    story.exits(0)
    story.result()
    for event in (SupervisorTicked(), stop(save=True), Started(), AllGone()):
        assert story.happens(event) == []


# --- Whatever happens -----------------------------------------------------------------------------

RANKS = 2
small = st.integers(0, 20)
rank_numbers = st.integers(0, RANKS)


def heard(
    kind: Callable[..., AnyRankWord], **fields: st.SearchStrategy[Any]
) -> st.SearchStrategy[RankMessageCame]:
    return st.builds(
        lambda **given: RankMessageCame(word=kind(v=1, **given)), **({"rank": rank_numbers} | fields)
    )


def durable(v: int, rank: int, step: int) -> DurableSaid:
    return DurableSaid(v=v, rank=rank, step=step, name=f"a1-s{step}")


EVENTS: tuple[st.SearchStrategy[Any], ...] = (
    heard(
        RankHello, world_size=st.just(RANKS), resumable=st.booleans(), accumulates=st.booleans(), step=small
    ),
    heard(FirstStepReached, step=small),
    heard(StepDone, step=small, count=st.just(1), elapsed_s=st.floats(0.0, 5.0)),
    heard(Saving, step=small),
    heard(durable, step=small),
    heard(StepConfirmed, proposal=st.integers(0, 5), step=small, ok=st.booleans()),
    heard(Stopped, step=small),
    heard(RankFailed, what=st.sampled_from(["save", "load"]), error=st.just("x")),
    st.builds(RankExited, rank=rank_numbers, exit_code=st.sampled_from([0, 1])),
    st.builds(stop, save=st.booleans(), deadline_s=st.floats(0.0, 50.0)),
    st.just(SaveNow()),
    st.builds(LeaseNow, left_s=st.none() | st.floats(0.0, 100.0), full_s=st.just(100.0)),
    st.just(OverMemory(used_mib=5.0)),
    st.just(Started()),
    st.just(SupervisorTicked()),
)


@given(
    st.lists(st.tuples(st.one_of(*EVENTS), st.floats(0.0, 20.0)), max_size=40),
    st.sampled_from([0.0, 15.0]),
    st.sampled_from([None, 100.0]),
)
def test_whatever_happens_it_ends_when_the_processes_end(
    history: list[tuple[AnyHappening, float]], every_s: float, lease_s: float | None
) -> None:
    story = Story(ranks=RANKS, checkpoint_every_s=every_s, lease_s=lease_s, start_deadline_s=60.0)
    story.happens(Started())
    kills_before_term = 0
    for event, wait_s in history:
        story.happens(event)
        kills_before_term += story.signals()[:1] == ["KILL"]
        story.until(story.now_s + wait_s)
    assert kills_before_term == 0
    assert len(story.of(ClearLeftovers)) <= 1
    assert not story.of(Finish)
    for rank in range(RANKS):
        story.happens(RankExited(rank=rank, exit_code=0))
    assert len(story.of(ClearLeftovers)) == 1
    assert story.result().verdict.outcome in ("finished", "stopped", "user-failed", "infra-failed")


@given(st.lists(st.tuples(st.one_of(*EVENTS), st.floats(0.0, 20.0)), max_size=30))
def test_the_same_history_gives_the_same_effects(history: list[tuple[AnyHappening, float]]) -> None:
    first, second = (Story(ranks=RANKS, checkpoint_every_s=15.0, lease_s=100.0) for _ in range(2))
    for story in (first, second):
        for event, wait_s in history:
            story.happens(event)
            story.until(story.now_s + wait_s)
    assert first.all == second.all


@given(st.lists(st.tuples(st.one_of(*EVENTS), st.floats(0.0, 20.0)), max_size=30))
def test_a_job_that_never_said_it_can_resume_is_never_stopped_by_a_lease(
    history: list[tuple[AnyHappening, float]],
) -> None:
    """Promise 3: it is left alone until its host answers."""
    quiet = [
        (event, wait_s)
        for event, wait_s in history
        if not isinstance(event, StopNow | OverMemory | RankExited)
        and not (isinstance(event, RankMessageCame) and isinstance(event.word, RankHello | Stopped))
    ]
    story = Story(ranks=RANKS, lease_s=100.0, checkpoint_every_s=15.0, start_deadline_s=1e8)
    story.happens(Started())
    story.until(61.0)
    story.happens(LeaseNow(left_s=100.0, full_s=100.0))
    for event, wait_s in quiet:
        story.happens(event)
        story.until(story.now_s + wait_s)
    story.until(story.now_s + 1000.0)
    assert story.signals() == []
    assert story.words() == []


def test_a_job_that_finds_out_later_that_it_cannot_accumulate_takes_it_back() -> None:
    story = Story().runs()
    assert story.supervision.status.capabilities.accumulates
    story.says(RankFailed(v=1, rank=0, what="accumulate", error="BatchNorm1d in training mode"))
    status = story.supervision.status
    assert (status.capabilities.accumulates, status.capabilities.accumulates_note) == (
        False,
        "BatchNorm1d in training mode",
    )
    assert "accumulate: BatchNorm1d in training mode" in status.failed
