"""Whether a supervisor lives: its inherited lock, and its identity. With plain processes in its place."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cotenant.agent.daemon.core.edge import AnyAgentEvent, EndCame, SupervisorGone
from cotenant.agent.daemon.supervisors import ALIVE_LOCK, Supervisors, end_process
from cotenant.agent.host.process_identity import identity_of, is_alive
from cotenant.agent.ipc.files import write_record
from cotenant.agent.ipc.records import ORDER, RESULT, SUPERVISOR, UNCLEAN, ProcessIdentity
from cotenant.controller.domain import AttemptNo, ExitVerdict, JobId
from tests.building.limits import within_s
from tests.building.results import result

KEY: dict[str, Any] = {"job_id": JobId("7"), "attempt": AttemptNo(1)}
RESULT_OF_IT = result(step=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "7-a1"
    made.mkdir()
    return made


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield started
    started.kill()
    started.wait()


def identity(process: subprocess.Popen[bytes]) -> ProcessIdentity:
    found = identity_of(process.pid)
    assert found is not None
    return found


def watched(base: Path, do: Callable[[Supervisors], None]) -> list[AnyAgentEvent]:
    """What is posted up to the first event, after `do`."""
    events: list[AnyAgentEvent] = []

    async def play() -> None:
        came = asyncio.Event()

        def post(event: AnyAgentEvent) -> None:
            events.append(event)
            came.set()

        attempts = Supervisors(base, post=post, log=lambda _: None, lock_devices=lambda _: [])
        do(attempts)
        await asyncio.wait_for(came.wait(), within_s(20))
        await attempts.leave()

    asyncio.run(play())
    return events


def scan(base: Path) -> Any:
    attempts = Supervisors(base, post=lambda _: None, log=lambda _: None, lock_devices=lambda _: [])
    [found] = attempts.scan()
    return found


def test_a_supervisor_that_has_not_said_who_it_is_lives_as_long_as_its_lock_is_held(folder: Path) -> None:
    """An agent that was killed in the middle of a start must not start another one."""
    held = os.open(folder / ALIVE_LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    assert scan(folder.parent).alive
    os.close(held)
    assert not scan(folder.parent).alive

    def adopt_and_let_go(attempts: Supervisors) -> None:
        again = os.open(folder / ALIVE_LOCK, os.O_RDWR)
        fcntl.flock(again, fcntl.LOCK_EX)
        attempts.adopt(**KEY)
        asyncio.get_running_loop().call_later(0.2, os.close, again)

    [event] = watched(folder.parent, adopt_and_let_go)
    assert isinstance(event, SupervisorGone)


def test_an_adopted_supervisor_is_watched_to_its_end(folder: Path, process: subprocess.Popen[bytes]) -> None:
    write_record(folder / SUPERVISOR, identity(process))

    def adopt_and_end(attempts: Supervisors) -> None:
        attempts.adopt(**KEY)
        write_record(folder / RESULT, RESULT_OF_IT)
        asyncio.get_running_loop().call_later(0.1, process.kill)

    assert watched(folder.parent, adopt_and_end) == [EndCame(result=RESULT_OF_IT)]


@pytest.mark.parametrize("what", ["start_ticks", "boot_id"])
def test_a_process_that_only_has_the_same_pid_is_neither_adopted_nor_ended(
    folder: Path, process: subprocess.Popen[bytes], what: str
) -> None:
    real = identity(process)
    changed: dict[str, Any] = {"start_ticks": real.start_ticks + 1, "boot_id": "another"}
    other = msgspec.structs.replace(real, **{what: changed[what]})
    write_record(folder / SUPERVISOR, other)
    assert scan(folder.parent).rebooted == (what == "boot_id")
    [event] = watched(folder.parent, lambda attempts: attempts.adopt(**KEY))
    assert isinstance(event, SupervisorGone)
    end_process(other)
    assert is_alive(real)


def test_leftovers_are_ended_and_a_missing_result_is_written(
    folder: Path, process: subprocess.Popen[bytes]
) -> None:
    write_record(folder / SUPERVISOR, identity(process))
    [event] = watched(folder.parent, lambda attempts: attempts.clean(RESULT_OF_IT))
    assert event == EndCame(result=RESULT_OF_IT)
    assert process.wait() == -9
    assert scan(folder.parent).result == RESULT_OF_IT


def test_a_result_that_is_there_is_not_overwritten(folder: Path) -> None:
    write_record(folder / RESULT, RESULT_OF_IT)
    killed = ExitVerdict(outcome="infra-failed", detail="killed")
    other = msgspec.structs.replace(RESULT_OF_IT, verdict=killed)
    assert watched(folder.parent, lambda attempts: attempts.clean(other)) == [EndCame(result=RESULT_OF_IT)]


def test_damaged_files_make_a_dead_attempt_and_no_crash(folder: Path) -> None:
    for name in (ORDER, RESULT, SUPERVISOR):
        (folder / name).write_bytes(b"\x00\xff garbage")
    (folder.parent / "lost+found").mkdir()
    found = scan(folder.parent)
    assert (found.alive, found.order, found.result) == (False, None, None)
    [event] = watched(folder.parent, lambda attempts: attempts.clean(RESULT_OF_IT))
    assert event == EndCame(result=RESULT_OF_IT)


@pytest.mark.parametrize("unclean", [True, False])
def test_the_result_that_is_written_for_a_dead_supervisor_says_whether_its_daemon_helped(
    folder: Path, unclean: bool
) -> None:
    if unclean:
        (folder / UNCLEAN).touch()
    (event,) = watched(folder.parent, lambda attempts: attempts.clean(RESULT_OF_IT))
    assert event == EndCame(result=msgspec.structs.replace(RESULT_OF_IT, unclean=unclean))
