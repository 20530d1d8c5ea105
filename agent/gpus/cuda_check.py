"""CUDA tried on this host's GPUs by the agent itself: in a child, with a time limit, until it works.

Rule: what a job prints of CUDA only asks the question, for its own script may be why; a try on the device
answers it. A try runs at most once at a time for each device, others that ask wait for it, and one that failed
is repeated with growing waits. Where it failed, the other devices are tried as well: most causes are the
host's (the fabric manager, nvidia-uvm), and each would cost another job its start.

The child is no client of an MPS daemon, whose troubles are looked after elsewhere. It is killed when it hangs;
while one cannot be killed, stuck in the kernel, its device gets no other.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Final

import msgspec

from cotenant.controller.wire import BadMessage, decode_json
from cotenant.mps.environment import NOT_A_CLIENT, drop_mps_variables
from cotenant.profiler.driver.cuda_probe import CudaProbe

UNTRIED: Final = "CUDA is tried on it before it is offered"
PROBE: Final = (sys.executable, "-m", "cotenant.profiler.driver.cuda_probe")


class CudaTiming(msgspec.Struct, frozen=True, kw_only=True):
    try_s: float = 60.0
    """The first call after a boot may start the driver, which takes many seconds on large machines."""
    reap_s: float = 2.0
    retry_s: float = 5.0
    """Before a device is tried again; doubled each time in a row up to `retry_s_max`."""
    retry_s_max: float = 300.0


class CudaCheck:
    def __init__(
        self,
        uuids: Collection[str],
        *,
        is_used: Callable[[str], bool],
        found: Callable[[str, str], None],
        timing: CudaTiming | None = None,
    ) -> None:
        """`uuids`: all that may be tried. `is_used(uuid)`: a process computes there now, so that no context is to be made. `found(uuid, why)`:
        takes what each try finds, why CUDA does not work there; empty: it does."""
        self.uuids = frozenset(uuids)
        self._is_used, self._found = is_used, found
        self._timing = timing if timing is not None else CudaTiming()
        self._tries: dict[str, asyncio.Task[str]] = {}
        self._retries: dict[str, asyncio.TimerHandle] = {}
        self._failures: dict[str, int] = {}
        """By UUID: how many tries in a row have failed, where any has."""
        self._stuck: dict[str, asyncio.subprocess.Process] = {}

    @property
    def failing(self) -> tuple[str, ...]:
        return tuple(self._failures)

    def start(self, uuids: Iterable[str]) -> None:
        """Tries these devices, now and until CUDA works there."""
        for uuid in self.uuids.intersection(uuids):
            if uuid in self._retries:
                self._retries.pop(uuid).cancel()
            if uuid not in self._tries:
                self._tries[uuid] = asyncio.create_task(self._try(uuid))

    async def answers(self, uuids: Iterable[str]) -> dict[str, str]:
        """What a try finds on each of these now. One that goes on already counts."""
        asked = self.uuids.intersection(uuids)
        self.start(asked)
        tries = [self._tries[uuid] for uuid in asked]
        # Whoever waits may be cancelled; a try is everybody's.
        found = await asyncio.shield(asyncio.gather(*tries))
        return dict(zip(asked, found, strict=True))

    def close(self) -> None:
        """Ends all tries; the loop ends their children."""
        for retry in self._retries.values():
            retry.cancel()
        for task in self._tries.values():
            task.cancel()

    async def _try(self, uuid: str) -> str:
        try:
            why = await self._ask(uuid)
        finally:
            del self._tries[uuid]
        is_news = bool(why) and uuid not in self._failures
        if why:
            failures = self._failures[uuid] = min(self._failures.get(uuid, 0) + 1, 16)
            wait_s = min(self._timing.retry_s * 2 ** (failures - 1), self._timing.retry_s_max)
            self._retries[uuid] = asyncio.get_running_loop().call_later(wait_s, self.start, (uuid,))
        else:
            self._failures.pop(uuid, None)
        self._found(uuid, why)
        if is_news:
            self.start(self.uuids.difference(self._failures))
        return why

    async def _ask(self, uuid: str) -> str:
        """Why CUDA does not work on a device; empty: it does."""
        stuck = self._stuck.get(uuid)
        if stuck is not None and stuck.returncode is None:
            return f"process {stuck.pid}, which tried CUDA here, hangs in the driver: reboot the host"
        beside = ("--beside",) if self._is_used(uuid) else ()
        env = drop_mps_variables(os.environ) | NOT_A_CLIENT | {"CUDA_VISIBLE_DEVICES": uuid}
        nothing, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
        try:
            child = await asyncio.create_subprocess_exec(
                *PROBE, *beside, uuid, env=env, cwd="/", stdin=nothing, stdout=pipe, stderr=nothing,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return f"CUDA could not be tried: cannot start {PROBE[0]}: {error.strerror}"
        try:
            said, _ = await asyncio.wait_for(child.communicate(), self._timing.try_s)
        except TimeoutError:
            return f"CUDA does not start here: no answer within {self._timing.try_s:g} s: see `dmesg`"
        finally:
            await self._end(uuid, child)
        try:
            return decode_json(said, CudaProbe).problem
        except BadMessage:
            return f"CUDA does not start here: it ended the process (status {child.returncode}): see `dmesg`"

    async def _end(self, uuid: str, child: asyncio.subprocess.Process) -> None:
        if child.returncode is None:
            child.kill()
            self._stuck[uuid] = child
            with suppress(TimeoutError):
                await asyncio.wait_for(child.wait(), self._timing.reap_s)
