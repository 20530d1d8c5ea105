"""`cotenant web`: what is said before the page's own process takes over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cotenant.controller.cli.setup.web import cannot_serve, page_command


def test_what_is_not_installed_is_named() -> None:
    problem = cannot_serve(lambda name: None if name == "jinja2" else object())
    assert problem is not None and "jinja2" in problem.message and ".[web]" in problem.hint
    assert cannot_serve(lambda name: object()) is None


def test_without_a_controller_it_says_so(cotenant: Callable[..., Any]) -> None:
    result = cotenant("web", "--endpoint", "ipc:///nowhere/c.sock")
    assert result.code == 5 and "no controller" in result.err


def test_two_places_are_one_too_many(cotenant: Callable[..., Any]) -> None:
    assert cotenant("web", "--port", "7080", "--socket", "x").code == 2


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
