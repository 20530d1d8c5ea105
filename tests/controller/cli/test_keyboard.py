"""Keys and a changed size wake a page that waits, and the terminal is left as it was."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import termios
from collections.abc import Iterator

import pytest

from cotenant.controller.cli.cluster.keyboard import Keyboard
from tests.building.limits import within_s

LONG_S = within_s(60.0)


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """The end that a person types at, and the program's."""
    person, program = pty.openpty()
    yield person, program
    os.close(person)
    os.close(program)


PRESSED = {b"q": "quit", b"Q": "quit", b"\x1b": "quit", b" ": "now", b"xyz": "", b"\x1b[A": ""}


@pytest.mark.parametrize(("pressed", "woken"), PRESSED.items())
def test_keys(terminal: tuple[int, int], pressed: bytes, woken: str) -> None:
    person, program = terminal
    with Keyboard(program) as keyboard:
        os.write(person, pressed)
        assert keyboard.wait(LONG_S if woken else 0.05) == woken


def test_another_size_wakes_at_once(terminal: tuple[int, int]) -> None:
    with Keyboard(terminal[1]) as keyboard:
        os.kill(os.getpid(), signal.SIGWINCH)
        assert keyboard.wait(LONG_S) == "resized"
        assert keyboard.wait(0.0) == "", "once for one change"


def test_the_terminal_is_left_as_it_was(terminal: tuple[int, int]) -> None:
    before, handler = termios.tcgetattr(terminal[1]), signal.getsignal(signal.SIGWINCH)
    with contextlib.suppress(KeyboardInterrupt), Keyboard(terminal[1]):
        assert termios.tcgetattr(terminal[1]) != before, "no echo while a page is shown"
        raise KeyboardInterrupt
    assert termios.tcgetattr(terminal[1]) == before
    assert signal.getsignal(signal.SIGWINCH) == handler


def test_without_a_terminal_there_are_no_keys() -> None:
    read, write = os.pipe()
    try:
        with Keyboard(read) as keyboard:
            os.write(write, b"q")
            assert keyboard.wait(0.0) == ""
    finally:
        os.close(read)
        os.close(write)
