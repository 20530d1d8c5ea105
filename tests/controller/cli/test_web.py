"""`cotenant web`: what is said before the page's own process takes over."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cotenant.controller.cli.setup.web import cannot_serve, page_command
from cotenant.controller.system.web_link import link_socket


def test_what_is_not_installed_is_named() -> None:
    problem = cannot_serve(lambda name: None if name == "jinja2" else object())
    assert problem is not None and "jinja2" in problem.message and ".[web]" in problem.hint
    assert cannot_serve(lambda name: object()) is None


def test_without_a_controller_it_says_so(cotenant: Callable[..., Any]) -> None:
    result = cotenant("web", "--endpoint", "ipc:///nowhere/c.sock")
    assert result.code == 5 and "no controller" in result.err


def test_two_places_are_one_too_many(cotenant: Callable[..., Any]) -> None:
    assert cotenant("web", "--port", "7080", "--socket", "x").code == 2
    assert cotenant("web", "--link", "--ssh", "ann@login1").code == 2


@pytest.mark.parametrize("port", ["0", "65536", "x"])
def test_a_port_is_a_port(cotenant: Callable[..., Any], port: str) -> None:
    assert cotenant("web", "--port", port).code == 2


def test_the_page_is_a_program_of_its_own() -> None:
    _, *words = page_command("ipc:///c.sock", 7080, None, "ann@login1")
    assert words == [
        "-m",
        "cotenant.controller.web",
        "--endpoint=ipc:///c.sock",
        "--port=7080",
        "--ssh=ann@login1",
    ]
    assert page_command(None)[3:] == []


@contextmanager
def giving_links(port: int | None, at: str | None = None) -> Iterator[str]:
    """A page's server, as far as links go; the link that it gives to whoever connects."""
    from cotenant.controller.system.paths import runtime_dir

    path = link_socket(runtime_dir(), port, at)
    link = f"http://127.1.2.3:{port or 7080}/enter?token={path.stem}"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def give() -> None:
            while True:
                try:
                    asks, _ = listening.accept()
                except OSError:
                    return
                with asks:
                    asks.sendall(f"{link}\n".encode())

        thread = threading.Thread(target=give)
        thread.start()
        try:
            yield link
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_a_link_is_made_on_request(cotenant: Callable[..., Any]) -> None:
    """Where a server has been killed, its socket is left behind."""
    with giving_links(7000):
        pass
    with giving_links(7080) as link:
        assert cotenant("web", "--link") == (0, f"{link}\n", "")


def test_a_link_is_of_the_page_that_is_meant(cotenant: Callable[..., Any], at_home: Path) -> None:
    with ExitStack() as served:
        first, second, third = (
            served.enter_context(giving_links(*of))
            for of in ((7080,), (7081,), (None, str(at_home / "p.sock")))
        )
        assert cotenant("web", "--link", "--port", "7081").out == f"{second}\n"
        assert cotenant("web", "--link", "--socket", "p.sock").out == f"{third}\n"
        which = cotenant("web", "--link")
        assert which.code == 2 and "127.1.2.3:7081" in which.err and "say --port N" in which.err
        assert "token" not in which.err and first not in which.out


@pytest.mark.parametrize("words", [(), ("--port", "7080"), ("--socket", "x.sock")])
def test_without_a_page_there_is_no_link(cotenant: Callable[..., Any], words: tuple[str, ...]) -> None:
    result = cotenant("web", "--link", *words)
    assert result.code == 3 and "start it: cotenant web" in result.err
