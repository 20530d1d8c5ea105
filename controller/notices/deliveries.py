"""Delivers messages, each by a child process that is killed when it takes too long: whatever a receiver does,
it cannot hold up the controller's loop."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from cotenant.controller.domain import texts
from cotenant.controller.wire import BadMessage, decode_json

DELIVERY_S: Final = 30.0
LOOPBACK_S: Final = 0.2
SAID_MAX: Final = 300
"""Characters of what is said about a failure."""


class DeliveryResult(NamedTuple):
    """What came of one delivery."""

    sent: bool
    reached: bool
    """The receiver was there, whether or not it took the message."""
    why: str


class ChildDeliveries:
    """Deliveries in tasks of the running event loop."""

    def __init__(self, within_s: float = DELIVERY_S) -> None:
        self._within_s = within_s
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, argv: Sequence[str], data: bytes, then: Callable[[DeliveryResult], None]) -> None:
        """Starts a program that reads a message; `then` is called once, later."""
        task = asyncio.get_running_loop().create_task(self._deliver(argv, data, then))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(
        self, argv: Sequence[str], data: bytes, then: Callable[[DeliveryResult], None]
    ) -> None:
        pipe = asyncio.subprocess.PIPE
        try:
            child = await asyncio.create_subprocess_exec(
                *argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
            )
        except OSError as error:
            then(DeliveryResult(False, False, f"{argv[0]} cannot be run: {error.strerror}"))
            return
        try:
            async with asyncio.timeout(self._within_s):
                out, err = await child.communicate(data)
            result = read_result(out, err, child.returncode or 0)
        except TimeoutError:
            result = DeliveryResult(False, False, f"no answer within {self._within_s:g} s")
        finally:
            if child.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                await child.wait()
        then(result)

    async def close(self) -> None:
        """Ends deliveries under way; their messages are still open."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def why_unreached(smtp: str) -> str:
    """Why no relay on this machine takes mail; empty: one does, or it is another machine's, and slow to
    ask."""
    host, _, port = smtp.rpartition(":")
    if host not in ("127.0.0.1", "localhost"):
        return ""
    try:
        socket.create_connection((host, int(port)), timeout=LOOPBACK_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def read_result(out: bytes, err: bytes, exit_code: int) -> DeliveryResult:
    """What a child says came of it: our own in JSON, a site's command by its exit code."""
    try:
        said: tuple[bool, bool, str] = decode_json(out, tuple[bool, bool, str])
    except BadMessage:
        last = err.decode(errors="replace").strip().rpartition("\n")[2]
        said = (exit_code == 0, True, f"exit code {exit_code}{last and f': {last}'}" if exit_code else "")
    return DeliveryResult(said[0], said[1], texts.one_line(said[2])[:SAID_MAX])
