"""The most memory that this process used since it last asked.

Rule: what cannot be measured is None, never 0. Asking starts anew: freed memory is given back to the system
first, so that what an earlier, larger sub-batch left in the heap does not count for a smaller one.
"""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path
from typing import Final

import torch

from cotenant.checkpoint.device_limit import used_bytes

_MIB: Final = 1024 * 1024
_STATUS: Final = Path("/proc/self/status")
_CLEAR_REFS: Final = Path("/proc/self/clear_refs")
_RESET_PEAK: Final = "5"
"""Sets the kernel's record of the peak back to what is resident now (proc(5))."""


class Peak:
    """One process's peak, window by window."""

    def __init__(self) -> None:
        self._is_whole = True
        """Nothing of what is measured now was left over from before (true until a restart failed)."""

    def read_mib(self) -> float | None:
        """What it takes of its device: on CUDA what torch had allocated at most, and what is in use there
        beside torch (the context, the driver); else what was resident. None if that is not known.

        Only true while nobody else uses the device.
        """
        if _on_cuda():
            beside = used_bytes() - torch.cuda.memory_reserved()
            return float(beside + torch.cuda.max_memory_allocated()) / _MIB
        return _resident_peak_mib() if self._is_whole else None

    def restart(self) -> None:
        """The next window begins."""
        if _on_cuda():
            torch.cuda.reset_peak_memory_stats()
            return
        _give_back()
        try:
            _CLEAR_REFS.write_text(_RESET_PEAK)
            self._is_whole = True
        except OSError:  # Some sandboxes forbid it: a peak of before would be taken for this window's.
            self._is_whole = False


def _on_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _give_back() -> None:
    """Free heap pages go to the system; a C library without the call keeps them, and the peak is a bound."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _resident_peak_mib() -> float | None:
    try:
        lines = _STATUS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), None)
