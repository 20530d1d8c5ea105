"""A supervisor that was started ahead: what it is handed it holds, and nobody relies on it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.agent.daemon.warm_starts import SpareSupervisor
from cotenant.agent.ipc.files import kept_in_memory, read_record, write_record
from cotenant.agent.ipc.records import ORDER, RESULT, Result
from cotenant.controller.domain import Launch
from cotenant.controller.system.locks import is_free, open_locked
from tests.building.limits import within_s
from tests.building.orders import order_of

WAIT_S = within_s(60.0)


@pytest.fixture
def spare() -> Iterator[SpareSupervisor]:
    made = SpareSupervisor()
    made.keep()
    yield made
    made.drop()


def process_of(spare: SpareSupervisor) -> int:
    assert spare._process is not None
    return spare._process.pid


def take(spare: SpareSupervisor, folder: Path) -> int | None:
    """Hand it a folder, and close what was handed: its exit code in the end, None: there was none."""
    lock, secrets = open_locked(folder / "alive.lock"), kept_in_memory({})
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
    try:
        process = spare.take(folder, log, secrets, [lock])
    finally:
        for each in (lock, secrets, log):
            os.close(each)
    if process is None:
        return None
    assert not is_free(folder / "alive.lock"), "it is held before anybody has read the message"
    os.kill(process.pid, signal.SIGCONT)
    return process.wait(WAIT_S)


def test_it_runs_the_attempt_that_it_is_handed(tmp_path: Path, spare: SpareSupervisor) -> None:
    (folder := tmp_path / "7-a1").mkdir(mode=0o711)
    launch = Launch(argv=("sh", "-c", "exit 4"), workdir="/", uid=os.geteuid())
    write_record(folder / ORDER, order_of(launch=launch))
    os.kill(process_of(spare), signal.SIGSTOP)  # The message waits for it.
    assert take(spare, folder) == 0, (folder / "log").read_text()
    result = read_record(folder / RESULT, Result)
    assert result is not None and (result.verdict.outcome, result.verdict.exit_code) == ("user-failed", 4)
    assert is_free(folder / "alive.lock")


def test_its_log_is_the_attempts(tmp_path: Path, spare: SpareSupervisor) -> None:
    assert take(spare, tmp_path) == 2
    assert f"no {ORDER} in {tmp_path}" in (tmp_path / "log").read_text()


def test_one_that_has_ended_is_not_taken(tmp_path: Path, spare: SpareSupervisor) -> None:
    pid = process_of(spare)
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert take(spare, tmp_path) is None
    assert take(spare, tmp_path) is None, "nor is there another"
    spare.keep()
    assert process_of(spare) != pid


def test_there_is_one_at_a_time(spare: SpareSupervisor) -> None:
    pid = process_of(spare)
    spare.keep()
    assert process_of(spare) == pid


def test_it_ends_with_its_agent(spare: SpareSupervisor) -> None:
    process, agent = spare._process, spare._socket
    assert process is not None and agent is not None
    agent.close()
    assert process.wait(WAIT_S) == 0
