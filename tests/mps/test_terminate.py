"""Taking processes off their server: every answer, always within the time limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from cotenant.mps import process, terminate
from tests.building.limits import within_s
from tests.mps.conftest import Place, freeze

PATIENCE_S = within_s(60.0)


@pytest.fixture
def clients() -> Iterator[list[subprocess.Popen[bytes]]]:
    started = [subprocess.Popen(("sleep", "1000")) for _ in range(2)]
    yield started
    for each in started:
        each.kill()
        each.wait()


def end(place: Place, *pids: int, timeout_s: float = PATIENCE_S) -> dict[int, str]:
    return terminate.terminate(PurePosixPath(place.pipe), pids, timeout_s, program=place.program)


OUTCOMES: dict[str, tuple[dict[str, Any], str]] = {
    "success is a 0": ({"termination": "0"}, "done"),
    "or a word": ({"termination": "CUDA_SUCCESS"}, "done"),
    "an answer nobody knows counts by the client list": ({"termination": "as you wish"}, "done"),
    "a no is a no": ({"termination": "1"}, "refused"),
}


@pytest.mark.parametrize(("world", "outcome"), OUTCOMES.values(), ids=OUTCOMES.keys())
def test_a_client_is_taken_off_and_its_neighbour_stays(
    place: Place, clients: list[subprocess.Popen[bytes]], world: dict[str, Any], outcome: str
) -> None:
    place.start()
    first, second = (each.pid for each in clients)
    place.tell(gpu=True, clients=[first, second], **world)
    assert end(place, first) == {first: outcome}
    (server,) = place.channel.server_list()
    assert second in place.channel.client_list(server)
    assert clients[0].poll() is None, "its process lives on: it is for the caller to end"


def test_one_that_stays_on_the_list_is_unclear(place: Place, clients: list[subprocess.Popen[bytes]]) -> None:
    place.start()
    place.tell(gpu=True, clients=[clients[0].pid], stubborn=True)
    assert end(place, clients[0].pid, timeout_s=1.0) == {clients[0].pid: "unclear"}


def test_who_is_no_client_is_gone_and_without_a_daemon_nobody_knows(
    place: Place, clients: list[subprocess.Popen[bytes]]
) -> None:
    pid = clients[0].pid
    assert end(place, pid) == {pid: "no-daemon"}
    place.start()
    assert end(place, pid) == {pid: "gone"}
    place.tell(gpu=True, clients=[clients[1].pid])
    assert end(place, pid, clients[1].pid) == {pid: "gone", clients[1].pid: "done"}


def test_a_wedged_daemon_costs_the_time_limit_and_no_more(
    place: Place, clients: list[subprocess.Popen[bytes]]
) -> None:
    daemon = place.start()
    freeze(daemon.identity)
    assert end(place, clients[0].pid, timeout_s=0.3) == {clients[0].pid: "unclear"}


def test_the_program_prints_one_object_and_ends_well(
    place: Place, clients: list[subprocess.Popen[bytes]]
) -> None:
    place.start()
    pid = clients[0].pid
    place.tell(gpu=True, clients=[pid])
    path = f"{Path(place.program).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        (sys.executable, "-m", "cotenant.mps.terminate", str(place.pipe), str(pid), "1", "--timeout-s", "60"),
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=within_s(60),
        check=True,
    )
    assert json.loads(done.stdout) == {str(pid): "done", "1": "gone"}


def test_a_zombie_is_dead_and_our_own_is_reaped() -> None:
    child = os.posix_spawn("/bin/sh", ("sh", "-c", "exit 0"), {})
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{child}").exists()
    assert process.identity_of(child) is None
    process.reap(child)
    assert not Path(f"/proc/{child}").exists()


def test_another_process_of_the_same_pid_is_left_alone(clients: list[subprocess.Popen[bytes]]) -> None:
    before = process.MpsProcessIdentity(pid=clients[0].pid, start_ticks=1, boot_id=process.boot_id())
    assert process.end(before, 1.0)
    assert clients[0].poll() is None
