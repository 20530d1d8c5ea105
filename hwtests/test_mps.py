"""MPS on this GPU: a daemon's life, its own words, who is attached, and how a client is stopped.

Rule: what a reply means is asserted through `mps.health`, as the product reads it; the reply itself goes
into the report word for word, because no page of NVIDIA's has them all.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path, PurePosixPath

import pytest

from cotenant.mps import answers
from cotenant.mps.daemon import Daemon
from cotenant.mps.detection import look
from cotenant.mps.environment import client_environment
from cotenant.mps.ownership import Spec
from cotenant.mps.servers import Server
from cotenant.mps.terminate import terminate
from hwtests import host
from hwtests.busy import Busy
from hwtests.device import Device
from hwtests.jobs import JOBS
from hwtests.measuring import Measure
from hwtests.private_mps import PrivateMps, versions

pytestmark = pytest.mark.gpu

QUERIES = 200
ATTACH_S = 30.0
STOP_S = 10.0
NCCL_LOAD_S = 120.0


def test_a_daemon_starts_answers_and_leaves_nothing(cuda: Device, mps: PrivateMps, measured: Measure) -> None:
    version = look(PurePosixPath("/")).version
    said = None if version is None else "{}.{}".format(*version)
    measured("control program, -v", said, otherwise="it does not say")
    measured("version in control.log", versions(mps) or "none")
    assert mps.servers() == (), "no server before the first client"
    with PrivateMps(cuda.uuid) as other:
        pid, folder = other.pid, other.folder
    assert not folder.exists()
    assert not os.path.exists(f"/proc/{pid}") or "Z" in Path(f"/proc/{pid}/stat").read_text().split()


def test_a_process_becomes_a_client(mps_problem: str) -> None:
    """Where this fails, every other test of MPS is skipped; here is why."""
    assert not mps_problem, mps_problem


def test_the_product_s_own_daemon_outlives_its_agent_knows_its_clients_and_takes_one_off(
    cuda: Device, mps_problem: str, measured: Measure
) -> None:
    host.skip_if(f"MPS does not work here: {mps_problem}" if mps_problem else "")
    with tempfile.TemporaryDirectory(prefix="hw-mps-", dir="/tmp") as name:
        folder = PurePosixPath(name)
        spec = Spec(
            pipe_directory=folder / "p", log_directory=folder / "l", devices=(cuda.uuid,), owner="hwtests"
        )
        daemon = Daemon(spec)
        try:
            standing = daemon.look(in_use=False)
            assert standing.shares, standing.why_not
            env = client_environment(spec.pipe_directory)
            with Busy("matmul", cuda, env=env) as one, Busy("matmul", cuda, env=env) as two:
                one.ready(), two.ready()
                known = _await_clients(daemon, one.pid, two.pid)
                measured("its servers, with two clients", ", ".join(str(each.state) for each in known))
                daemon.release()  # As an agent that died: the next one meets a daemon with clients.
                daemon = Daemon(spec)
                assert daemon.look(in_use=True).shares, "it goes on with the daemon"
                _await_clients(daemon, one.pid, two.pid)
                said = terminate(spec.pipe_directory, [one.pid], STOP_S)
                measured("terminate_client, in our words", ", ".join(said.values()))
                assert set(said.values()) <= {"done", "gone"}
                assert one.pid not in _clients(daemon.look(in_use=True).servers)
        finally:
            left = daemon.stop(STOP_S)
            daemon.release()
        assert left == ""


def _clients(servers: tuple[Server, ...]) -> set[int]:
    return {client.pid for server in servers for client in server.clients}


def _await_clients(daemon: Daemon, *pids: int) -> tuple[Server, ...]:
    """The servers, once these are their clients: it is asked every ten seconds at most."""
    until_s = time.monotonic() + ATTACH_S
    while not set(pids) <= _clients(servers := daemon.look(in_use=True).servers):
        assert time.monotonic() < until_s, f"{pids} did not attach: {servers}"
        time.sleep(0.5)
    return servers


def test_two_clients_attach(cuda: Device, mps: PrivateMps, measured: Measure) -> None:
    env = mps.environment()
    with Busy("idle", cuda, env=env) as one, Busy("matmul", cuda, env=env) as two:
        one.ready(), two.ready()
        mps.await_clients(one.pid, two.pid)
        (server,) = mps.servers()
        for command in (
            f"get_server_status {server}",
            f"get_client_list {server}",
            "get_device_client_list",
            "ps",
        ):
            measured(command.split()[0], mps.ask(command) or "(empty)")
        assert answers.server_state(mps.ask(f"get_server_status {server}")) is answers.ServerState.ACTIVE


def test_queries_side_by_side(cuda: Device, mps: PrivateMps, measured: Measure) -> None:
    """How many bare queries fail, with a live server: the reason for one query at a time."""
    with Busy("idle", cuda, env=mps.environment()) as client:
        client.ready()
        mps.await_clients(client.pid)
        (server,) = mps.servers()
        for callers in (1, 2, 4, 8):
            outcomes = _ask_side_by_side(mps, callers, str(server))
            measured(f"{callers} callers: queries that failed", QUERIES - outcomes["whole"], f"of {QUERIES}")
            measured(f"{callers} callers: of these empty with exit 0", outcomes["empty"])
            assert callers > 1 or outcomes["whole"] == QUERIES, "one caller at a time must always be answered"


def _ask_side_by_side(mps: PrivateMps, callers: int, wanted: str) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    lock = threading.Lock()

    def call(count: int) -> None:
        for _ in range(count):
            done = mps.ask_unguarded("get_server_list")
            whole = done.returncode == 0 and done.stdout.strip() == wanted
            empty = done.returncode == 0 and not done.stdout.strip()
            with lock:
                outcomes["whole" if whole else "empty" if empty else "other"] += 1

    threads = [threading.Thread(target=call, args=(QUERIES // callers,)) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def test_a_client_is_terminated_and_its_neighbour_goes_on(
    cuda: Device, mps: PrivateMps, seconds: float, measured: Measure
) -> None:
    env = mps.environment()
    with Busy("matmul", cuda, env=env) as victim, Busy("matmul", cuda, env=env) as neighbour:
        victim.ready(), neighbour.ready()
        mps.await_clients(victim.pid, neighbour.pid)
        before = neighbour.rate(seconds)
        (server,) = mps.servers()
        answer = mps.ask(f"terminate_client {server} {victim.pid}")
        measured("terminate_client", answer or "(empty)")
        after = neighbour.rate(seconds)
        victim.until(lambda said: bool(said.get("error")), timeout_s=30.0)
        measured("what the terminated client meets", victim.error())
        measured("its neighbour before", before, "TFLOP/s")
        measured("its neighbour after", after, "TFLOP/s", neighbour.error())
        assert not answers.refuses_termination(answer), answer
        assert not neighbour.error() and after > before, "the neighbour has the device for itself now"
        assert victim.pid not in mps.clients()


def test_two_jobs_with_nccl_share_the_device(
    cuda: Device, mps: PrivateMps, tmp_path: Path, measured: Measure
) -> None:
    """One rank each: NCCL refuses two of one job on one device. Both train until both were seen at work."""
    enough = tmp_path / "enough"
    env = mps.environment()
    with ExitStack() as stack:
        ranks = []
        for name in ("first", "second"):
            losses = tmp_path / f"{name}.txt"
            words = ("--losses", str(losses), "--until", str(enough))
            began_s = time.monotonic()
            ranks.append(stack.enter_context(JOBS[0].plain(cuda, tmp_path / name, *words, env=env)))
            while not losses.exists():
                assert ranks[-1].process.poll() is None, ranks[-1].last_line()
                assert time.monotonic() - began_s < NCCL_LOAD_S, f"{name}: no step"
                time.sleep(0.05)
            measured(f"{name} job with NCCL: load", time.monotonic() - began_s, "s")
        mps.await_clients(*(rank.process.pid for rank in ranks))
        enough.touch()
        for rank in ranks:
            assert rank.process.wait(NCCL_LOAD_S) == 0, rank.last_line()
