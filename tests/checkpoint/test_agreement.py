"""The two-phase agreement: one rank's table, then all interleavings of several ranks and a supervisor."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.checkpoint.talk.agreement import OPEN_MAX, Agreement, Confirm, StepVerdict
from cotenant.checkpoint.talk.protocol import (
    PHASE_COMMIT,
    PHASE_PROPOSE,
    PHASE_WITHDRAW,
    SAVE_AT,
    STOP_AT,
    SupervisorDatagram,
    decode,
    encode,
)


def order(phase: str, step: int, proposal: int = 1, kind: str = STOP_AT) -> SupervisorDatagram:
    return SupervisorDatagram(kind=kind, proposal=proposal, step=step, phase=phase)


def test_a_step_ahead_is_promised_and_a_step_reached_is_refused() -> None:
    rank = Agreement(completed=10)
    assert rank.receive(order(PHASE_PROPOSE, 11, 1)) == Confirm(proposal=1, step=10, ok=True)
    assert rank.receive(order(PHASE_PROPOSE, 10, 2)) == Confirm(proposal=2, step=10, ok=False)
    assert rank.receive(order(PHASE_PROPOSE, 9, 3)) == Confirm(proposal=3, step=10, ok=False)


@pytest.mark.parametrize(
    ("kind", "decision", "verdict"),
    [
        (STOP_AT, PHASE_COMMIT, StepVerdict.STOP),
        (SAVE_AT, PHASE_COMMIT, StepVerdict.SAVE),
        (STOP_AT, PHASE_WITHDRAW, StepVerdict.GO),
        (SAVE_AT, PHASE_WITHDRAW, StepVerdict.GO),
    ],
)
def test_a_rank_waits_at_a_promised_step_until_it_knows(
    kind: str, decision: str, verdict: StepVerdict
) -> None:
    rank = Agreement()
    rank.receive(order(PHASE_PROPOSE, 2, kind=kind))
    assert rank.arrive(1) is StepVerdict.GO
    assert rank.arrive(2) is StepVerdict.WAIT
    rank.receive(order(decision, 2, kind=kind))
    assert rank.arrive(2) is verdict
    assert rank.arrive(3) is StepVerdict.GO


def test_a_decision_that_comes_early_costs_no_waiting() -> None:
    rank = Agreement()
    rank.receive(order(PHASE_PROPOSE, 2))
    rank.receive(order(PHASE_COMMIT, 2))
    assert [rank.arrive(step) for step in (1, 2)] == [StepVerdict.GO, StepVerdict.STOP]


def test_a_stop_and_a_save_at_one_step_are_one_stop() -> None:
    rank = Agreement()
    for kind, proposal in ((SAVE_AT, 1), (STOP_AT, 2)):
        rank.receive(order(PHASE_PROPOSE, 2, proposal, kind))
        rank.receive(order(PHASE_COMMIT, 2, proposal, kind))
    assert rank.arrive(2) is StepVerdict.STOP


def test_orders_that_come_twice_change_nothing() -> None:
    rank = Agreement()
    first = rank.receive(order(PHASE_PROPOSE, 2))
    assert rank.receive(order(PHASE_PROPOSE, 2)) == first
    for _ in range(2):
        assert rank.receive(order(PHASE_COMMIT, 2)) is None
    assert rank.receive(order(PHASE_WITHDRAW, 2)) is None, "a commit is final"
    assert rank.arrive(2) is StepVerdict.STOP
    for phase in (PHASE_PROPOSE, PHASE_COMMIT, PHASE_WITHDRAW):
        assert rank.receive(order(phase, 2)) is None
    assert rank.arrive(3) is StepVerdict.GO


def test_one_number_with_two_steps_is_refused() -> None:
    rank = Agreement()
    rank.receive(order(PHASE_PROPOSE, 5))
    assert rank.receive(order(PHASE_PROPOSE, 6)) == Confirm(proposal=1, step=0, ok=False)


def test_giving_up_takes_the_promise_back_and_a_late_commit_is_refused() -> None:
    rank = Agreement()
    rank.receive(order(PHASE_PROPOSE, 2))
    assert rank.arrive(2) is StepVerdict.WAIT
    assert rank.give_up() == [Confirm(proposal=1, step=2, ok=False)]
    assert rank.arrive(2) is StepVerdict.GO
    assert rank.receive(order(PHASE_COMMIT, 2)) == Confirm(proposal=1, step=2, ok=False)
    assert (rank.arrive(3), rank.late) == (StepVerdict.GO, 1)


def test_a_rank_that_cannot_save_promises_nothing() -> None:
    assert Agreement(can_save=False).receive(order(PHASE_PROPOSE, 5)) == Confirm(proposal=1, step=0, ok=False)


def test_the_last_step_of_an_epoch_is_refused_for_a_later_one() -> None:
    """A script that was resumed there would leave its batch loop without having had a batch."""
    rank = Agreement(completed=3, epoch=(10, 10))
    promised = {step: rank.receive(order(PHASE_PROPOSE, step, step)) for step in (9, 10, 11, 19, 20, 21)}
    assert [step for step, answer in promised.items() if answer and answer.ok] == [9, 11, 19, 21]
    short = Agreement(completed=3, epoch=(4, 2))
    assert [short.receive(order(PHASE_PROPOSE, step, step)).ok for step in (4, 5, 6)] == [True] * 3  # type: ignore[union-attr]


def test_open_promises_are_bounded() -> None:
    rank = Agreement()
    answers = [rank.receive(order(PHASE_PROPOSE, 100 + n, n)) for n in range(OPEN_MAX + 1)]
    assert [answer.ok for answer in answers if answer] == [True] * OPEN_MAX + [False]


NAMES = st.sampled_from(["v", "m", "proposal", "step", "phase"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["stop_at", "propose"])
VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(NAMES, v, max_size=5))


@given(st.binary(max_size=200) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_no_datagram_raises(data: bytes) -> None:
    parsed = decode(data)
    assert parsed is None or parsed.step >= 1


def test_a_long_text_is_cut_so_that_the_datagram_fits() -> None:
    data = encode("failed", 3, {"what": "save", "error": "\u2603" * 5000})
    assert len(data) <= 4096
    assert b"\\u2603" in data
    assert len(json.loads(encode("hello", 3, {"note": "x" * 5000}))["note"]) == 1000


# All interleavings. Ranks run steps with a blocking all-reduce between them: nobody completes step n + 1
# before everybody has left the boundary n. Datagrams keep their order per receiver, as Unix datagrams do.


@dataclass
class Rank:
    number: int
    agreement: Agreement = field(default_factory=Agreement)
    inbox: deque[SupervisorDatagram] = field(default_factory=deque)
    at: int = 0
    """Completed steps."""
    left: bool = True
    """Whether it has left the boundary and contributes to the next all-reduce."""
    stopped: bool = False
    saved: list[int] = field(default_factory=list)


@dataclass
class Supervisor:
    """What the protocol asks of a supervisor: all ok or a later step."""

    ranks: list[Rank]
    kind: str
    step: int
    proposal: int = 0
    answers: dict[int, Confirm] = field(default_factory=dict)
    inbox: deque[tuple[int, Confirm]] = field(default_factory=deque)
    committed: int | None = None

    def propose(self) -> None:
        self.proposal += 1
        self.answers.clear()
        self._tell(PHASE_PROPOSE)

    def take(self) -> None:
        rank, answer = self.inbox.popleft()
        if answer.proposal != self.proposal or self.committed is not None:
            return
        self.answers[rank] = answer
        if not answer.ok:
            self._tell(PHASE_WITHDRAW)
            self.step = max(self.step, answer.step) + 2
            self.propose()
        elif len(self.answers) == len(self.ranks):
            self.committed = self.step
            self._tell(PHASE_COMMIT)

    def _tell(self, phase: str) -> None:
        for rank in self.ranks:
            rank.inbox.append(
                SupervisorDatagram(kind=self.kind, proposal=self.proposal, step=self.step, phase=phase)
            )


def choices(ranks: list[Rank], supervisor: Supervisor, last_step: int) -> list[tuple[str, int]]:
    """Everything that could happen next."""
    found: list[tuple[str, int]] = [("supervisor", 0)] if supervisor.inbox else []
    lowest = min(rank.at + (1 if rank.left else 0) for rank in ranks)
    for rank in ranks:
        if rank.inbox:
            found.append(("hear", rank.number))
        if rank.stopped or rank.at >= last_step:
            continue
        if rank.left and lowest > rank.at:  # everybody contributes to the step it is in
            found.append(("complete", rank.number))
        if not rank.left:
            found.append(("boundary", rank.number))
    return found


def happen(what: str, rank: Rank, supervisor: Supervisor) -> bool:
    """Returns whether anything changed (a rank that still waits has not moved)."""
    if what == "supervisor":
        supervisor.take()
    elif what == "hear":
        answer = rank.agreement.receive(rank.inbox.popleft())
        if answer is not None:
            supervisor.inbox.append((rank.number, answer))
    elif what == "complete":
        rank.at += 1
        rank.left = False
    else:
        verdict = rank.agreement.arrive(rank.at)
        if verdict is StepVerdict.WAIT:
            return False
        if verdict is StepVerdict.SAVE:
            rank.saved.append(rank.at)
        rank.stopped = verdict is StepVerdict.STOP
        rank.left = not rank.stopped
    return True


@given(
    st.data(),
    st.integers(1, 4),
    st.sampled_from([STOP_AT, SAVE_AT]),
    st.integers(1, 4),
    st.integers(0, 8),
)
def test_no_interleaving_stops_ranks_at_different_steps_or_blocks_them(
    data: st.DataObject, count: int, kind: str, ahead: int, head_start: int
) -> None:
    ranks = [Rank(number=n) for n in range(count)]
    supervisor = Supervisor(ranks=ranks, kind=kind, step=ahead)
    last_step = 40
    proposed = False
    for window in range(5000):
        if window == head_start or (not proposed and not choices(ranks, supervisor, last_step)):
            supervisor.propose()
            proposed = True
        possible = choices(ranks, supervisor, last_step)
        if not possible:
            break
        # Hypothesis steers the first part; after that whoever is first, so that a run ends.
        start = data.draw(st.integers(0, len(possible) - 1)) if window < 60 else 0
        for offset in range(len(possible)):
            what, number = possible[(start + offset) % len(possible)]
            if happen(what, ranks[number], supervisor):
                break
        else:
            pytest.fail(f"deadlock: {ranks} {supervisor}")
    else:
        pytest.fail("did not end")
    assert supervisor.committed is not None or all(rank.at == last_step for rank in ranks)
    if kind == STOP_AT and supervisor.committed is not None and supervisor.committed <= last_step:
        assert {rank.at for rank in ranks if rank.stopped} == {supervisor.committed}
        assert all(rank.stopped for rank in ranks)
    else:
        assert len({tuple(rank.saved) for rank in ranks}) == 1
        assert all(rank.at == last_step for rank in ranks)


@given(st.data(), st.integers(2, 4), st.integers(1, 3))
def test_lost_decisions_never_stop_ranks_at_two_different_steps(
    data: st.DataObject, count: int, ahead: int
) -> None:
    """A rank that hears nothing goes on after its time; the others may be left behind, but no two ranks
    stop at different steps, so no checkpoint of mixed steps can come together."""
    ranks = [Rank(number=n) for n in range(count)]
    supervisor = Supervisor(ranks=ranks, kind=STOP_AT, step=ahead)
    supervisor.propose()
    for _ in range(200):
        possible = choices(ranks, supervisor, last_step=12)
        moved = False
        start = data.draw(st.integers(0, max(0, len(possible) - 1)))
        for offset in range(len(possible)):
            what, number = possible[(start + offset) % len(possible)]
            if what == "hear" and data.draw(st.integers(0, 3)) == 0:
                ranks[number].inbox.popleft()  # lost
                moved = True
                break
            if happen(what, ranks[number], supervisor):
                moved = True
                break
        if moved:
            continue
        waiting = [r for r in ranks if not r.left and not r.stopped and r.at < 12]
        if not waiting:
            break
        for refusal in waiting[0].agreement.give_up():
            supervisor.inbox.append((waiting[0].number, refusal))
    assert len({rank.at for rank in ranks if rank.stopped}) <= 1
