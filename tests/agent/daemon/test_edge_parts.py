"""Parts of the agent's edge: log questions, names from the wire, and a disk that refuses notes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
import zmq

from cotenant.agent.daemon.assembly import AgentParts
from cotenant.agent.daemon.connections import ControllerLink, Line, check_names
from cotenant.agent.daemon.core.edge import (
    AgentConfig,
    AnyAgentEffect,
    AnyAgentEvent,
    Keep,
    LinkChanged,
    Send,
    StartFailed,
    StartSupervisor,
    SupervisorGone,
)
from cotenant.agent.daemon.core.notes import Obeyed
from cotenant.agent.daemon.core.state import AgentState
from cotenant.agent.daemon.runtime import Runtime
from cotenant.agent.daemon.spool import Spool
from cotenant.agent.daemon.tasks import BYTES_MAX, LogReader, look
from cotenant.agent.host.locks import DeviceLocks, LockFolders
from cotenant.agent.ipc.channel import GangIn
from cotenant.agent.ipc.records import CONTROL, LOGS, RESULT, Order, attempt_folder
from cotenant.agent.supervisor.processes.logs import LogWriter
from cotenant.controller.domain import AttemptNo, CommandId, ForgetJob, HostId, JobId, Launch
from cotenant.controller.system.endpoint import BadEndpoint
from cotenant.controller.system.keys import CONTROLLER_KEY, find_key, init_cluster, read_key
from cotenant.controller.wire import (
    BadMessage,
    CommandAck,
    CommandDelivery,
    FromAgent,
    Heartbeat,
    LogReply,
    ReadLog,
    Renew,
    decode,
)
from tests.building.hosts import agent_config
from tests.building.limits import within_s
from tests.building.orders import changed, order_of
from tests.building.stand_in import StandIn

JOB, ONE, HOST = JobId("7"), AttemptNo(1), HostId("h")


async def until(what: Callable[[], bool]) -> None:
    while True:
        if what():
            return
        await asyncio.sleep(0.01)


# --- Logs ------------------------------------------------------------------------------------------


def question(**changes: Any) -> ReadLog:
    plain: dict[str, Any] = {
        "request": 1,
        "job_id": JOB,
        "attempt": ONE,
        "rank": 0,
        "offset": 0,
        "limit": 100,
    }
    return ReadLog(**{**plain, **changes})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = attempt_folder(tmp_path, JOB, ONE)
    (made / LOGS).mkdir(parents=True)
    return made


@pytest.fixture
def writer(folder: Path) -> Iterator[LogWriter]:
    made = LogWriter(folder / LOGS, 0, 1_000_000)
    yield made
    made.close()


def test_a_log_is_read_piece_by_piece_and_closed_by_the_result(folder: Path, writer: LogWriter) -> None:
    writer.write(b"hello world")
    first = look(folder, question(limit=5))
    assert (first.data, first.next_offset, first.at_end, first.closed) == (b"hello", 5, False, False)
    rest = look(folder, question(offset=5))
    assert (rest.data, rest.at_end, rest.closed) == (b" world", True, False)
    (folder / RESULT).touch()
    assert look(folder, question(offset=5)).closed
    assert not look(folder, question(limit=5)).closed


def test_the_end_of_a_log_can_be_asked_for(folder: Path, writer: LogWriter) -> None:
    writer.write(b"hello world")
    last = look(folder, question(offset=-5))
    assert (last.data, last.next_offset, last.at_end) == (b"world", 11, True)
    assert look(folder, question(offset=-500)).data == b"hello world"


def test_an_answer_is_bounded(folder: Path, writer: LogWriter) -> None:
    writer.write(b"x" * 400_000)
    assert len(look(folder, question(limit=10**9)).data) == BYTES_MAX


def test_a_log_that_is_not_there_is_explained(folder: Path) -> None:
    assert "was removed after agent.prune_after_days" in look(folder.with_name("8-a1"), question()).missing
    assert look(folder, question()).missing == "", "not yet: its rank has not started"
    (folder / RESULT).touch()
    assert "no log of rank 3" in look(folder, question(rank=3)).missing


def test_a_follower_is_answered_when_there_is_news(folder: Path, writer: LogWriter) -> None:
    replies: list[LogReply] = []

    async def follow() -> None:
        relay = LogReader(
            lambda job_id, attempt: attempt_folder(folder.parent, job_id, attempt), replies.append
        )
        relay.answer(question(wait_s=30.0))
        assert replies == []
        writer.write(b"news")
        await until(lambda: len(replies) == 1)
        relay.answer(question(offset=4, wait_s=0.0))
        relay.answer(question(offset=4, wait_s=0.3))
        await until(lambda: len(replies) == 3)

    asyncio.run(asyncio.wait_for(follow(), within_s(20)))
    assert [reply.data for reply in replies] == [b"news", b"", b""]


# --- The wire --------------------------------------------------------------------------------------


@pytest.mark.parametrize("job_id", ["../../etc", "", "a/b", ".", "7\n", "x" * 65, "7_"])
def test_a_job_number_that_would_be_a_path_is_no_message(job_id: str) -> None:
    with pytest.raises(BadMessage, match="is not a job number"):
        check_names(question(job_id=JobId(job_id)))
    forget = ForgetJob(command_id=CommandId(1), host_id=HOST, job_id=JobId(job_id))
    with pytest.raises(BadMessage, match="is not a job number"):
        check_names(CommandDelivery(command=forget))


@pytest.mark.parametrize("token", ["../../etc", "a/b", ".", "7\n", "x" * 65, "-"])
def test_a_token_of_an_epoch_that_would_be_a_path_is_no_message(token: str) -> None:
    forget = ForgetJob(command_id=CommandId(1), host_id=HOST, job_id=JobId("7"), job_epoch=token)
    with pytest.raises(BadMessage, match="is not the token of an epoch"):
        check_names(CommandDelivery(command=forget))


def test_ordinary_messages_pass() -> None:
    check_names(question(job_id=JobId("12_3")))
    check_names(Renew(beat=1))


@pytest.mark.parametrize(
    ("endpoint", "text"),
    [("tcp://head:7070", "needs keys"), ("inproc://x", "neither"), ("ipc://" + "/x" * 80, "longer than")],
)
def test_an_endpoint_that_cannot_be_used_is_refused_at_once(endpoint: str, text: str) -> None:
    with pytest.raises(BadEndpoint, match=text):
        ControllerLink(endpoint, "h", None, post=lambda _: None, log=lambda _: None)


def test_a_link_of_several_tells_when_it_opens_and_closes_and_goes_where_it_is_sent(tmp_path: Path) -> None:
    init_cluster(tmp_path / "keys")
    key, pair = find_key(tmp_path / "keys"), read_key(tmp_path / "keys" / CONTROLLER_KEY)
    told: list[LinkChanged] = []

    async def play(first: StandIn, second: StandIn) -> None:
        link = ControllerLink(
            first.endpoint, "h", key, post=lambda _: None, log=lambda _: None, changed=told.append
        )
        link.open()
        await until(lambda: told == [LinkChanged(endpoint=first.endpoint, is_open=True)])
        await asyncio.to_thread(first.close)
        await until(lambda: LinkChanged(endpoint=first.endpoint, is_open=False) in told)
        told.clear()
        link.reconnect(second.endpoint)
        await until(lambda: told == [LinkChanged(endpoint=second.endpoint, is_open=True)])
        told.clear()
        link.reconnect()
        await until(lambda: told == [LinkChanged(endpoint=second.endpoint, is_open=True)])
        link.end()

    with closing(StandIn(key=pair)) as first, closing(StandIn(key=pair)) as second:
        asyncio.run(asyncio.wait_for(play(first, second), within_s(20)))


# --- A disk that takes no more notes ---------------------------------------------------------------


class Scripted(AgentState):
    """A state machine that asks for what the test says."""

    def __init__(self, config: AgentConfig) -> None:
        super().__init__(config)
        self.script: list[list[AnyAgentEffect]] = []
        self.events: list[AnyAgentEvent] = []

    def handle(self, event: AnyAgentEvent, now_s: float) -> list[AnyAgentEffect]:
        self.events.append(event)
        return self.script.pop(0) if self.script else []

    @property
    def next_alarm_s(self) -> float:
        return float("inf")


def order(folder: Path) -> Order:
    root = str(folder / "ckpt")
    return order_of(launch=Launch(workdir=str(folder)), checkpoint_root=root, start_deadline_s=1.0)


def runtime_in(folder: Path, state: AgentState, spool: Spool) -> Runtime:
    """It looks for its controller at `c.sock` there."""
    parts = AgentParts(
        config=state.config,
        memory=state.memory,
        spool=spool,
        locks=DeviceLocks(LockFolders(shared=folder, is_root=False)),
        attempts=folder / "attempts",
        endpoint=f"ipc://{folder}/c.sock",
    )
    return Runtime(state, parts, on_welcome=lambda: None)


def test_a_full_disk_stops_promises_and_starts_but_not_heartbeats(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    spool.load()
    state = Scripted(agent_config(uid=os.geteuid()))

    async def play(controller: zmq.Socket[bytes]) -> None:
        runtime = runtime_in(tmp_path, state, spool)
        running = asyncio.create_task(runtime.run())
        await asyncio.sleep(0)
        greeting = Heartbeat(beat=0, session="s")

        async def heard() -> FromAgent:
            await until(lambda: bool(controller.poll(0)))
            return cast(FromAgent, decode(controller.recv_multipart()[-1], FromAgent))

        def greeted() -> bool:
            """Nothing that is sent before there is a connection is kept."""
            state.script = [[Send(message=greeting)]]
            runtime.post(state.events[0])
            return bool(controller.poll(0))

        await until(greeted)
        good = spool._file
        spool._file = os.open("/dev/full", os.O_RDWR)
        seen = CommandAck(command_id=CommandId(5))
        beat = Heartbeat(beat=1, session="s")
        note = Keep(note=Obeyed(command_id=CommandId(5)))
        state.script = [
            [note, StartSupervisor(order=order(tmp_path)), Send(message=seen), Send(message=beat)]
        ]
        runtime.post(state.events[0])
        while (said := await heard()) == greeting:
            pass
        assert said == beat, "nothing is confirmed that is not on disk"
        failed = state.events[-1]
        assert isinstance(failed, StartFailed)
        assert "takes no more notes" in failed.why
        assert not (tmp_path / "attempts" / "7-a1").exists()
        os.close(spool._file)
        spool._file = good
        await until(lambda: not runtime.loop.unwritten)
        state.script = [[Send(message=seen)]]
        runtime.post(state.events[0])
        assert await heard() == seen
        runtime.leave()
        await running

    with zmq.Context() as context, context.socket(zmq.ROUTER) as controller:
        controller.bind(f"ipc://{tmp_path}/c.sock")
        asyncio.run(asyncio.wait_for(play(controller), within_s(20)))
    again = Spool(spool.path)
    assert again.load() == [Obeyed(command_id=CommandId(5))], "written once the disk had room"
    again.close()


# --- Mistakes of ours ------------------------------------------------------------------------------


def run_with(folder: Path, play: Callable[[Runtime, Scripted], Coroutine[Any, Any, None]]) -> str:
    """Why an agent ended that went through this; empty: it did not end by itself."""
    spool = Spool(folder / "spool")
    spool.load()
    state = Scripted(agent_config(uid=os.geteuid()))
    runtime = runtime_in(folder, state, spool)

    async def story() -> None:
        running = asyncio.create_task(runtime.run())
        await asyncio.sleep(0)
        await play(runtime, state)
        runtime.leave()
        await running

    asyncio.run(asyncio.wait_for(story(), within_s(60.0)))
    return runtime.why_halted


def test_a_start_that_fails_in_an_unforeseen_way_is_that_jobs_failure_alone(tmp_path: Path) -> None:
    elsewhere = changed(order(tmp_path), host_id=HostId("no-part-of-its-gang"))

    async def play(runtime: Runtime, state: Scripted) -> None:
        state.script = [[StartSupervisor(order=elsewhere)]]
        runtime.post(state.events[0])
        gone = state.events[-1]
        assert isinstance(gone, SupervisorGone) and gone.job_id == elsewhere.job_id
        assert gone.why.startswith(
            "starting its supervisor failed by an internal error of the agent: StopIter"
        )

    assert run_with(tmp_path, play) == ""


def test_a_state_that_may_be_wrong_ends_the_agent(tmp_path: Path) -> None:
    async def play(runtime: Runtime, state: Scripted) -> None:
        async def post() -> None:
            state.script = [[cast(AnyAgentEffect, StartSupervisor(order=cast(Order, None)))]]
            runtime.post(state.events[0])

        runtime._tasks.keep(post())
        await runtime._leave.wait()

    why = run_with(tmp_path, play)
    assert why.startswith("internal error (BadState(") and why.endswith("start the agent again; jobs live on")


def test_what_is_too_large_for_a_supervisors_line_is_dropped_and_said(tmp_path: Path) -> None:
    lines: list[str] = []

    async def play() -> None:
        came = asyncio.Event()
        line = Line((JOB, ONE), tmp_path, post=lambda _: came.set(), answer=lambda _: None, log=lines.append)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with closing(writer):
                await reader.read()

        async with await asyncio.start_unix_server(serve, tmp_path / CONTROL):
            running = asyncio.create_task(line.run())
            await came.wait()
            assert not line.tell(GangIn(from_host=HOST, payload=bytes(2 * 1024 * 1024)))
            assert line.tell(GangIn(from_host=HOST, payload=b"small"))
            line.close()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(asyncio.wait_for(play(), within_s(60.0)))
    assert len(lines) == 1 and "GangIn cannot be passed on" in lines[0]
