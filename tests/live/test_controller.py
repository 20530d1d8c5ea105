"""The controller as a process: killed, overrun with rubbish, asked by strangers, out of disk."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pytest
import zmq

from cotenant.controller.client.connection import Client, Refusal, Unreachable
from cotenant.controller.domain import JobId
from cotenant.controller.system import keys
from cotenant.controller.wire import (
    MESSAGE_BYTES_MAX,
    WIRE_VERSION,
    agents,
    decode,
    encode,
)
from cotenant.controller.wire import clients as wire
from tests.building.limits import within_s
from tests.controller.station import hello, job

WAIT_S = within_s(60.0)
NO_ETAS = ("--set", "controller.eta_share=0")
"""Whoever asks what would be says otherwise: a process of its own works for that."""


class Controllers:
    """Starts controllers on one state folder; ends them all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.endpoint = f"ipc://{folder}/run/c.sock"
        self._running: list[subprocess.Popen[str]] = []
        self._clients: list[Client] = []

    def start(self, *words: str, endpoint: str = "", state: str = "state") -> subprocess.Popen[str]:
        process = self.launch(*words, endpoint=endpoint, state=state)
        assert process.stdout is not None
        ready = process.stdout.readline()
        if not ready.startswith("ready "):
            _, errors = process.communicate(timeout=WAIT_S)
            raise AssertionError(f"not ready: {ready}{errors}")
        self.ready = dict(word.split("=", 1) for word in ready.split()[2:])
        self.bound = ready.split()[1]
        return process

    def launch(self, *words: str, endpoint: str = "", state: str = "state") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "cotenant.controller", "--state-dir", str(self.folder / state)]
        process = subprocess.Popen(
            [*command, "--endpoint", endpoint or self.endpoint, *NO_ETAS, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._running.append(process)
        return process

    def fails(self, *words: str, **more: str) -> tuple[int, str]:
        """Exit code and message of one that cannot start."""
        process = self.launch(*words, **more)
        out, errors = process.communicate(timeout=WAIT_S)
        assert out == ""
        return process.returncode, errors

    def client(self, key: Path | None = None, **more: Any) -> Client:
        client = Client(self.bound, key, **more)
        self._clients.append(client)
        return client

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for process in self._running:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def controllers(tmp_path: Path) -> Iterator[Controllers]:
    made = Controllers(tmp_path)
    yield made
    made.close()


def submit(client: Client, key: str = "", **fields: Any) -> JobId:
    return client.ask(wire.Submit(specs=(job(**fields),), idempotency_key=key), WAIT_S).job_ids[0]


class Agent:
    """The least an agent is: greets, answers nothing else."""

    def __init__(self, endpoint: str, key: keys.KeyFile | None = None) -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        if key is not None:
            self.socket.curve_publickey = key.public.encode()
            self.socket.curve_secretkey = key.secret.encode()
            self.socket.curve_serverkey = key.server.encode()
        self.socket.connect(endpoint)

    def hello(self, name: str, session: str = "s1") -> Any:
        self.socket.send(encode(hello(name, session=session)))
        return self.hear()

    def hear(self) -> Any:
        """The next message, None if none comes."""
        if not self.socket.poll(int(WAIT_S * 1000)):
            return None
        return decode(self.socket.recv(), agents.ToAgent)

    def close(self) -> None:
        self.socket.close()
        self._context.term()


@pytest.fixture
def agent() -> Iterator[Callable[..., Agent]]:
    made: list[Agent] = []

    def make(endpoint: str, key: keys.KeyFile | None = None) -> Agent:
        made.append(Agent(endpoint, key))
        return made[-1]

    yield make
    for each in made:
        each.close()


# --- Killed ----------------------------------------------------------------------------------------


def test_kill_9_loses_no_acknowledged_submission(controllers: Controllers, seed: int) -> None:
    """Three clients submit as fast as they can; the controller is killed in the middle, four times."""
    rng = random.Random(seed)
    acknowledged: dict[str, JobId] = {}
    for round_ in range(4):
        process = controllers.start()
        acknowledged |= storm(controllers, process, round_, kill_after=rng.randint(5, 60))
        process.communicate(timeout=WAIT_S)
        assert process.returncode == -signal.SIGKILL
    controllers.start()
    client = controllers.client()
    known = {view.job_id for view in client.ask(wire.ListJobs()).jobs}
    missing = {key: job_id for key, job_id in acknowledged.items() if job_id not in known}
    assert missing == {} and len(acknowledged) > 20
    assert len(set(acknowledged.values())) == len(acknowledged), "a number was given twice"
    for key, job_id in acknowledged.items():
        assert submit(client, key) == job_id, "a repeat is the same job, a crash later too"


def storm(
    controllers: Controllers, process: subprocess.Popen[str], round_: int, kill_after: int
) -> dict[str, JobId]:
    """Submissions from three threads until the controller is dead; what was acknowledged."""
    acknowledged: dict[str, JobId] = {}
    enough = threading.Event()

    def submit_on(thread: int) -> None:
        with Client(controllers.bound, timeout_s=1.0) as client:
            for number in range(10_000):
                key = f"r{round_}-t{thread}-{number}"
                try:
                    (acknowledged[key],) = client.ask(
                        wire.Submit(specs=(job(),), idempotency_key=key)
                    ).job_ids
                except Unreachable:
                    if enough.is_set():
                        return
                    continue  # Nobody has killed it yet: it is slow.
                if len(acknowledged) >= kill_after:
                    enough.set()

    threads = [threading.Thread(target=submit_on, args=(at,)) for at in range(3)]
    for thread in threads:
        thread.start()
    assert enough.wait(WAIT_S)
    process.kill()
    for thread in threads:
        thread.join(WAIT_S)
    return acknowledged


def test_sigterm_ends_in_order_with_a_snapshot(controllers: Controllers) -> None:
    process = controllers.start()
    submit(controllers.client())
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == 0
    database = sqlite3.connect(controllers.folder / "state" / "journal.sqlite")
    assert database.execute("SELECT max(seq) FROM snapshots").fetchone() == (2,), "of the start and the job"
    database.close()
    assert not Path(controllers.endpoint.removeprefix("ipc://")).exists()
    controllers.start()
    assert controllers.ready["jobs"] == "1"


def test_a_question_outlives_a_restart(controllers: Controllers) -> None:
    """The client asks again by itself when its connection comes back."""
    process = controllers.start()
    waiter, other = controllers.client(), controllers.client()
    job_id = submit(other)
    answers: list[wire.Jobs] = []
    thread = threading.Thread(
        target=lambda: answers.append(waiter.ask(wire.WaitJobs(job_ids=(job_id,), timeout_s=within_s(20.0))))
    )
    thread.start()
    # One is the submission, each look is one more, and the first beyond them is the waiter's question.
    ours = itertools.count(2)
    until(lambda: other.ask(wire.GetStatus()).counters["messages"] > next(ours))
    process.kill()
    process.wait()
    controllers.start()
    other.ask(wire.ChangeJobs(verb="cancel", job_ids=(job_id,)))
    thread.join(WAIT_S)
    assert [view.phase for view in answers[0].jobs] == ["cancelled"]


def test_stop_and_idleness_end_it_too(controllers: Controllers) -> None:
    process = controllers.start()
    client = controllers.client()
    assert "jobs go on" in client.ask(wire.Stop()).lines[0]
    assert process.wait(WAIT_S) == 0
    idle = controllers.start("--set", "controller.idle_exit_s=0.5")
    assert idle.wait(WAIT_S) == 0
    with pytest.raises(Unreachable, match="no controller at") as caught:
        Client(controllers.endpoint).ask(wire.GetStatus())
    assert "cotenant up" in caught.value.hint


def test_the_engine_is_woken_when_it_wants_to_be(controllers: Controllers) -> None:
    controllers.start("--set", "policy.ageing_s=0.2")
    client = controllers.client()
    submit(client)
    until(lambda: client.ask(wire.GetStatus()).counters["events"] >= 2)


def test_a_journal_can_be_replayed(controllers: Controllers) -> None:
    controllers.start().kill()
    submit_some = controllers.start("--set", "policy.name=sjf")
    for expected_s in (5.0, 3.0, 4.0):
        submit(controllers.client(), expected_s=expected_s)
    submit_some.terminate()
    submit_some.wait(WAIT_S)
    process = controllers.launch("--replay")
    out, _ = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (0, "5 entries, the same decisions\n")


# --- Two of them -----------------------------------------------------------------------------------


def test_a_second_controller_names_the_first(controllers: Controllers) -> None:
    first = controllers.start()
    code, errors = controllers.fails()
    assert code == 1 and f"another controller (pid {first.pid}) uses" in errors
    code, errors = controllers.fails(state="other")
    assert code == 1 and f"another controller (pid {first.pid}) listens at" in errors
    assert "Traceback" not in errors
    assert submit(controllers.client()) == "1", "the first one did not notice"


def test_what_cannot_start_says_why_in_one_line(controllers: Controllers, tmp_path: Path) -> None:
    for words, endpoint, code, why in (
        (("--set", "controller.leas_s=3"), "", 2, "did you mean `controller.lease_s`"),
        (("--set", "nonsense"), "", 2, "write SECTION.KEY=VALUE"),
        ((), "http://x", 2, "neither ipc:///PATH nor tcp://HOST:PORT"),
        (("--keys-dir", str(tmp_path / "none")), "tcp://127.0.0.1:0", 1, "cotenant init"),
        ((), f"ipc:///{'x' * 200}", 2, "longer than 107 bytes"),
    ):
        returned, errors = controllers.fails(*words, endpoint=endpoint)
        assert (returned, errors.count("\n")) == (code, 1), errors
        assert why in errors


def test_only_its_user_can_connect_to_the_socket(controllers: Controllers) -> None:
    controllers.start()
    path = Path(controllers.endpoint.removeprefix("ipc://"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.parent.chmod(0o777)
    assert "others may write to" in controllers.fails(state="other")[1]


# --- Rubbish ---------------------------------------------------------------------------------------


def test_rubbish_is_counted_and_dropped(controllers: Controllers, agent: Any, seed: int) -> None:
    process = controllers.start()
    rng = random.Random(seed)
    honest = controllers.client()
    stranger = agent(controllers.bound).socket
    good = encode(wire.Request(request_id=1, body=wire.ListJobs()))
    bad = [
        [b""],
        [b"client", b""],
        [b"client", b"x", b"y"],
        [rng.randbytes(100)],
        [b"client", rng.randbytes(1_000)],
        [b"client", good[:-2]],
        [b"client", good + b"x"],
        [b"client", msgpack.packb([WIRE_VERSION, {"request_id": 1, "body": {"m": "no such request"}}])],
        [b"client", msgpack.packb([WIRE_VERSION, {"request_id": "x", "body": {"m": "jobs"}}])],
        [b"client", msgpack.packb(["one", {}])],
        [b"client", b"\x91" * 2_000],
        [msgpack.packb([WIRE_VERSION, {"m": "hello", "session": 3}])],
        [good],
    ]
    for frames in bad:
        stranger.send_multipart(frames)
    flipped = bytearray(good)
    for _ in range(200):
        flipped[rng.randrange(len(good))] = rng.randrange(256)
        stranger.send_multipart([b"client", bytes(flipped)])
    stranger.send_multipart([b"client", encode(wire.Request(request_id=7, body=wire.GetStatus()))])
    status = next(reply for reply in replies(stranger) if reply.request_id == 7)
    assert status.counters["bad_messages"] >= len(bad)
    assert submit(honest) == "1" and process.poll() is None


def replies(dealer: zmq.Socket[bytes]) -> Iterator[Any]:
    while dealer.poll(int(WAIT_S * 1000)):
        yield decode(dealer.recv(), wire.AnyReply)


def test_a_frame_of_another_version_is_told_what_to_upgrade(controllers: Controllers, agent: Any) -> None:
    controllers.start()
    dealer = agent(controllers.bound).socket
    dealer.send_multipart([b"client", msgpack.packb([WIRE_VERSION + 1, {}])])
    assert dealer.poll(int(WAIT_S * 1000))
    version, answered = msgpack.unpackb(dealer.recv())
    assert version == WIRE_VERSION + 1, "else the newer one could not read why"
    answer: Any = msgspec.convert(answered, wire.AnyReply)
    assert answer.code == "version" and "upgrade the controller" in answer.message
    newer = agent(controllers.bound)
    newer.socket.send(msgpack.packb([WIRE_VERSION + 1, {"m": "hello"}]))
    assert newer.socket.poll(int(WAIT_S * 1000))
    version, answered = msgpack.unpackb(newer.socket.recv())
    refused: Any = msgspec.convert(answered, agents.ToAgent)
    assert (
        version == WIRE_VERSION + 1
        and isinstance(refused, agents.HostRefused)
        and "upgrade the controller" in refused.why
    )


def test_a_message_that_is_too_large_never_arrives(controllers: Controllers, agent: Any) -> None:
    controllers.start()
    greedy = agent(controllers.bound).socket
    greedy.send_multipart([b"client", b"x" * (MESSAGE_BYTES_MAX * 4)])
    greedy.send_multipart([b"client", encode(wire.Request(request_id=1, body=wire.GetStatus()))])
    assert next(replies(greedy)).counters["messages"] == 1, "only the question after it was read"


# --- Keys ------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(controllers: Controllers) -> Path:
    folder = controllers.folder / "keys"
    keys.init_cluster(folder)
    controllers.start("--keys-dir", str(folder), endpoint="tcp://127.0.0.1:*")
    return folder


def test_identity_comes_from_the_key(controllers: Controllers, cluster: Path) -> None:
    alice = controllers.client(keys.add_user(cluster, "alice", 1001))
    bob = controllers.client(keys.add_user(cluster, "bob", 1002))
    admin = controllers.client(cluster)
    job_id = submit(alice, user="bob")
    shown = admin.ask(wire.ShowJob(job_id=job_id))
    assert shown.job.user == "alice" and shown.job.spec.launch.uid == 1001
    with pytest.raises(Refusal, match="it belongs to alice") as caught:
        bob.ask(wire.ChangeJobs(verb="cancel", job_ids=(job_id,)))
    assert caught.value.failure.code == "not-allowed"
    with pytest.raises(Refusal, match="only admins may"):
        alice.ask(wire.SetPolicy(name="sjf"))
    assert admin.ask(wire.SetPolicy(name="sjf")).lines == ("policy is sjf (it was cotenant)",)
    alice.ask(wire.ChangeJobs(verb="cancel", job_ids=(job_id,)))


def test_an_unknown_key_gets_no_word_in(controllers: Controllers, cluster: Path, tmp_path: Path) -> None:
    stranger = keys.add_user(cluster, "stranger", 1003)
    keys.remove(cluster, "stranger")
    with pytest.raises(Unreachable, match="does not accept this key") as caught:
        controllers.client(stranger).ask(wire.ListJobs())
    assert "ask an admin" in caught.value.hint
    keys.init_cluster(tmp_path / "elsewhere")
    with pytest.raises(Unreachable) as caught:
        controllers.client(tmp_path / "elsewhere", timeout_s=1.0).ask(wire.ListJobs())
    assert "is this key of this controller?" in caught.value.hint
    assert controllers.client(cluster).ask(wire.GetStatus()).counters["unauthenticated"] >= 1


def test_without_curve_nobody_is_heard(controllers: Controllers, cluster: Path, agent: Any) -> None:
    naked = agent(controllers.bound).socket
    naked.send_multipart([b"client", encode(wire.Request(request_id=1, body=wire.Stop()))])
    assert not naked.poll(500)
    assert controllers.client(cluster).ask(wire.GetStatus()).counters.get("bad_messages", 0) == 0


def test_a_key_that_is_taken_back_stops_working_at_once(controllers: Controllers, cluster: Path) -> None:
    alice = controllers.client(keys.add_user(cluster, "alice", 1001), timeout_s=1.0)
    submit(alice)
    keys.remove(cluster, "alice")
    admin = controllers.client(cluster)

    def is_turned_away() -> bool:
        with contextlib.suppress(Unreachable):
            alice.ask(wire.ListJobs())
        return admin.ask(wire.GetStatus()).counters.get("bad_messages", 0) >= 1

    until(is_turned_away)
    with pytest.raises(Unreachable):
        alice.ask(wire.ListJobs())


def test_an_agents_key_is_good_for_its_host_only(controllers: Controllers, cluster: Path, agent: Any) -> None:
    key = keys.read_key(keys.add_agent(cluster, "h1"))
    assert isinstance(agent(controllers.bound, key).hello("h1"), agents.Welcome)
    refused = agent(controllers.bound, key).hello("h2")
    assert isinstance(refused, agents.HostRefused) and "belongs to host h1" in refused.why
    user = keys.read_key(keys.add_user(cluster, "alice", 1001))
    assert "is a user's" in agent(controllers.bound, user).hello("h3").why


# --- Agents over restarts --------------------------------------------------------------------------


def test_an_agent_is_welcomed_again_and_told_what_is_wanted(controllers: Controllers, agent: Any) -> None:
    process = controllers.start()
    welcome = agent(controllers.bound).hello("h1")
    submit(controllers.client())
    process.kill()
    process.wait()
    controllers.start()
    again = agent(controllers.bound)
    back = again.hello("h1")
    assert back.journal == welcome.journal and back.lease_s is None, "one machine: no lease"
    assert again.hear().command.job_id == "1"


# --- Disk ------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 MiB of its own."""
    place = tmp_path / "state"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=80m,mode=700", "tmpfs", str(place)],
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.root
def test_a_full_disk_refuses_new_jobs_keeps_old_ones_and_heals(small_disk: Path, tmp_path: Path) -> None:
    controllers = Controllers(tmp_path)
    try:
        process = controllers.start()
        client = controllers.client()
        kept = [submit(client) for _ in range(3)]
        filler = small_disk / "filler"
        fill(filler)
        with pytest.raises(Refusal, match="nearly full"):
            submit(client)
        use_up_reserve(next(small_disk.rglob("journal.sqlite")))
        with pytest.raises(Refusal) as caught:  # Not at once: a little room may be left.
            ask_for_ever(client, wire.SetPolicy(name="sjf"))
        assert "could not be written: nothing was changed" in str(caught.value)
        assert [view.job_id for view in client.ask(wire.ListJobs()).jobs] == kept
        filler.unlink()
        until(lambda: submit(client))
        process.kill()
        process.wait()
        controllers.start()
        assert {view.job_id for view in controllers.client().ask(wire.ListJobs()).jobs} >= set(kept)
    finally:
        controllers.close()


def use_up_reserve(journal: Path) -> None:
    """What thousands of entries would do."""
    database = sqlite3.connect(journal, isolation_level=None, timeout=within_s(30.0))
    try:
        for size in (256 * 1024, 4096):
            with contextlib.suppress(sqlite3.OperationalError):
                for number in range(1_000):
                    database.execute("INSERT INTO meta VALUES(?, zeroblob(?))", (f"{size} {number}", size))
    finally:
        database.close()


def ask_for_ever(client: Client, body: Any) -> None:
    """Until it raises."""
    while True:
        client.ask(body)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 65_536)


def until(work: Callable[[], object]) -> None:
    """Ask again until it is neither refused nor false; every try waits for an answer."""
    for _ in range(10_000):
        with contextlib.suppress(Refusal):
            if work():
                return
    raise AssertionError("still not so")


# --- What would be ---------------------------------------------------------------------------------


def test_what_would_be_is_told_by_children_and_a_shadow_outlives_kill_9(
    controllers: Controllers, agent: Callable[..., Agent]
) -> None:
    process = controllers.start("--set", "controller.eta_share=0.1")
    client = controllers.client(timeout_s=WAIT_S)
    assert isinstance(agent(controllers.bound).hello("h1"), agents.Welcome)
    client.ask(wire.SetPolicy(name="sjf"))
    client.ask(wire.SetShadow(name="fifo"))
    known: dict[str, Any] = {"load_s": 5.0, "pause_s": 2.0}
    for expected_s in (1000.0, 100.0):
        submit(client, expected_s=expected_s, **known)
    coming = wire.Submit(specs=(job(expected_s=10.0, **known),))
    view = client.ask(wire.ForeseeArrival(submission=coming), WAIT_S).arrival
    assert (view.at_once, view.ahead, view.waits_for) == (False, (), ("1",))
    assert [(each.job_id, round(each.p50_s)) for each in view.delays] == [("2", 15)]
    assert [job.job_id for job in client.ask(wire.ListJobs()).jobs] == ["1", "2"], "nothing was submitted"
    before = caught_up(client)
    process.kill()
    process.communicate(timeout=WAIT_S)
    controllers.start("--set", "controller.eta_share=0.1")
    client = controllers.client(timeout_s=WAIT_S)
    after = caught_up(client)
    assert (after.policy, after.decisions) == ("fifo", before.decisions)
    assert (after.differing, after.unfollowed, after.failed) == (before.differing, 0, "")
    client.ask(wire.SetShadow())
    with pytest.raises(Refusal, match="no policy decides in the shadow"):
        client.ask(wire.GetShadow())


def caught_up(client: Client) -> wire.ShadowView:
    """The shadow, once all has been followed."""
    deadline_s = time.monotonic() + WAIT_S
    while (view := client.ask(wire.GetShadow()).shadow).behind_entries or view.followed_to is None:
        assert time.monotonic() < deadline_s, view
        time.sleep(0.2)
    return view
