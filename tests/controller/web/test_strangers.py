"""Whoever can reach the port, and has no session, takes nothing from those who have one."""

from __future__ import annotations

import http.client
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress

import pytest

from cotenant.controller.web.strangers import Strangers
from tests.building.limits import within_s
from tests.building.stand_in import StandIn
from tests.controller.web.conftest import COOKIE, JobList, Served

HALF_A_HEADER = b"GET /queue HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
LONG_BODY = b"POST /enter HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 999999999999\r\n\r\n"


class User:
    """With a session, on a connection that is kept."""

    def __init__(self, served: Served, address: tuple[str, int]) -> None:
        cookie = served.access.enter(served.access.new_token())
        self._headers = {"cookie": f"{COOKIE}={cookie}"}
        self.connection = http.client.HTTPConnection(*address, timeout=within_s(30))
        self.connection.connect()

    def get(self, path: str) -> int:
        self.connection.request("GET", path, headers=self._headers)
        with self.connection.getresponse() as answer:
            answer.read()
            return answer.status


@pytest.fixture
def served_with(controller: StandIn, jobs: JobList) -> Iterator[Callable[[Strangers], Served]]:
    made: list[Served] = []

    def serve(strangers: Strangers) -> Served:
        made.append(Served(controller.endpoint, strangers))
        return made[-1]

    yield serve
    for each in made:
        each.connections.close()


@pytest.fixture
def many_files() -> Iterator[None]:
    """Both ends of each connection are of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def wait_until_ended(connection: socket.socket) -> None:
    """What was answered before is read."""
    connection.settimeout(within_s(20))
    with suppress(ConnectionResetError):
        while connection.recv(4096):
            pass


def send_until(connection: socket.socket, until_s: float) -> None:
    while time.monotonic() < until_s:
        connection.sendall(b"x")


@pytest.mark.usefixtures("many_files")
def test_many_connections_change_nothing_for_a_user(served: Served) -> None:
    with served.listening() as address, ExitStack() as held:
        for number in range(63 + 500):
            connection = held.enter_context(socket.create_connection(address, within_s(20)))
            if number >= 63:
                connection.sendall(HALF_A_HEADER)
        user = User(served, address)
        with closing(user.connection):
            assert [user.get(path) for path in ("/queue", "/devices", "/static/site.css")] == [200] * 3


@pytest.mark.parametrize("sent", [b"", HALF_A_HEADER], ids=["nothing", "header"])
def test_a_connection_without_a_session_ends(served_with: Callable[[Strangers], Served], sent: bytes) -> None:
    served = served_with(Strangers(within_s=0.05))
    with served.listening() as address, socket.create_connection(address) as connection:
        connection.sendall(sent)
        wait_until_ended(connection)


def test_a_connection_that_sends_on_and_on_ends(served_with: Callable[[Strangers], Served]) -> None:
    served = served_with(Strangers(within_s=0.05))
    with served.listening() as address, socket.create_connection(address, within_s(20)) as connection:
        connection.sendall(LONG_BODY)
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            send_until(connection, time.monotonic() + within_s(20))


def test_the_oldest_of_too_many_ends_and_none_with_a_session(
    served_with: Callable[[Strangers], Served],
) -> None:
    served = served_with(Strangers(most=1, within_s=1000.0))
    with served.listening() as address:
        user = User(served, address)
        with closing(user.connection):
            assert user.get("/queue") == 200
            with socket.create_connection(address) as first, socket.create_connection(address):
                wait_until_ended(first)
                assert user.get("/queue") == 200


def test_a_connection_with_a_session_outlasts_the_others(served_with: Callable[[Strangers], Served]) -> None:
    served = served_with(Strangers(within_s=within_s(0.5)))
    with served.listening() as address:
        user = User(served, address)
        with closing(user.connection), socket.create_connection(address) as later:
            assert user.get("/queue") == 200
            wait_until_ended(later)
            assert user.get("/queue") == 200
