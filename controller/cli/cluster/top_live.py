"""The loop around the screen of `cotenant top`: keys, answers, another size, the next look; then it draws."""

from __future__ import annotations

import os
import re
import select
import time
import tty
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Final, TextIO

from rich.console import Console, Group
from rich.live import Live

from cotenant.controller.cli.cluster.top_screen import Asks, TopScreen
from cotenant.controller.cli.frame.keys import reading_keys
from cotenant.controller.present.screen import is_terminal
from cotenant.controller.present.top_page import Moment

READ_BYTES: Final = 1024
NAMES: Final = {
    "\x1b": "escape", "\r": "enter", "\n": "enter", "\t": "tab", " ": "space", "\x7f": "backspace",
    "\x08": "backspace", "\x1b[Z": "shift+tab", "\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up",
    "\x1bOB": "down", "\x1b[H": "home", "\x1b[F": "end", "\x1bOH": "home", "\x1bOF": "end",
    "\x1b[1~": "home", "\x1b[4~": "end", "\x1b[5~": "pageup", "\x1b[6~": "pagedown",
}  # fmt: skip
"""What terminals send for the keys that have a name here."""
_SENT: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1bO.|.", re.DOTALL)


def run(asks: Asks, first: Moment, every_s: float, console: Console, typed: TextIO) -> None:
    """Runs until a person ends it by a key, or a signal interrupts it.

    Args:
        typed: where keys come from; where it is no terminal there are none.
    """
    keys = typed.fileno() if is_terminal(typed) else -1
    with reading_keys(keys, tty.setcbreak) as woken, ExitStack() as stack:
        thread = ThreadPoolExecutor(max_workers=1)
        stack.callback(thread.shutdown, cancel_futures=True)

        def submit(question: Callable[[], Any]) -> Future[Any]:
            future = thread.submit(question)
            future.add_done_callback(lambda _: woken.wake())
            return future

        screen = TopScreen(asks, first, submit)
        drawn = stack.enter_context(
            Live(
                console=console,
                screen=True,
                auto_refresh=False,
                get_renderable=lambda: Group(*screen.lines(*console.size)),
            )
        )
        sources = [woken.fd, *([keys] if keys >= 0 else [])]
        look_s = time.monotonic() + every_s
        while not screen.is_over:
            if time.monotonic() >= look_s:
                screen.look()
                look_s = time.monotonic() + every_s
            screen.take_answers()
            drawn.refresh()
            ready, _, _ = select.select(sources, [], [], max(0.0, look_s - time.monotonic()))
            if woken.fd in ready:
                os.read(woken.fd, READ_BYTES)
            if keys in ready:
                sent = os.read(keys, READ_BYTES)
                if not sent:
                    return  # The terminal is gone.
                for key in keys_of(sent.decode(typed.encoding, errors="replace")):
                    screen.press(key)


def keys_of(sent: str) -> list[str]:
    """The keys of what a terminal has sent: a printed character is its own name; others are left out."""
    found = (NAMES.get(each, each) for each in _SENT.findall(sent))
    return [each for each in found if each.isprintable()]
