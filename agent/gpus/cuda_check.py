"""CUDA tried on this host's GPUs by the agent itself: in a child, with a time limit, until it works.

Rule: what a job prints of CUDA only asks the question, for its own script may be why; a try on the device
answers it. Each device has one try at a time, which all who ask wait for, and one that failed is repeated
after growing waits. Where one has failed, the other devices are tried as well: most causes are the host's
(the fabric manager, nvidia-uvm), and each device would cost another job its start.

The child is no client of an MPS daemon, whose troubles are looked after elsewhere. One that hangs is killed;
while it cannot be, stuck in the kernel, its device gets no other.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Final

from cotenant.agent.gpus.watchers import Timing
from cotenant.controller.wire import BadMessage, decode_json
from cotenant.mps.environment import NOT_A_CLIENT, drop_mps_variables
from cotenant.profiler.driver.cuda_probe import CudaProbe

UNTRIED: Final = "CUDA is tried on it before it is offered"
PROBE: Final = (sys.executable, "-m", "cotenant.profiler.driver.cuda_probe")


class CudaCheck:
    def __init__(
        self,
        uuids: Collection[str],
        *,
        is_used: Callable[[str], bool],
        found: Callable[[str, str], None],
        timing: Timing,
    ) -> None:
        """`uuids`: all that may be tried. `is_used(uuid)`: a process computes there now, so that no context
        is to be made. `found(uuid, why)`: takes what each try finds, why CUDA does not work there; empty: it
        does."""
        self.uuids = frozenset(uuids)
        self._is_used, self._found, self._timing = is_used, found, timing
        self._tries: dict[str, asyncio.Task[str]] = {}
        self._retries: dict[str, asyncio.TimerHandle] = {}
        self.failures: dict[str, int] = {}
        """By UUID: how many tries in a row have failed, where any has."""
        self._children: dict[str, asyncio.subprocess.Process] = {}
        """The newest of each device."""

    def start(self, uuids: Iterable[str]) -> None:
        """Tries these devices, now and until CUDA works there."""
        for uuid in self.uuids.intersection(uuids).difference(self._tries):
            if uuid in self._retries:
                self._retries.pop(uuid).cancel()
            self._tries[uuid] = asyncio.create_task(self._try(uuid))

    async def answers(self, uuids: Iterable[str]) -> dict[str, str]:
        """What a try finds on each of these now; one that goes on already counts. What fails is not offered
        by then. Without those that are never tried."""
        asked = self.uuids.intersection(uuids)
        self.start(asked)
        # Whoever waits may be cancelled; a try is everybody's.
        found = await asyncio.shield(asyncio.gather(*(self._tries[uuid] for uuid in asked)))
        return dict(zip(asked, found, strict=True))

    def pardon(self) -> None:
        """A person says that all is well: what fails is offered until somebody asks again."""
        for uuid in list(self.failures):
            if uuid in self._retries:
                self._retries.pop(uuid).cancel()
            del self.failures[uuid]
            self._found(uuid, "")

    def close(self) -> None:
        """Ends all tries; the loop ends their children."""
        for retry in self._retries.values():
            retry.cancel()
        for each in self._tries.values():
            each.cancel()

    async def _try(self, uuid: str) -> str:
        why = await self._ask(uuid)
        del self._tries[uuid]
        failed_before = self.failures.pop(uuid, 0)
        if why:
            self.failures[uuid] = min(failed_before + 1, 16)
            wait_s = min(self._timing.retry_s * 2**failed_before, self._timing.retry_s_max)
            self._retries[uuid] = asyncio.get_running_loop().call_later(wait_s, self.start, (uuid,))
        self._found(uuid, why)
        if why and not failed_before:
            self.start(self.uuids.difference(self.failures))
        return why

    async def _ask(self, uuid: str) -> str:
        """Why CUDA does not work on a device; empty: it does."""
        before = self._children.get(uuid)
        if before is not None and before.returncode is None:
            return f"process {before.pid}, which tried CUDA here, hangs in the driver: reboot the host"
        words = (*PROBE, uuid, *(("--beside",) if self._is_used(uuid) else ()))
        env = drop_mps_variables(os.environ) | NOT_A_CLIENT | {"CUDA_VISIBLE_DEVICES": uuid}
        pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        try:
            child = await asyncio.create_subprocess_exec(
                *words, env=env, cwd="/", stdin=nothing, stdout=pipe, stderr=nothing, start_new_session=True
            )
        except OSError as error:
            return f"CUDA could not be tried: cannot start {PROBE[0]}: {error.strerror}"
        self._children[uuid] = child
        try:
            said, _ = await asyncio.wait_for(child.communicate(), self._timing.start_s)
            return decode_json(said, CudaProbe).problem
        except TimeoutError:
            return f"CUDA does not start here: no answer within {self._timing.start_s:g} s: see `dmesg`"
        except BadMessage:
            return f"CUDA does not start here: it ended the process (status {child.returncode}): see `dmesg`"
        finally:
            if child.returncode is None:
                with suppress(ProcessLookupError, TimeoutError):
                    child.kill()
                    await asyncio.wait_for(child.wait(), self._timing.reap_s)
