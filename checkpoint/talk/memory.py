"""What a process has in use of its device: the most it ever had, and what is left between two steps.

Rule: only counters and /proc are read, and nothing is reset: a script may print the same counters. What
cannot be measured is None, never 0. The two together say what smaller sub-batches can save at most: the rest
is in use whatever the sub-batch (parameters, gradients, the optimizer's state, the context).

Only a run that is there to be measured has a peak for each s: there the counters begin anew, and freed memory
is given back to the system first, so that what a larger sub-batch left in the heap does not count for a
smaller one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import torch

from cotenant.checkpoint.device_limit import open_devices, used_bytes
from cotenant.checkpoint.talk import protocol

FIRST_S: Final = 1.0
"""The first report comes so long after training has begun."""
PERIOD_S: Final = 5.0
_MIB: Final = 1024 * 1024
_STATUS: Final = Path("/proc/self/status")
_CLEAR_REFS: Final = Path("/proc/self/clear_refs")
_RESET_PEAK: Final = "5"
"""Sets the kernel's record of the peak back to what is resident now (proc(5))."""


class MemoryReports:
    """Says now and then what this process has in use; `say(name, **fields)` sends a datagram."""

    def __init__(self, say: Callable[..., Any], step: int) -> None:
        """Training goes on after `step` completed steps."""
        self._say = say
        self._first = step
        self._restarts = os.environ.get(protocol.ENV_PROFILING) == "1"
        self._is_whole = True
        """Nothing of what is measured now was left over from before (true until a restart failed)."""
        self._due_s = perf_counter() + FIRST_S

    def report_if_due(self, now_s: float, step: int, steps_used: int, *, s_ends: bool) -> None:
        """Call just after a step; `now_s` is `perf_counter`'s, `steps_used` the step's s. s_ends: the next
        step uses another one."""
        if now_s < self._due_s and not s_ends:
            return
        self._due_s = now_s + PERIOD_S
        peak_mib, static_mib = memory_in_use_mib()
        self._say(
            protocol.STRETCH,
            first=self._first,
            step=step,
            s=steps_used,
            memory_mib=peak_mib if self._is_whole else None,
            static_mib=static_mib,
        )
        self._first = step
        if s_ends and self._restarts:
            self._is_whole = restart_peak()


def memory_in_use_mib() -> tuple[float | None, float | None]:
    """The peak of this process, and what it has in use now.

    On CUDA what torch had or has allocated, and what is in use there beside torch (the context, the driver),
    which is only true while nobody else uses the device: of the fullest, if it has opened several. Else what
    was or is resident.
    """
    try:
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            devices = open_devices() or [torch.cuda.current_device()]
            peak_mib, static_mib = max(_device_mib(device) for device in devices)
            return peak_mib, static_mib
        if os.environ.get("CUDA_VISIBLE_DEVICES"):  # Main memory says nothing about a GPU's.
            return None, None
        lines = _STATUS.read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, RuntimeError):  # No /proc; an allocator of the script's own, which counts nothing.
        return None, None
    sizes = {name: text for name, _, text in (line.partition(":") for line in lines)}
    return _status_mib(sizes.get("VmHWM")), _status_mib(sizes.get("VmRSS"))


def _device_mib(device: int) -> tuple[float, float]:
    cuda = torch.cuda
    beside = used_bytes(device) - cuda.memory_reserved(device)
    return (
        (beside + cuda.max_memory_allocated(device)) / _MIB,
        (beside + cuda.memory_allocated(device)) / _MIB,
    )


def restart_peak() -> bool:
    """Begins the count of the peak anew; False where that is not possible."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for device in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(device)
        return True
    with contextlib.suppress(AttributeError, OSError):  # A C library without the call keeps the pages.
        ctypes.CDLL(None).malloc_trim(0)
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK)
    except OSError:  # Some sandboxes forbid it.
        return False
    return True


def _status_mib(text: str | None) -> float | None:
    return int(text.split()[0]) / 1024 if text else None
