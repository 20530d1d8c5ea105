"""Turns of s that a supervisor agrees on with the ranks: kept to the step, told of, recorded, repeated."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cotenant import checkpoint, gradaccum
from cotenant.checkpoint import Session, parameters_sha256
from cotenant.checkpoint.talk import protocol
from cotenant.checkpoint.talk.agreement import (
    Agreement,
    StepVerdict,
    WindowPlace,
    agreed_ahead,
    split_history,
)
from cotenant.checkpoint.talk.protocol import ACCUMULATE_AT, SupervisorDatagram, decode
from cotenant.gradaccum.schedule import PROGRESS, Progress
from tests.building.limits import within_s

DEADLINE_S = within_s(60.0)
STEPS = 20


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("COTENANT_") and "TEST" not in name]:
        monkeypatch.delenv(name)
    PROGRESS.__dict__.update(vars(Progress()))
    yield
    PROGRESS.__dict__.update(vars(Progress()))


# --- The agreement, without a job --------------------------------------------------------------------


def order(phase: str, step: int = 5, *, proposal: int = 1, s: int = 4, until: int = 9) -> SupervisorDatagram:
    return SupervisorDatagram(ACCUMULATE_AT, proposal, step, phase, s, until)


def test_a_committed_turn_begins_and_ends_at_its_steps() -> None:
    agreement = Agreement(can_save=False)
    answer = agreement.receive(order("propose"))
    assert answer is not None and answer.ok, "a job that cannot save can turn all the same"
    agreement.receive(order("commit"))
    verdicts = [agreement.arrive(step) for step in range(1, 11)]
    assert [step for step, v in enumerate(verdicts, 1) if v is StepVerdict.WINDOW] == [5, 9]
    assert agreement.windows == []


def test_a_rank_waits_at_a_turn_that_is_only_proposed_and_goes_on_when_it_is_withdrawn() -> None:
    agreement = Agreement()
    agreement.receive(order("propose"))
    assert agreement.arrive(4) is StepVerdict.GO
    assert agreement.arrive(5) is StepVerdict.WAIT
    agreement.receive(order("withdraw"))
    assert agreement.arrive(5) is StepVerdict.GO
    assert agreement.windows == []


def test_a_turn_that_would_overlap_another_is_refused() -> None:
    agreement = Agreement()
    agreement.receive(order("propose"))
    agreement.receive(order("commit"))
    answer = agreement.receive(order("propose", step=7, proposal=2, until=12))
    assert answer is not None and not answer.ok
    answer = agreement.receive(order("propose", step=9, proposal=3, until=12))
    assert answer is not None and answer.ok


def test_a_save_and_a_turn_at_one_step_are_both_seen() -> None:
    agreement = Agreement()
    agreement.receive(order("propose"))
    agreement.receive(order("commit"))
    agreement.receive(SupervisorDatagram(protocol.SAVE_AT, 2, 5, "propose"))
    agreement.receive(SupervisorDatagram(protocol.SAVE_AT, 2, 5, "commit"))
    assert agreement.arrive(5) is StepVerdict.SAVE
    assert agreement.windows == [WindowPlace(5, 9, 4)]


@pytest.mark.parametrize("fields", [{}, {"s": 0, "until": 9}, {"s": 2, "until": 5}, {"s": 9999, "until": 9}])
def test_a_turn_that_makes_no_sense_is_not_understood(fields: dict[str, int]) -> None:
    message = {"v": 1, "m": ACCUMULATE_AT, "proposal": 1, "step": 5, "phase": "propose", **fields}
    assert decode(json.dumps(message).encode()) is None


@given(
    past=st.lists(st.integers(1, 8), min_size=1, max_size=5),
    step=st.integers(5, 50),
    ahead=st.integers(0, 10),
    length=st.integers(1, 20),
    s=st.integers(1, 16),
)
def test_what_is_agreed_ahead_is_what_a_resumed_run_repeats(
    past: list[int], step: int, ahead: int, length: int, s: int
) -> None:
    """Whatever was used before, for a turn that has begun, begins here, or is still to come."""
    window = WindowPlace(step - 5 + ahead, step + length + ahead, s)
    history = [(at, used) for at, used in enumerate(past) if at < min(step, window.start)]
    if window.start < step:
        history.append((window.start, s))
    written = (*history, *agreed_ahead([window], step, 1))
    before, repeated = split_history(written, step)
    assert list(before) == history
    used = {at: each.s for each in repeated for at in range(each.start, each.until)}
    last = history[-1][1] if history else 1
    for at in range(step, window.until):
        assert used.get(at, last) == (s if at >= window.start else last)
    assert max(used, default=step) < window.until, "behind the turn the new attempt's own order holds"


def test_a_history_without_plans_is_all_past() -> None:
    assert split_history([(0, 1), (20, 2)], 30) == ([(0, 1), (20, 2)], ())


# --- A job and its supervisor ------------------------------------------------------------------------


class Supervisor:
    """The other end of the socket. A thread reads what comes: the kernel holds ten datagrams and no more."""

    def __init__(self, folder: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(folder / "s.sock"))
        self._path = str(folder / "s.sock")
        self._rank = str(folder / "rank-0.sock")
        self._proposal = 0
        self._heard: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while data := self._socket.recv(8192):
            with self._changed:
                self._heard.append(json.loads(data))
                self._changed.notify_all()

    def agree(self, step: int, until: int, s: int) -> None:
        """Returns once the rank knows that it is committed."""
        self._proposal += 1
        assert self._ask("propose", step, until, s)
        self._say("commit", step, until, s)
        self._proposal += 1
        assert not self._ask("propose", 1, until, s), "a step of the past; the answer comes after the commit"

    def _ask(self, phase: str, step: int, until: int, s: int) -> bool:
        self._say(phase, step, until, s)

        def answers() -> list[bool]:
            confirms = [word for word in self._heard if word["m"] == protocol.CONFIRM]
            return [bool(word["ok"]) for word in confirms if word["proposal"] == self._proposal]

        with self._changed:
            assert self._changed.wait_for(answers, DEADLINE_S), "no answer"
            return answers()[0]

    def _say(self, phase: str, step: int, until: int, s: int) -> None:
        word = {"v": 1, "m": ACCUMULATE_AT, "proposal": self._proposal, "step": step, "phase": phase}
        self._send({**word, "s": s, "until": until}, self._rank)

    def words(self, name: str) -> list[dict[str, Any]]:
        """All of this name that were sent until now."""
        mark = {"m": "mark", "number": len(self._heard)}
        self._send(mark, self._path)
        with self._changed:
            assert self._changed.wait_for(lambda: mark in self._heard, DEADLINE_S)
            return [word for word in self._heard if word["m"] == name]

    @staticmethod
    def _send(word: dict[str, Any], path: str) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.sendto(json.dumps(word).encode(), path)

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.sendto(b"", self._path)
        self._thread.join(DEADLINE_S)
        self._socket.close()


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    made = Supervisor(tmp_path)
    monkeypatch.setenv("COTENANT_SOCKET", str(tmp_path / "s.sock"))
    yield made
    made.close()


class Job:
    """Float32, so that another s is another result."""

    def __init__(self, root: Path | None) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.state = Session(self.model, self.optimizer, root=root)

    def train(self, until: int) -> None:
        while self.state.step < until:
            generator = torch.Generator().manual_seed(self.state.step)
            x, y = torch.randn(12, 6, generator=generator), torch.randint(0, 3, (12,), generator=generator)
            self.optimizer.zero_grad()
            gradaccum.backward(self.model, lambda a, b: nn.functional.cross_entropy(self.model(a), b), x, y)
            self.optimizer.step()
            self.state.step_done()

    @property
    def sha256(self) -> str:
        return parameters_sha256(self.model)


def reference(schedule: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An undisturbed run with that schedule, told beforehand."""
    with monkeypatch.context() as alone:
        alone.delenv("COTENANT_SOCKET")
        alone.setenv("COTENANT_ACCUMULATION_SCHEDULE", schedule)
        PROGRESS.__dict__.update(vars(Progress()))
        job = Job(None)
        job.train(STEPS)
    PROGRESS.__dict__.update(vars(Progress()))
    return job.sha256


