"""A child process that answers questions, one at a time: frames over its stdin and stdout.

Rule: the child is a fresh interpreter: it shares no lock, no socket and no file with us, and ends with us,
when its stdin does. What a library prints there goes to its stderr and never comes between two frames.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO, Final

LENGTH: Final = 4
"""Every frame begins with its length in so many bytes, big end first; the rest is up to the two sides."""


class ChildProcess:
    """A child process of ours, `python -m MODULE`, started with the first question and again after it has
    died."""

    def __init__(self, module: str) -> None:
        self._module = module
        self.process: asyncio.subprocess.Process | None = None

    async def ask(self, question: bytes) -> bytes:
        """Asks the child, and waits for its answer. Raises OSError, EOFError: it has died."""
        if self.process is None:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self._module,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        child = self.process
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(len(question).to_bytes(LENGTH, "big") + question)
        await child.stdin.drain()
        size = int.from_bytes(await child.stdout.readexactly(LENGTH), "big")
        return await child.stdout.readexactly(size)

    async def end(self) -> None:
        child, self.process = self.process, None
        if child is not None:
            if child.returncode is None:
                child.kill()
            await child.wait()


def serve(answer: Callable[[bytes], bytes]) -> None:
    """Answers questions on the child's side, until stdin ends, or nobody reads the answer any more."""
    answers = os.dup(1)
    os.dup2(2, 1)
    with suppress(BrokenPipeError):
        while frame := _read(sys.stdin.buffer):
            data = answer(frame)
            _write(answers, len(data).to_bytes(LENGTH, "big") + data)


def _read(source: BinaryIO) -> bytes:
    """Empty at the end."""
    size = int.from_bytes(source.read(LENGTH), "big")
    return source.read(size)


def _write(target: int, data: bytes) -> None:
    """Writes without a buffer: one that cannot be written would fail again at the interpreter's end."""
    left = memoryview(data)
    while left:
        left = left[os.write(target, left) :]
