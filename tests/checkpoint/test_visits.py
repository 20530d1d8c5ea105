"""A run that is there to be measured visits several s: no report is about two of them, each has its own peak
of memory, and what it trains is what that schedule gives."""

from __future__ import annotations

import gc
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cotenant import gradaccum
from cotenant.checkpoint import Session, parameters_sha256
from cotenant.checkpoint.progress.loops import Loaders
from cotenant.checkpoint.progress.steps import StepReporter
from cotenant.checkpoint.talk import memory, protocol
from cotenant.gradaccum.schedule import PROGRESS, Progress

STEPS, SCHEDULE = 20, "0:1,5:4,12:2"
SPIKE_MIB = 64
"""In use for a moment in the first visit."""


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("COTENANT_") and "TEST" not in name]:
        monkeypatch.delenv(name)
    gc.collect()  # No session of another test speaks for this process.
    PROGRESS.__dict__.update(vars(Progress()))
    yield
    PROGRESS.__dict__.update(vars(Progress()))


class Heard:
    """The supervisor's end of the socket. A thread reads what comes: the kernel holds a few datagrams."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self._path)
        self.words: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while data := self._socket.recv(8192):
            self.words.append(json.loads(data))

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.sendto(b"", self._path)
        self._thread.join()
        self._socket.close()

    def visits(self) -> list[dict[str, Any]]:
        """The last report of memory about each s but 2, which has no end; `first` is where it begins."""
        found: dict[int, dict[str, Any]] = {}
        for word in self.named(protocol.STRETCH):
            first = found.get(word["s"], word)["first"]
            found[word["s"]] = {**word, "first": first}
        found.pop(2, None)
        return [*found.values()]

    def named(self, name: str) -> list[dict[str, Any]]:
        return [word for word in self.words if word["m"] == name]


@pytest.fixture
def heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Heard]:
    made = Heard(tmp_path / "s.sock")
    monkeypatch.setenv("COTENANT_SOCKET", str(tmp_path / "s.sock"))
    yield made
    if made._thread.is_alive():
        made.close()


class Job:
    """Float32, so that another s is another result. Without a session its steps are counted by a hook."""

    def __init__(self, *, session: bool = True) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.state = Session(self.model, self.optimizer) if session else None
        self.reporter = None if session else StepReporter(Loaders())
        self.used: list[int] = []

    def train(self) -> Job:
        for step in range(STEPS):
            if step == 3:
                torch.ones(SPIKE_MIB << 20, dtype=torch.uint8)
            generator = torch.Generator().manual_seed(step)
            x, y = torch.randn(12, 6, generator=generator), torch.randint(0, 3, (12,), generator=generator)
            self.optimizer.zero_grad()
            gradaccum.backward(self.model, lambda a, b: nn.functional.cross_entropy(self.model(a), b), x, y)
            self.optimizer.step()
            self.used.append(PROGRESS.last_steps)
            if self.state is not None:
                self.state.step_done()
            if self.reporter is not None:
                self.reporter.note_step(self.optimizer)
        if self.state is not None:
            self.state.close()
        return self


@pytest.mark.parametrize("session", [False, True])
def test_reports_and_memory_are_of_one_visit_each(
    session: bool, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTENANT_PROFILING", "1")
    monkeypatch.setenv("COTENANT_ACCUMULATION_SCHEDULE", SCHEDULE)
    job = Job(session=session).train()
    heard.close()
    assert job.used == [1] * 5 + [4] * 7 + [2] * 8
    told = heard.visits()
    began = 0 if session else 1  # The hook first speaks at the end of the first step.
    assert [(word["first"], word["step"], word["s"]) for word in told] == [(began, 5, 1), (5, 12, 4)]
    first, second = (word["memory_mib"] for word in told)
    assert second < first - SPIKE_MIB / 2, "a visit has its own peak"
    for word in told:
        assert 1.0 < word["static_mib"] <= word["memory_mib"] * 1.01, (
            "what is there now was the peak at least"
        )
    for report in heard.named(protocol.STEP):
        first = report["step"] - report["count"]
        assert not any(first < edge < report["step"] for edge in (5, 12)), "no report is about two visits"
        if report["count"]:
            assert report["s"] == (1 if report["step"] <= 5 else 4 if report["step"] <= 12 else 2)


def test_a_job_that_trains_for_itself_has_its_counters_left_alone(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script may print them."""
    monkeypatch.setenv("COTENANT_ACCUMULATION_SCHEDULE", SCHEDULE)
    job = Job().train()
    heard.close()
    assert job.state is not None and job.state.accumulation_history == SCHEDULE
    told = heard.visits()
    assert [word["step"] for word in told] == [5, 12]
    assert told[1]["memory_mib"] >= told[0]["memory_mib"]


def test_it_trains_what_the_schedule_gives(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = parameters_sha256(Job().train().model)
    monkeypatch.setenv("COTENANT_ACCUMULATION_SCHEDULE", SCHEDULE)
    PROGRESS.__dict__.update(vars(Progress()))
    scheduled = parameters_sha256(Job().train().model)
    monkeypatch.setenv("COTENANT_PROFILING", "1")
    PROGRESS.__dict__.update(vars(Progress()))
    assert parameters_sha256(Job().train().model) == scheduled != plain


def test_the_peak_begins_anew() -> None:
    kept = torch.ones(32 << 20, dtype=torch.uint8)
    before_mib, _ = memory.memory_in_use_mib()
    del kept
    assert memory.restart_peak()
    after_mib, now_mib = memory.memory_in_use_mib()
    assert before_mib is not None and after_mib is not None and now_mib is not None
    assert after_mib < before_mib - 16.0