def test_a_turn_is_kept_to_the_step_and_its_stretches_are_told(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, at_edge = reference("0:1", monkeypatch), reference("0:1,5:4,12:1", monkeypatch)
    assert plain != at_edge, "else this test could not fail"
    job = Job(None)
    job.train(2)
    supervisor.agree(5, 12, 4)
    job.train(STEPS)
    assert job.sha256 == at_edge
    assert job.state.accumulation_history == "0:1,5:4,12:1"
    stretches = supervisor.words(protocol.STRETCH)
    assert [(w["first"], w["step"], w["s"]) for w in stretches] == [(0, 5, 1), (5, 12, 4)]
    assert all(word["memory_mib"] > 1.0 for word in stretches)
    for report in supervisor.words(protocol.STEP):
        first = report["step"] - report["count"]
        assert report["s"] == (4 if 5 <= first < 12 else 1)
        assert not any(first < edge < report["step"] for edge in (5, 12)), "no report is about two stretches"
    (hello, *_) = supervisor.words(protocol.HELLO)
    assert (hello["turns"], hello["trials"]) == (True, True)
    job.state.close()


def test_a_turn_that_is_agreed_on_before_the_last_one_ends_has_a_stretch_of_its_own(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two is a step with the whole batch: its memory is not that of the parts."""
    job = Job(None)
    job.train(1)
    supervisor.agree(2, 5, 1)
    supervisor.agree(6, 9, 4)
    job.train(STEPS)
    assert job.state.accumulation_history == "0:1,6:4,9:1"
    stretches = supervisor.words(protocol.STRETCH)
    told = [(word["first"], word["step"], word["s"]) for word in stretches]
    assert told == [(0, 2, 1), (2, 5, 1), (5, 6, 1), (6, 9, 4)]
    job.state.close()


@pytest.mark.parametrize("saved_at", [3, 5, 8, 12])
def test_a_run_saved_around_a_turn_and_resumed_repeats_the_same_arithmetic(
    saved_at: int, supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the turn that is already agreed on, at its first step, in it, and at its end."""
    at_edge = reference("0:1,5:4,12:1", monkeypatch)
    root = tmp_path / "checkpoints"
    first = Job(root)
    first.train(2)
    supervisor.agree(5, 12, 4)
    first.train(saved_at)
    assert first.state.save()
    first.state.close()
    assert checkpoint.verify(root / f"a1-s{saved_at}").history[-1] == (12, 1) or saved_at == 12
    PROGRESS.__dict__.update(vars(Progress()))
    second = Job(root)
    assert second.state.resumed is not None and second.state.resumed.exact, second.state.resumed
    second.train(STEPS)
    assert second.sha256 == at_edge
    assert second.state.accumulation_history == "0:1,5:4,12:1"
    second.state.close()


def test_a_recorded_turn_that_needs_more_memory_than_was_planned_is_not_repeated_and_that_is_said(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Job(tmp_path / "checkpoints")
    first.train(2)
    supervisor.agree(5, 12, 2)
    first.train(8)
    assert first.state.save()
    first.state.close()
    monkeypatch.setenv("COTENANT_ACCUMULATION_STEPS", "4")
    PROGRESS.__dict__.update(vars(Progress()))
    second = Job(tmp_path / "checkpoints")
    assert second.state.resumed is not None
    assert "accumulation steps: 2 then, 4 now" in second.state.resumed.note
    second.state.close()
