"""The live loop in this process: a real socket, a real journal, and parts that a test can break."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cotenant.controller import server
from cotenant.controller.api import BYTES_BURST
from cotenant.controller.client.connection import Client, Refusal
from cotenant.controller.domain import NOTHING, Compute, Decision, JobId, because
from cotenant.controller.domain import events as ev
from cotenant.controller.loop import TRACEBACKS_BURST
from cotenant.controller.planning import View
from cotenant.controller.policies import registry
from cotenant.controller.policies.base import Parameters, Policy
from cotenant.controller.router import Router
from cotenant.controller.system.secrets import BadSecrets
from cotenant.controller.system.sections import ControllerSettings, Settings
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import unpack
from cotenant.controller.workers import ComputeWorker
from tests.building.journals import a_journal
from tests.building.limits import within_s
from tests.controller.station import ALICE, BOB, job


class Running:
    """A controller on a thread of its own."""

    def __init__(self, folder: Path, **parts: Any) -> None:
        """`parts`: as its constructor takes them."""
        self.folder = folder
        self._parts = parts
        self.endpoint = f"ipc://{folder}/c.sock"
        self._settings = Settings(
            controller=ControllerSettings(endpoint=self.endpoint, state_dir=str(folder / "state"))
        )
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        assert self._ready.wait(within_s(30))
        self.client = Client(self.endpoint, timeout_s=within_s(30.0))

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.controller = server.Controller(self._settings, **self._parts)
        self._ready.set()
        await self.controller.run()

    def stop(self) -> None:
        self.client.close()
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self.controller.stop)
        self._thread.join(within_s(30))
        assert not self._thread.is_alive()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    made: list[Running] = []

    def make(**parts: Any) -> Running:
        made.append(Running(tmp_path, **parts))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def submit(running: Running) -> str:
    return running.client.ask(wire.Submit(specs=(job(),))).job_ids[0]


def events_of(folder: Path) -> list[Any]:
    journal = a_journal(folder / "state")
    events: list[Any] = [unpack(entry.event, ev.AnyEvent) for entry in journal.entries()]
    journal.close()
    return events


def test_secrets_of_jobs_that_the_journal_has_lost_are_nobody_s_from_the_start(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    """Their numbers are given again; a thread takes the files away."""
    folder = tmp_path / "state" / "secrets"
    folder.mkdir(parents=True)
    (folder / "1.json").write_text('{"HF_TOKEN": "of somebody whose job was lost"}')
    running = start()
    with pytest.raises(BadSecrets):
        running.controller._secrets.read(JobId("1"), ["HF_TOKEN"])
    running.stop()
    assert list(folder.iterdir()) == []


def test_an_answer_that_breaks_is_one_answer(
    start: Callable[..., Running], caplog: pytest.LogCaptureFixture
) -> None:
    running = start()
    core: Any = running.controller.core
    scrubbed = threading.Event()
    while core.scrubbed is None:  # It would come later, in place of ours.
        scrubbed.wait(0.01)
    core.scrubbed = "nothing that a view of it expects"
    with caplog.at_level(logging.CRITICAL), pytest.raises(Refusal, match="goes on without it") as caught:
        running.client.ask(wire.GetStatus())
    assert caught.value.failure.code == "internal"
    assert submit(running) == "1"
    assert running.controller.core.counters["internal_errors"] == 1


def test_the_log_has_a_bounded_number_of_tracebacks_of_each_asker(
    start: Callable[..., Running], caplog: pytest.LogCaptureFixture
) -> None:
    running = start()
    core: Any = running.controller.core
    scrubbed = threading.Event()
    while core.scrubbed is None:  # It would come later, in place of ours.
        scrubbed.wait(0.01)
    core.scrubbed = "nothing that a view of it expects"
    asked = 2 * int(TRACEBACKS_BURST)
    with caplog.at_level(logging.ERROR):
        for _ in range(asked):
            with pytest.raises(Refusal, match="goes on without it"):
                running.client.ask(wire.GetStatus())
    assert running.controller.core.counters["internal_errors"] == asked
    told = [each for each in caplog.records if "was dropped" in each.getMessage()]
    assert 0 < len(told) < asked and all(each.exc_info for each in told)
    caplog.clear()


def test_the_socket_rests_while_the_disk_catches_up(
    start: Callable[..., Running],
) -> None:
    pauses: list[bool] = []

    class Watched(Router):
        def pause(self, on: bool) -> None:
            pauses.append(on)
            super().pause(on)

    running = start(waiting_rows_max=0, make_router=Watched)  # One row that is not on disk yet is enough.
    accepted: list[str] = []

    def submit_some() -> None:
        with Client(running.endpoint, timeout_s=within_s(30.0)) as client:
            for _ in range(20):
                accepted.extend(client.ask(wire.Submit(specs=(job(),))).job_ids)

    threads = [threading.Thread(target=submit_some) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(within_s(30))
    assert len(set(accepted)) == 60
    assert True in pauses and False in pauses


class Thoughtful:
    """A policy that asks for a computation at every arrival and keeps the answers as its state."""

    name = "fifo"

    def __init__(self, real: Policy) -> None:
        self.queue_key, self.explain, self.traits = real.queue_key, real.explain, real.traits
        self._answers: list[float] = []
        self._asked = 0

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        if not isinstance(event, ev.JobArrived):
            return NOTHING
        number = self._asked + 1
        numbers = [1.0, 2.0, 3.0 * number]
        request = Compute(
            reason=because("finished"), request_id=number, kind="mean", payload={"values": numbers}
        )
        return Decision(actions=(request,))

    def observe(self, view: View, event: ev.AnyEvent, decision: Decision) -> None:
        self._asked += len(decision.actions)
        if isinstance(event, ev.Computed):
            self._answers.extend(event.values)

    def save(self) -> bytes:
        return msgspec.msgpack.encode((self._asked, self._answers))

    def load(self, state: bytes) -> None:
        self._asked, self._answers = msgspec.msgpack.decode(state, type=tuple[int, list[float]])


def test_a_computation_comes_back_as_an_event_also_over_a_restart(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    def thoughtful(name: str, parameters: Parameters) -> Policy:
        return Thoughtful(registry.make(name, parameters))

    class Asleep(ComputeWorker):
        def start(self, request: object) -> None:
            """The controller ends before it has an answer."""

    running = start(make_policy=thoughtful, make_worker=Asleep)
    submit(running)
    running.stop()
    assert [type(event) for event in events_of(tmp_path)] == [ev.EpochBegan, ev.JobArrived]
    running = start(make_policy=thoughtful)
    submit(running)
    answered = threading.Event()
    core = running.controller.core
    while core.journal.last_seq < 6:
        answered.wait(0.01)
    running.stop()
    computed = {e.request_id: e.values for e in events_of(tmp_path) if isinstance(e, ev.Computed)}
    assert computed == {1: (2.0,), 2: (3.0,)}
    assert core.state.compute_requests == {}


def test_a_user_who_sends_too_much_is_refused_unread(start: Callable[..., Running]) -> None:
    """Reading is what takes memory: of a message beyond the rate only its number is looked for."""
    running = start()
    running.controller._router._owner = ALICE
    question = wire.ListPairs(containing="x" * 4_000_000)
    told: list[str] = []
    while len(told) < 200 and "refused" not in told:
        with pytest.raises(Refusal) as refusal:
            running.client.ask(question)
        told.append(refusal.value.failure.code)
    assert told[-1] == "refused"
    assert set(told[:-1]) == {"usage"}, "each was read, and its text is too long"
    assert len(told) > BYTES_BURST // 4_000_000
    assert running.controller.core.counters["bad_messages"] == 0
    running.controller._router._owner = BOB
    assert running.client.ask(wire.ListPairs()).pairs == ()
