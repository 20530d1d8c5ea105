"""Agreeing on a step: whatever is lost, repeated or reordered, ranks that wait for each other in every step
all stop at the same one, or none does and all go on."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.agent.supervisor.core.agreement import (
    MARGIN_S,
    PROPOSAL_TIMEOUT_S,
    RELEASES,
    RESEND_S,
    RESENDS_MAX,
    ROUNDS_MAX,
    AgreementCoordinator,
    Words,
)
from cotenant.agent.supervisor.core.rank_messages import RequestKind, ToRank
from cotenant.checkpoint.talk.protocol import DECISION_TIMEOUT_S, STEP_REPORT_PERIOD_S


def agreement_of(
    ranks: int, *, step: int = 10, now_s: float = 0.0, step_s: float | None = 1.0
) -> AgreementCoordinator:
    agreement = AgreementCoordinator()
    for rank in range(ranks):
        agreement.join(rank, far=False)
        agreement.saw_step(rank, step, now_s)
    agreement.note_pace(step_s)
    return agreement


def said(words: Words) -> list[tuple[int, str, str, int]]:
    return [(rank, word.kind, word.phase, word.step) for rank, word in words]


def number_of(words: Words) -> int:
    return words[-1][1].proposal


def test_all_promise_and_all_are_told() -> None:
    agreement = agreement_of(2)
    words = agreement.ask("stop", 0.0)
    assert said(words) == [(0, "stop", "propose", 11), (1, "stop", "propose", 11)]
    number = number_of(words)
    assert agreement.heard_confirm(0, number, 10, True, 0.01) == []
    assert agreement.committed is None
    words = agreement.heard_confirm(1, number, 10, True, 0.02)
    assert said(words) == [(0, "stop", "commit", 11), (1, "stop", "commit", 11)]
    assert agreement.committed == ("stop", 11)


def test_a_refusal_withdraws_and_asks_for_a_later_step() -> None:
    agreement = agreement_of(2)
    number = number_of(agreement.ask("stop", 0.0))
    agreement.heard_confirm(0, number, 10, True, 0.01)
    words = agreement.heard_confirm(1, number, 11, False, 0.02)
    assert said(words) == [
        (0, "stop", "withdraw", 11),
        (1, "stop", "withdraw", 11),
        (0, "stop", "propose", 13),
        (1, "stop", "propose", 13),
    ]
    assert number_of(words) > number


def test_a_refusal_without_a_cause_that_a_later_step_removes_is_not_repeated_in_a_hurry() -> None:
    agreement = agreement_of(1)
    number = number_of(agreement.ask("stop", 0.0))
    words = agreement.heard_confirm(0, number, 10, False, 0.01)
    assert said(words) == [(0, "stop", "withdraw", 11)]
    assert agreement.tick(0.1) == []
    assert [word.phase for _, word in agreement.tick(0.01 + RESEND_S)][-1] == "propose"


def test_answers_to_other_questions_change_nothing() -> None:
    agreement = agreement_of(2)
    first = number_of(agreement.ask("stop", 0.0))
    second = number_of(agreement.heard_confirm(0, first, 11, False, 0.01))
    assert agreement.heard_confirm(1, first, 10, True, 0.02) == []
    assert agreement.heard_confirm(1, first, 10, False, 0.02) == []
    agreement.heard_confirm(0, second, 11, True, 0.03)
    assert agreement.heard_confirm(0, second, 11, True, 0.03) == []
    assert agreement.committed is None
    agreement.heard_confirm(1, second, 11, True, 0.04)
    assert agreement.committed is not None


def test_a_promise_binds_even_if_the_repeated_question_is_refused() -> None:
    """The rank has reached the step by then and waits there: that is what it promised."""
    agreement = agreement_of(2)
    number = number_of(agreement.ask("stop", 0.0))
    agreement.heard_confirm(0, number, 10, True, 0.01)
    assert agreement.heard_confirm(0, number, 11, False, 0.6) == []
    assert said(agreement.heard_confirm(1, number, 10, True, 0.7))[0][2] == "commit"


def test_only_silent_ranks_are_asked_again_and_not_for_longer_than_a_promise_holds() -> None:
    agreement = agreement_of(2)
    number = number_of(agreement.ask("stop", 0.0))
    agreement.heard_confirm(0, number, 10, True, 0.01)
    assert agreement.next_alarm_s == RESEND_S
    assert said(agreement.tick(RESEND_S)) == [(1, "stop", "propose", 11)]
    words = agreement.tick(PROPOSAL_TIMEOUT_S)
    assert said(words)[:2] == [(0, "stop", "withdraw", 11), (1, "stop", "withdraw", 11)]
    assert PROPOSAL_TIMEOUT_S < DECISION_TIMEOUT_S / 2


def test_it_gives_up_after_a_bounded_number_of_rounds() -> None:
    agreement = agreement_of(1)
    words = agreement.ask("stop", 0.0)
    now_s, rounds = 0.0, 0
    while "stop" not in agreement.gave_up:
        rounds += any(word.phase == "propose" for _, word in words)
        now_s = agreement.next_alarm_s
        words = agreement.tick(now_s)
    assert now_s <= ROUNDS_MAX["stop"] * PROPOSAL_TIMEOUT_S
    assert not agreement.is_busy


def test_a_withdrawal_is_said_several_times() -> None:
    agreement = agreement_of(1)
    agreement.ask("save", 0.0)
    words = agreement.drop("save", 0.0)
    times = 0
    while agreement.next_alarm_s < 1e9:
        times += sum(word.phase == "withdraw" for _, word in words)
        words = agreement.tick(agreement.next_alarm_s)
    assert times + sum(word.phase == "withdraw" for _, word in words) == RELEASES


def test_a_commit_is_repeated_to_those_who_are_not_there_yet() -> None:
    agreement = agreement_of(3)
    number = number_of(agreement.ask("save", 0.0))
    for rank in range(3):
        agreement.heard_confirm(rank, number, 10, True, 0.01)
    agreement.note_arrival(0, 11, 0.1)
    agreement.saw_step(1, 12, 0.2)
    assert said(agreement.tick(agreement.next_alarm_s)) == [(2, "save", "commit", 11)]
    agreement.note_arrival(2, 11, 1.0)
    assert agreement.next_alarm_s > 1e9
    assert not agreement.is_busy


def test_a_commit_is_not_repeated_for_ever() -> None:
    agreement = agreement_of(1)
    agreement.heard_confirm(0, number_of(agreement.ask("save", 0.0)), 10, True, 0.01)
    for _ in range(RESENDS_MAX + 1):
        agreement.tick(agreement.next_alarm_s)
    assert agreement.next_alarm_s > 1e9


def test_a_stop_overtakes_a_save_that_is_only_proposed() -> None:
    agreement = agreement_of(1)
    agreement.ask("save", 0.0)
    assert said(agreement.ask("stop", 0.0)) == [(0, "save", "withdraw", 11), (0, "stop", "propose", 11)]


def test_a_stop_waits_for_a_save_that_is_agreed() -> None:
    agreement = agreement_of(1)
    agreement.heard_confirm(0, number_of(agreement.ask("save", 0.0)), 10, True, 0.01)
    assert agreement.ask("stop", 0.1) == []
    assert said(agreement.note_arrival(0, 11, 1.0)) == [(0, "stop", "propose", 12)]


def test_asking_twice_changes_nothing() -> None:
    agreement = agreement_of(1)
    agreement.ask("stop", 0.0)
    assert agreement.ask("stop", 0.1) == []
    agreement.heard_confirm(0, 1, 10, True, 0.2)
    assert agreement.ask("stop", 0.3) == []


def test_a_rank_that_is_gone_is_not_waited_for() -> None:
    agreement = agreement_of(2)
    number = number_of(agreement.ask("stop", 0.0))
    agreement.heard_confirm(0, number, 10, True, 0.1)
    assert said(agreement.leave(1, 0.2)) == [(0, "stop", "commit", 11)]


def test_ranks_elsewhere_promise_before_our_own_are_asked() -> None:
    """While the way to them is cut, no rank here waits at a step for a decision that cannot come."""
    agreement = agreement_of(2)
    agreement.join(2, far=True)
    words = agreement.ask("save", 0.0)
    assert [rank for rank, _ in words] == [2]
    assert [rank for rank, _ in agreement.tick(RESEND_S)] == [2]
    words = agreement.heard_confirm(2, number_of(words), 10, True, 0.6)
    assert [rank for rank, _ in words] == [0, 1]
    number = number_of(words)
    agreement.heard_confirm(0, number, 10, True, 0.7)
    assert [word.phase for _, word in agreement.heard_confirm(1, number, 10, True, 0.7)] == ["commit"] * 3


@pytest.mark.parametrize(
    ("step_s", "age_s", "ahead"),
    [
        pytest.param(20.0, 1.0, 1, id="slow steps: the next one"),
        pytest.param(20.0, 19.99, 2, id="slow steps, about to finish one: the one after"),
        pytest.param(0.01, 0.0, 1 + round(MARGIN_S / 0.01), id="fast steps: as many as pass meanwhile"),
        pytest.param(0.01, 0.1, 11 + round(MARGIN_S / 0.01), id="fast steps, an old report"),
    ],
)
def test_the_step_is_ahead_but_not_far(step_s: float, age_s: float, ahead: int) -> None:
    agreement = agreement_of(1, step=100, step_s=step_s)
    assert agreement.ask("stop", age_s)[0][1].step == 100 + ahead


def test_a_step_reckoned_over_a_pause_is_measured_again() -> None:
    """Fast steps, then an evaluation: the ranks say that they have not moved since."""
    agreement = agreement_of(2, step=4, step_s=0.001)
    words = agreement.ask("stop", 2.0)
    ahead = 1 + round(MARGIN_S / 0.001)
    assert words[0][1].step == 4 + 2000 + ahead
    agreement.heard_confirm(0, number_of(words), 4, True, 2.01)
    words = agreement.heard_confirm(1, number_of(words), 4, True, 2.01)
    assert [(rank, phase) for rank, _, phase, _ in said(words)] == [
        (0, "withdraw"),
        (1, "withdraw"),
        (0, "propose"),
        (1, "propose"),
    ]
    assert words[-1][1].step == 4 + ahead
    agreement.heard_confirm(0, number_of(words), 4, True, 30.0)
    words = agreement.heard_confirm(1, number_of(words), 4, True, 30.0)
    assert [word.phase for _, word in words] == ["commit", "commit"], "once is enough"


# --- A gang in a bad network ----------------------------------------------------------------------


@dataclass
class Promise:
    step: int
    committed: bool = False


@dataclass
class Rank:
    """What the protocol asks of a rank, as a model."""

    completed: int = 0
    state: str = "boundary"
    """boundary, waiting, computing, stopped"""
    promises: dict[tuple[str, int], Promise] = field(default_factory=dict)
    obeyed: set[tuple[str, int]] = field(default_factory=set)
    waiting_since_s: float = 0.0
    gave_up: int = 0
    saved: list[int] = field(default_factory=list)

    def receive(self, word: ToRank) -> bool | None:
        key = (word.kind, word.proposal)
        if key in self.obeyed:
            return None
        promise = self.promises.get(key)
        if word.phase == "propose":
            if promise is None and word.step > self.completed:
                self.promises[key] = promise = Promise(word.step)
            return promise is not None
        if promise is None:
            return None
        if word.phase == "commit":
            promise.committed = True
        elif not promise.committed:
            del self.promises[key]
        return None

    def verdict(self) -> str:
        due = {key: each for key, each in self.promises.items() if each.step <= self.completed}
        stops = any(each.committed and kind == "stop" for (kind, _), each in due.items())
        if not stops and not all(each.committed for each in due.values()):
            return "wait"
        for key in due:
            self.obeyed.add(key)
            del self.promises[key]
        return "stop" if stops else "save" if due else "go"

    def give_up(self) -> None:
        self.gave_up += 1
        overdue = [
            k for k, each in self.promises.items() if each.step <= self.completed and not each.committed
        ]
        for key in overdue:
            del self.promises[key]


class Gang:
    """Ranks in lock step, as DDP keeps them: a step ends when all have begun it."""

    def __init__(
        self,
        *,
        ranks: int,
        far: int,
        step_s: float,
        loss: float,
        delay_s: float,
        seed: int,
        pause_s: float = 0.0,
    ) -> None:
        """pause_s: how long one step lasts that begins at the first second; 0: none."""
        self.random = random.Random(seed)
        self.pause_s = pause_s
        self.ranks = {rank: Rank() for rank in range(ranks)}
        self.step_s, self.loss, self.delay_s = step_s, loss, delay_s
        self.agreement = AgreementCoordinator()
        for rank in self.ranks:
            self.agreement.join(rank, far=rank >= ranks - far)
            self.agreement.saw_step(rank, 0, 0.0)
        self.agreement.note_pace(step_s)
        self.now_s = 0.0
        self.begun: set[int] = set()
        self.reported_s = dict.fromkeys(self.ranks, -1.0)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._ticket = count()
        for rank in self.ranks:
            self.at(0.0, partial(self.arrive, rank))

    def at(self, when_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (when_s, next(self._ticket), act))

    def run(self, until_s: float, done: Callable[[], bool]) -> None:
        while not done():
            alarm_s = self.agreement.next_alarm_s
            when_s = min(alarm_s, self._heap[0][0] if self._heap else alarm_s)
            if when_s > until_s:
                return
            self.now_s = max(self.now_s, when_s)
            if alarm_s <= self.now_s:
                self.send(self.agreement.tick(self.now_s))
                assert self.agreement.next_alarm_s > self.now_s, "a timer that never stops ringing"
            else:
                heapq.heappop(self._heap)[2]()

    def post(self, act: Callable[[], None]) -> None:
        """By a network that loses, delays, reorders and repeats."""
        for _ in range(1 + (self.random.random() < self.loss)):
            if self.random.random() >= self.loss:
                self.at(self.now_s + self.random.uniform(0.0, self.delay_s), act)

    def send(self, words: Words) -> None:
        for rank, word in words:
            self.post(partial(self.deliver, rank, word))

    def deliver(self, rank: int, word: ToRank) -> None:
        model = self.ranks[rank]
        ok = model.receive(word)
        if ok is not None:
            step = model.completed
            self.post(
                lambda: self.send(self.agreement.heard_confirm(rank, word.proposal, step, ok, self.now_s))
            )
        if model.state == "waiting":
            self.arrive(rank)

    def arrive(self, rank: int) -> None:
        model = self.ranks[rank]
        if model.state in ("computing", "stopped"):
            return
        verdict = model.verdict()
        if verdict == "wait":
            if model.state != "waiting":
                model.state, model.waiting_since_s = "waiting", self.now_s
                self.at(self.now_s + DECISION_TIMEOUT_S, lambda: self.time_out(rank))
            return
        if verdict == "stop":
            model.state = "stopped"
            self.post(lambda: self.send(self.agreement.note_arrival(rank, model.completed, self.now_s)))
            return
        if verdict == "save":
            model.saved.append(model.completed)
            step = model.completed
            self.post(lambda: self.send(self.agreement.note_arrival(rank, step, self.now_s)))
        model.state = "computing"
        self.begun.add(rank)
        if len(self.begun) == len(self.ranks):
            self.begun.clear()
            pause_s = self.pause_s if self.now_s >= 1.0 else 0.0
            self.pause_s -= pause_s
            self.at(self.now_s + pause_s + self.step_s * self.random.uniform(0.8, 1.2), self.finish_step)

    def finish_step(self) -> None:
        for rank, model in self.ranks.items():
            model.completed += 1
            model.state = "boundary"
            if self.now_s >= self.reported_s[rank] + STEP_REPORT_PERIOD_S:
                self.reported_s[rank] = self.now_s
                step = model.completed
                self.post(partial(self.hear_step, rank, step))
        for rank in self.ranks:
            self.arrive(rank)

    def hear_step(self, rank: int, step: int) -> None:
        self.agreement.saw_step(rank, step, self.now_s)

    def time_out(self, rank: int) -> None:
        model = self.ranks[rank]
        if model.state == "waiting" and self.now_s >= model.waiting_since_s + DECISION_TIMEOUT_S:
            model.give_up()
            self.arrive(rank)

    def ask(self, kind: RequestKind) -> None:
        self.send(self.agreement.ask(kind, self.now_s))

    @property
    def stopped(self) -> set[int]:
        return {model.completed for model in self.ranks.values() if model.state == "stopped"}


@st.composite
def gangs(draw: st.DrawFn, loss_max: float = 0.4) -> Gang:
    ranks = draw(st.integers(1, 4))
    return Gang(
        ranks=ranks,
        far=draw(st.integers(0, ranks - 1)),
        step_s=draw(st.sampled_from([0.001, 0.01, 0.1, 1.0, 7.0])),
        loss=draw(st.floats(0.0, loss_max)),
        delay_s=draw(st.sampled_from([0.0, 0.001, 0.05, 0.4])),
        seed=draw(st.integers(0, 2**32)),
        pause_s=draw(st.sampled_from([0.0, 5.0, 30.0])),
    )


def settled(gang: Gang) -> bool:
    if "stop" in gang.agreement.gave_up:
        return not gang.agreement.is_busy and not gang.agreement.next_alarm_s < 1e9
    return all(model.state == "stopped" for model in gang.ranks.values())


@given(gangs(), st.floats(0.0, 3.0))
def test_all_ranks_stop_at_the_same_step_or_all_go_on(gang: Gang, ask_s: float) -> None:
    gang.run(ask_s, done=lambda: False)
    asked_at = max(model.completed for model in gang.ranks.values())
    gang.ask("stop")
    gang.run(gang.now_s + 400.0, done=lambda: settled(gang))
    assert settled(gang), [model.state for model in gang.ranks.values()]
    if "stop" in gang.agreement.gave_up:
        before = min(model.completed for model in gang.ranks.values())
        gang.run(gang.now_s + 2 * DECISION_TIMEOUT_S, done=lambda: False)
        assert not gang.stopped
        assert min(model.completed for model in gang.ranks.values()) > before, "they hang"
    else:
        assert len(gang.stopped) == 1
        assert gang.stopped.pop() >= asked_at


@given(gangs(loss_max=0.0), st.floats(0.0, 3.0) | st.just(20.0))
def test_without_losses_it_takes_few_rounds_and_little_time(gang: Gang, ask_s: float) -> None:
    pause_s = gang.pause_s
    gang.run(ask_s, done=lambda: False)
    gang.ask("stop")
    asked_s = gang.now_s
    gang.run(asked_s + 400.0, done=lambda: settled(gang))
    assert len(gang.stopped) == 1
    assert all(model.gave_up == 0 for model in gang.ranks.values())
    assert gang.now_s - asked_s <= 10.0 + 4 * gang.step_s + pause_s


@given(gangs(), st.integers(1, 4))
def test_saves_happen_at_one_step_and_a_stop_after_them(gang: Gang, saves: int) -> None:
    gang.run(1.0, done=lambda: False)
    for _ in range(saves):
        gang.ask("save")
        gang.run(gang.now_s + 45.0, done=lambda: not gang.agreement.is_busy)
    gang.ask("stop")
    gang.run(gang.now_s + 400.0, done=lambda: settled(gang))
    assert settled(gang)
    if gang.stopped:
        assert len(gang.stopped) == 1
        assert len({tuple(model.saved) for model in gang.ranks.values()}) == 1
