"""Ask NVML about the GPUs of this host, as a process of its own: `python -m cotenant.agent.nvml`.

Rule: prints one `Probe` as JSON and ends with 0, whatever NVML does; every way in which it can fail has a
sentence that says what to do.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Final

import msgspec

from cotenant.agent.devices import Gpu, Probe

MIB: Final = 1024 * 1024

# NVML's return codes, as nvml.h numbers them.
FAILURES: Final[dict[int, str]] = {
    4: "this user may not talk to the NVIDIA driver: check the permissions of /dev/nvidia*",
    9: "the NVIDIA driver is not loaded: run `nvidia-smi` as root, or `modprobe nvidia`",
    10: "the NVIDIA driver has a problem with its interrupts: see `dmesg`",
    12: "no NVIDIA driver library (libnvidia-ml.so.1) on this machine",
    13: "the NVIDIA driver is too old for this question: update it",
    15: "a GPU has fallen off the bus: reboot the host",
    16: "a GPU needs a reset: `nvidia-smi --gpu-reset`, or reboot the host",
    18: "driver and library have different versions: reload the driver, or reboot the host",
}


def probe(pynvml: ModuleType) -> Probe:
    """All GPUs of this host, in NVML's order."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Probe(problem=in_words(error))
    try:
        count = pynvml.nvmlDeviceGetCount()
        return Probe(gpus=tuple(_describe(pynvml, index) for index in range(count)))
    except pynvml.NVMLError as error:
        return Probe(problem=in_words(error))
    finally:
        pynvml.nvmlShutdown()


def in_words(error: Any) -> str:
    return FAILURES.get(error.value, f"NVML error {error.value}: {error}")


def _describe(pynvml: ModuleType, index: int) -> Gpu:
    """One GPU; one that is broken is described with its problem, for the others may work."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
    except pynvml.NVMLError as error:
        return Gpu(
            index=index,
            uuid=f"lost-{index}",
            name="GPU",
            memory_mib=1,
            reserve_mib=0,
            problem=in_words(error),
        )
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return Gpu(
            index=index,
            uuid=uuid,
            name=_text(pynvml.nvmlDeviceGetName(handle)),
            memory_mib=int(memory.total) // MIB,
            reserve_mib=_reserve_mib(pynvml, handle, int(memory.used)),
            mig=_in_mig_mode(pynvml, handle),
        )
    except pynvml.NVMLError as error:
        return Gpu(index=index, uuid=uuid, name="GPU", memory_mib=1, reserve_mib=0, problem=in_words(error))


def _reserve_mib(pynvml: ModuleType, handle: Any, used: int) -> int:
    """What the driver takes of an idle GPU: measured where it is idle now, else the driver's own number."""
    try:
        idle = not pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        idle = idle and not pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle)
    except pynvml.NVMLError:
        idle = False
    if idle:
        return -(-used // MIB)
    try:
        full = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except (pynvml.NVMLError, AttributeError, TypeError):  # A driver or a binding without it.
        return 0
    return -(-int(full.reserved) // MIB)


def _in_mig_mode(pynvml: ModuleType, handle: Any) -> bool:
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError:  # Not supported: most GPUs.
        return False
    return bool(current == 1)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def main() -> int:
    try:
        import pynvml
    except ImportError:
        answer = Probe(problem="the Python package nvidia-ml-py is not installed: pip install nvidia-ml-py")
    else:
        answer = probe(pynvml)
    sys.stdout.write(msgspec.json.encode(answer).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
