"""Ports of a job on its owner's machine: for what the job serves, and for nobody else."""

from __future__ import annotations

import contextlib
import re
import socket
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.building.limits import within_s
from tests.building.screens import Screen
from tests.live.person import COTENANT, Person, at_home
from tests.live.test_bad_messages import daemon
from tests.ports import block_of_ports

SERVER = """
import http.server, sys
port = int(sys.argv[1])
with http.server.ThreadingHTTPServer(("127.0.0.1", port), http.server.SimpleHTTPRequestHandler) as server:
    print(f"    http://localhost:{port}/lab?token=abc", flush=True)
    server.serve_forever()
"""


@contextlib.contextmanager
def on_screen(person: Person, *words: str) -> Iterator[Screen]:
    screen = Screen([*COTENANT, *words], person.env, person.work, columns=200)
    try:
        yield screen
    finally:
        screen.close()


def got(port: int, path: str = "/") -> bytes:
    """What a browser would be shown."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=within_s(60.0)) as answer:
        found: bytes = answer.read()
        return found


@pytest.fixture
def stranger() -> Iterator[Callable[[], tuple[int, int]]]:
    """A server of somebody else: its port, and how many have reached it."""
    server = socket.create_server(("127.0.0.1", 0))
    reached: list[socket.socket] = []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                reached.append(server.accept()[0])

    thread = threading.Thread(target=accept)
    thread.start()
    yield lambda: (server.getsockname()[1], len(reached))
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()
    for each in reached:
        each.close()


def test_a_port_of_the_job_is_here_and_no_other(
    tmp_path: Path, stranger: Callable[[], tuple[int, int]]
) -> None:
    first = block_of_ports()
    here, there, foreign = first, first + 1, first + 2
    with at_home(tmp_path / "p", agent__devices="cpu:2") as person:
        large = bytes(range(256)) * 12_000
        (person.work / "large").write_bytes(large)
        ports = ("--forward", f"{here}:{there}", "--forward", f"{foreign}:{stranger()[0]}")
        server = (sys.executable, "-c", SERVER, str(there))
        with on_screen(person, "shell", *ports, "--", *server) as screen:
            screen.until(b"lab?token=abc")
            assert f"127.0.0.1:{here} here is port {there} of the job".encode() in screen.shown
            with ThreadPoolExecutor(6) as pool:
                assert set(pool.map(lambda _: got(here, "/large"), range(12))) == {large}
            with socket.create_connection(("127.0.0.1", foreign), within_s(60.0)) as refused:
                refused.sendall(b"GET / HTTP/1.0\r\n\r\n")
                with contextlib.suppress(ConnectionError):
                    assert refused.recv(100) == b""
            screen.until(f"port {stranger()[0]} of its host is not the job's".encode())
            assert stranger()[1] == 0
            screen.type(b"\x03")
            assert screen.ended() == 130


def test_a_link_that_a_job_prints_works_and_only_its_owner_connects(tmp_path: Path) -> None:
    """The controller listens at a port, as for several machines: the job's own port is taken here."""
    person = Person(tmp_path / "p", agent__devices="cpu:1")
    keys = ("--keys-dir", str(person.home / "keys"))
    assert person("init", *keys).code == 0
    host: str = person.json("init", *keys, "--host", "h1")["file"]
    bob: str = person.json("init", *keys, "--user", "bob", "--uid", "12345")["file"]
    port = block_of_ports()
    (person.work / "hello.txt").write_text("through the tunnel")
    with contextlib.ExitStack() as stack:
        line = stack.enter_context(daemon(person, "controller", "--endpoint", "tcp://127.0.0.1:0", *keys))
        endpoint = line.split()[1]
        named = ("--controller", endpoint, "--host", "h1", "--keys-dir", host)
        stack.enter_context(daemon(person, "agent", *named))
        person.env |= {"COTENANT_CONTROLLER__ENDPOINT": endpoint, "COTENANT_CONTROLLER__KEYS_DIR": keys[1]}
        screen = stack.enter_context(
            on_screen(person, "shell", "--", sys.executable, "-c", SERVER, str(port))
        )
        screen.until(b"a tunnel to port")
        screen.until(b"]\r\n", screen.shown.index(b"a tunnel to port"))
        link = re.search(rb"of its host: http://localhost:(\d+)/lab\?token=abc\]", screen.shown)
        assert link is not None and int(link[1]) != port
        assert got(int(link[1]), "/hello.txt") == b"through the tunnel"
        (job,) = (job["job"] for job in person.json("queue")["jobs"])
        refused = person("attach", job, COTENANT_CONTROLLER__KEYS_DIR=bob)
        assert refused.code == 4 and f"can connect to job {job}" in refused.err, refused
        screen.type(b"\r~.")
        assert screen.ended() == 0
        assert person("cancel", job).code == 0
        assert person("wait", "--timeout", "60s", job).code == 1
        assert "cancelled" in person("queue", job).out
