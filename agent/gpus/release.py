"""Waiting for the memory of devices that an attempt has left: the edge's side of `held.py`.

Rule: asked in a child with a time limit, a bounded number of times; a device whose memory does not come back
is reported as held, and asked about now and then until it is free. Nothing here blocks the agent's loop.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from cotenant.agent.edge import AnyAgentEvent, DeviceFreed, MemoryFree, MemoryHeld
from cotenant.agent.gpus.held import Answer, judged
from cotenant.controller.domain.cluster import Device
from cotenant.controller.domain.ids import AttemptNo, JobId

PROGRAM: Final = (sys.executable, "-m", "cotenant.agent.gpus.held_probe")
PATIENCE_S: Final = 60.0
"""Tearing a large context down takes seconds; a minute is a fault."""
ASK_TIMEOUT_S: Final = 20.0
FIRST_WAIT_S: Final = 0.5
WAIT_S_MAX: Final = 5.0
HELD_PERIOD_S: Final = 30.0


class Release:
    """Tasks that wait, one per attempt, and one per held device."""

    def __init__(
        self,
        post: Callable[[AnyAgentEvent], None],
        *,
        program: Sequence[str] = PROGRAM,
        patience_s: float = PATIENCE_S,
        held_period_s: float = HELD_PERIOD_S,
    ) -> None:
        self._post = post
        self._program = tuple(program)
        self._patience_s = patience_s
        self._held_period_s = held_period_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: set[str] = set()

    def watch(self, job_id: JobId, attempt: AttemptNo, devices: tuple[Device, ...]) -> None:
        """Answers `MemoryFree` or `MemoryHeld` within the patience and one question."""
        self._keep(self._watch(job_id, attempt, devices))

    async def _watch(self, job_id: JobId, attempt: AttemptNo, devices: tuple[Device, ...]) -> None:
        clock = asyncio.get_running_loop().time
        until_s, wait_s = clock() + self._patience_s, FIRST_WAIT_S
        while held := await self._holders(devices):
            left_s = until_s - clock()
            if left_s <= 0:
                break
            await asyncio.sleep(min(wait_s, left_s))
            wait_s = min(2 * wait_s, WAIT_S_MAX)
        if not held:
            self._post(MemoryFree(job_id=job_id, attempt=attempt))
            return
        self._post(MemoryHeld(job_id=job_id, attempt=attempt, holders=held))
        for device in devices:
            if device.local in held and device.local not in self._held:
                self._held.add(device.local)
                self._keep(self._until_freed(device))

    async def _until_freed(self, device: Device) -> None:
        while True:
            if not await self._holders((device,)):
                break
            await asyncio.sleep(self._held_period_s)
        self._held.discard(device.local)
        self._post(DeviceFreed(uuid=device.local))

    async def _holders(self, devices: tuple[Device, ...]) -> dict[str, str]:
        return judged(await self._ask([device.local for device in devices]), devices)

    async def _ask(self, uuids: list[str]) -> Answer:
        try:
            child = await asyncio.create_subprocess_exec(
                *self._program,
                *uuids,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            return Answer(problem=f"cannot start {self._program[0]}: {error.strerror}")
        try:
            out, _ = await asyncio.wait_for(child.communicate(), ASK_TIMEOUT_S)
        except TimeoutError:
            return Answer(
                problem=f"NVML did not answer within {ASK_TIMEOUT_S:.0f} s (is a GPU hung? see `dmesg`)"
            )
        finally:
            _end(child)
        try:
            return msgspec.json.decode(out, type=Answer)
        except msgspec.DecodeError:  # Also ValidationError.
            return Answer(problem=f"asking NVML failed (exit {child.returncode})")

    def _keep(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": "waiting for a device's memory failed", "exception": error}
            task.get_loop().call_exception_handler(context)

    async def leave(self) -> None:
        """Stop waiting: the next start of the agent asks again."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _end(child: Process) -> None:
    if child.returncode is None:
        with suppress(ProcessLookupError):
            child.kill()  # One that is stuck in the kernel stays behind; it holds nothing of ours.
