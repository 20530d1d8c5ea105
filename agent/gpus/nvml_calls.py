"""Calls of NVML that the probe and the watcher share, with what old drivers and odd GPUs lack left out.

Rule: only a child process calls these, for any of them may never come back.
"""

from __future__ import annotations

from contextlib import suppress
from types import ModuleType
from typing import Any, Final, NamedTuple

MIB: Final = 1024 * 1024
FUNCTION_NOT_FOUND: Final = 13
LOST: Final = 15
RESET_REQUIRED: Final = 16

# NVML's return codes, as nvml.h numbers them.
FAILURES: Final[dict[int, str]] = {
    4: "this user may not talk to the NVIDIA driver: check the permissions of /dev/nvidia*",
    9: "the NVIDIA driver is not loaded: run `nvidia-smi` as root, or `modprobe nvidia`",
    11: "the NVIDIA driver has a problem with its interrupts: see `dmesg`",
    12: "no NVIDIA driver library (libnvidia-ml.so.1) on this machine",
    FUNCTION_NOT_FOUND: "the NVIDIA driver is too old for this question: update it",
    LOST: "a GPU has fallen off the bus: reboot the host",
    RESET_REQUIRED: "a GPU needs a reset: `nvidia-smi --gpu-reset`, or reboot the host",
    18: "driver and library have different versions: reload the driver, or reboot the host",
}


class Used(NamedTuple):
    pid: int
    used_mib: int | None
    """None: the driver does not say."""


def in_words(error: Any) -> str:
    return FAILURES.get(error.value, f"NVML error {error.value}: {error}")


def text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def compute_processes(pynvml: ModuleType, handle: Any) -> list[Used]:
    """MPS clients are listed by a call of their own, which older drivers lack; some are in both lists.

    Raises:
        NVMLError: the driver does not say who computes.
    """
    found = _processes(pynvml, "nvmlDeviceGetComputeRunningProcesses", handle)
    with suppress(pynvml.NVMLError):
        found += _processes(pynvml, "nvmlDeviceGetMPSComputeRunningProcesses", handle)
    return list({each.pid: each for each in found}.values())


def graphics_processes(pynvml: ModuleType, handle: Any) -> list[Used]:
    """Raises NVMLError."""
    return _processes(pynvml, "nvmlDeviceGetGraphicsRunningProcesses", handle)


def _processes(pynvml: ModuleType, call: str, handle: Any) -> list[Used]:
    """By the newest version of the call that the driver has: the binding's own plain name stands for one
    version, and fails with an error of another kind where a driver lacks it."""
    try:
        processes = getattr(pynvml, f"{call}_v3")(handle)
    except pynvml.NVMLError as error:
        if error.value != FUNCTION_NOT_FOUND:
            raise
        processes = getattr(pynvml, f"{call}_v2")(handle)
    return [
        Used(int(each.pid), None if each.usedGpuMemory is None else int(each.usedGpuMemory) // MIB)
        for each in processes
    ]


def reserved_mib(pynvml: ModuleType, handle: Any) -> int | None:
    """What the driver keeps for itself by its own account; None where it does not say."""
    try:
        full = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except (pynvml.NVMLError, AttributeError, TypeError):  # A driver or a binding without it.
        return None
    return -(-int(full.reserved) // MIB)
