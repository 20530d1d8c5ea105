"""Garbage, too much of it, other versions and strangers, at every socket there is: counted, dropped, no harm.

What each kind of bad frame does is tested in tests/controller and tests/live/test_controller.py; here a
person sees it (`cotenant doctor`), with a job running beside it.
"""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
import zmq

from cotenant.controller.wire import MESSAGE_BYTES_MAX, WIRE_VERSION
from tests.live.person import COTENANT, PATIENCE_S, SAY, Person, at_home, when

BABBLER = (
    SAY
    + """
import random
rng = random.Random(SEED)
for size in (0, 1, 10, 1000, 4096, 5000, 60000):
    try:
        channel.sendto(rng.randbytes(size), supervisor)
    except OSError:
        pass  # Larger than a datagram can be here.
for text in (b"{", b"[]", b"null", b'{"v":1}', b'{"v":1,"m":"no such word","rank":0}', b"[" * 4000,
             b'{"v":99,"m":"step","rank":0,"step":999999}', b'{"v":1,"m":"step","rank":7,"step":999999}',
             b'{"v":1,"m":"step","rank":"x","step":"y"}', b'{"v":1,"m":"durable","rank":0,"step":-5}',
             b'{"v":1,"m":"failed","rank":0,"what":"\\xff\\xfe"}',
             b'{"v":1,"m":"failed","rank":0,"x":' + b"[" * 4000):
    channel.sendto(text, supervisor)
say("first_step", step=1)
say("step", step=5, count=4, elapsed_s=0.4, s=1, loss=0.5)
while not os.path.exists("go"):
    time.sleep(0.05)
print("undisturbed")
"""
)
BAD = (
    [b""],
    [b"client", b""],
    [b"client", b"x", b"y"],
    [b"client", b"\x91" * 2_000],
    [b"client", msgpack.packb(["one", {}])],
    [b"client", msgpack.packb([WIRE_VERSION + 1, {}])],
    [b"client", msgpack.packb([WIRE_VERSION, {"request_id": 1, "body": {"m": "no such request"}}])],
    [msgpack.packb([WIRE_VERSION, {"m": "hello", "session": 3}])],
)


@contextlib.contextmanager
def dealer(endpoint: str, **options: Any) -> Iterator[Any]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as made:
        made.setsockopt(zmq.LINGER, 0)
        for name, value in options.items():
            setattr(made, name, value)
        made.connect(endpoint)
        yield made


def babble(stranger: Any, rng: random.Random) -> None:
    for frames in BAD:
        stranger.send_multipart(frames)
    for _ in range(50):
        stranger.send_multipart([b"client", rng.randbytes(200)])


def doctor(person: Person) -> str:
    found: str = next(c["found"] for c in person.json("doctor")["checks"] if c["name"] == "messages")
    return found


def test_garbage_at_the_sockets_of_controller_and_job(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    with at_home(tmp_path_factory.mktemp("p"), agent__devices="cpu:2", agent__heartbeat_s="0.3") as person:
        assert "none dropped" in doctor(person)
        person.write("babbler.py", f"SEED = {seed}\n{BABBLER}")
        job = person.submit("--", "python3", "babbler.py")
        found = person.until(job, lambda now: now["state"] == "running" and now["step"] == 5)
        assert found["loss"] == 0.5, "the words in between were understood, the others dropped"
        rng = random.Random(seed)
        with dealer(f"ipc://{person.socket}") as stranger:
            babble(stranger, rng)
            stranger.send_multipart([b"client", b"x" * (MESSAGE_BYTES_MAX * 2)])
            when(lambda: dropped(doctor(person), "unreadable") >= len(BAD) + 50)
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(str(person.socket))
            with contextlib.suppress(OSError):  # It may hang up on us.
                raw.sendall(rng.randbytes(100_000))
        assert person("doctor").code == 0, "a warning, no failure"
        assert person("queue").code == 0
        person.write("go", "")
        assert person("wait", job).code == 0
        assert person.logs(job) == "undisturbed\n"
        assert person.job(job)["step"] == 5
        assert person.free_devices() == 2


def dropped(found: str, kind: str) -> int:
    """The number before the kind in `dropped: 58 unreadable, 1 with an unknown key`."""
    parts = [part.removeprefix("dropped: ") for part in found.split(", ")]
    return sum(int(part.split()[0]) for part in parts if part.endswith(kind))


def test_strangers_at_a_port_with_keys(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    person = Person(tmp_path_factory.mktemp("p"), agent__devices="cpu:1", agent__heartbeat_s="0.3")
    ours = person.home / "keys"
    assert person("init", "--keys-dir", str(ours)).code == 0
    keys = ("--keys-dir", str(ours))
    for_agent: str = person.json("init", *keys, "--host", "h1")["file"]
    with contextlib.ExitStack() as stack:
        controller = stack.enter_context(
            daemon(person, "controller", "--endpoint", "tcp://127.0.0.1:0", *keys)
        )
        endpoint = controller.split()[1]
        ready = stack.enter_context(
            daemon(person, "agent", "--controller", endpoint, "--host", "h1", "--keys-dir", for_agent)
        )
        assert ready.startswith("agent h1 ready: 1 device")
        person.env |= {"COTENANT_CONTROLLER__ENDPOINT": endpoint, "COTENANT_CONTROLLER__KEYS_DIR": str(ours)}
        assert person("run", "-q", "--", "echo", "with a key").out == "with a key\n"
        with (
            dealer(endpoint, sndtimeo=0) as stranger,
            socket.create_connection(port_of(endpoint)) as raw,
        ):
            # Nothing of it leaves: there is no handshake without a key; after that nothing is taken.
            with contextlib.suppress(zmq.Again):
                babble(stranger, random.Random(seed))
            raw.sendall(random.Random(seed).randbytes(10_000))
            eve: str = person.json("init", *keys, "--user", "eve", "--uid", "12345")["file"]
            assert person("init", *keys, "--remove", "eve").code == 0
            refused = person("queue", COTENANT_CONTROLLER__KEYS_DIR=eve)
            refused.refuses(5, f"{endpoint} does not accept this key", "`cotenant init`")
            assert dropped(doctor(person), "with an unknown key") >= 1
        nobody = person("queue", COTENANT_CONTROLLER__KEYS_DIR=str(person.home / "none"))
        nobody.refuses(4, str(person.home / "none"), "`cotenant init --user NAME`")
        assert person("run", "-q", "--", "echo", "still there").out == "still there\n"


def port_of(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return host, int(port)


@contextlib.contextmanager
def daemon(person: Person, *words: str) -> Iterator[str]:
    """A daemon in the foreground; its first line."""
    with (person.home / f"{words[0]}.log").open("w") as log:
        process = subprocess.Popen(
            [*COTENANT, *words],
            env=person.env,
            cwd=person.work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (person.home / f"{words[0]}.log").read_text()
        yield line.strip()
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        process.communicate()
