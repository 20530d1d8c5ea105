"""What NVML says of the first GPU, by ctypes: memory in use, who is on it, energy.

Rule: asked by children with a time limit only, for any call may never come back. The structures are those of
nvml.h: nvmlMemory_t, nvmlProcessInfo_v2_t (which the calls `_v3` fill).
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

MIB: Final = 2**20
PROCESSES_MAX: Final = 128
LISTS: Final = {
    "C": "nvmlDeviceGetComputeRunningProcesses_v3",
    "M": "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "G": "nvmlDeviceGetGraphicsRunningProcesses_v3",
}
"""Letters as nvidia-smi prints them: compute, client of MPS, graphics."""
SAYS_NOTHING: Final = 2**64 - 1


class NvmlFailed(Exception):
    """A call failed; the text has its name and NVML's number."""


class Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class ProcessInfo(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class Listed(NamedTuple):
    """A process on a GPU."""

    pid: int
    letters: str
    memory_mib: int | None


class Nvml:
    """NVML, open; about one GPU at a time."""

    def __init__(self) -> None:
        """Raises NvmlFailed, OSError: there is no library."""
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        self.call("nvmlInit_v2")

    def call(self, name: str, *arguments: Any) -> None:
        """Raises NvmlFailed."""
        function = getattr(self._library, name, None)
        code = 13 if function is None else function(*arguments)
        if code:
            raise NvmlFailed(f"{name}: {code}")

    def uuids(self) -> list[str]:
        """Of all GPUs, in NVML's order."""
        count = ctypes.c_uint()
        self.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return [self._uuid(index) for index in range(count.value)]

    def _uuid(self, index: int) -> str:
        handle, text = ctypes.c_void_p(), ctypes.create_string_buffer(96)
        self.call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
        self.call("nvmlDeviceGetUUID", handle, text, 96)
        return text.value.decode()

    def handle(self, uuid: str) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self.call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(handle))
        return handle

    def used_mib(self, uuid: str) -> int:
        memory = Memory()
        self.call("nvmlDeviceGetMemoryInfo", self.handle(uuid), ctypes.byref(memory))
        return int(memory.used // MIB)

    def energy_mj(self, uuid: str) -> int:
        energy = ctypes.c_ulonglong()
        self.call("nvmlDeviceGetTotalEnergyConsumption", self.handle(uuid), ctypes.byref(energy))
        return int(energy.value)

    def processes(self, uuid: str) -> list[Listed]:
        """Everybody on the GPU, each once, with the lists that name it. A list that cannot be had is left
        out."""
        found: dict[int, Listed] = {}
        for letter, name in LISTS.items():
            count, space = ctypes.c_uint(PROCESSES_MAX), (ProcessInfo * PROCESSES_MAX)()
            try:
                self.call(name, self.handle(uuid), ctypes.byref(count), space)
            except NvmlFailed:
                continue
            for each in space[: count.value]:
                memory_mib = None if each.used == SAYS_NOTHING else int(each.used // MIB)
                before = found.get(each.pid, Listed(each.pid, "", memory_mib))
                found[each.pid] = before._replace(letters=before.letters + letter)
        return list(found.values())

    def await_used(self, uuid: str, at_most_mib: int, within_s: float) -> float | None:
        """Seconds until no more than so much is in use; None: it stays."""
        return await_true(lambda: self.used_mib(uuid) <= at_most_mib, within_s)


def await_true(is_so: Callable[[], bool], within_s: float, every_s: float = 0.005) -> float | None:
    """Seconds until something is so; None: it is not in time."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < within_s:
        if is_so():
            return round(time.monotonic() - began_s, 3)
        time.sleep(every_s)
    return None
