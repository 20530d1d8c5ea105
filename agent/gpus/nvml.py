"""Ask NVML about the GPUs of this host, as a process of its own: `python -m cotenant.agent.gpus.nvml`.

Rule: prints one `Probe` as JSON and ends with 0, whatever NVML does; every way in which it can fail has a
sentence that says what to do. A GPU is known by its UUID; its index is for people, and only here.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Final

import msgspec

from cotenant.agent.devices import Gpu, MigInstance, Probe
from cotenant.agent.gpus.nvml_calls import (
    MIB,
    Used,
    compute_processes,
    graphics_processes,
    in_words,
    reserved_mib,
    text,
)

IDLE_MIB_MAX: Final = 2048
"""More than this on a GPU that nobody seems to use is held by somebody who cannot be seen."""


def probe(pynvml: ModuleType) -> Probe:
    """All GPUs of this host, in NVML's order."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Probe(problem=in_words(error))
    try:
        count = pynvml.nvmlDeviceGetCount()
        gpus = tuple(_describe(pynvml, index) for index in range(count))
        return Probe(gpus=gpus, driver=_optional(pynvml, "", pynvml.nvmlSystemGetDriverVersion))
    except pynvml.NVMLError as error:
        return Probe(problem=in_words(error))
    finally:
        pynvml.nvmlShutdown()


def _describe(pynvml: ModuleType, index: int) -> Gpu:
    """One GPU; one that is broken is described with its problem, for the others may work."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = text(pynvml.nvmlDeviceGetUUID(handle))
    except pynvml.NVMLError as error:
        return _broken(index, f"lost-{index}", error)
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        capability = _optional(pynvml, (), pynvml.nvmlDeviceGetCudaComputeCapability, handle)
        mig = _in_mig_mode(pynvml, handle)
        return Gpu(
            index=index,
            uuid=uuid,
            name=text(pynvml.nvmlDeviceGetName(handle)),
            memory_mib=int(memory.total) // MIB,
            reserve_mib=_reserve_mib(pynvml, handle, int(memory.used)),
            is_busy=_is_busy(pynvml, handle),
            mig=mig,
            instances=tuple(_instances(pynvml, handle)) if mig else (),
            capability=".".join(map(str, capability)),
            compute_mode=_optional(pynvml, 0, pynvml.nvmlDeviceGetComputeMode, handle),
            bus=_bus(pynvml, handle),
            persistent=bool(_optional(pynvml, 0, pynvml.nvmlDeviceGetPersistenceMode, handle)),
        )
    except pynvml.NVMLError as error:
        return _broken(index, uuid, error)


def _bus(pynvml: ModuleType, handle: Any) -> str:
    found = _optional(pynvml, None, pynvml.nvmlDeviceGetPciInfo, handle)
    return "" if found is None else text(found.busId)


def _broken(index: int, uuid: str, error: Any) -> Gpu:
    return Gpu(
        index=index, uuid=uuid, name="GPU", memory_mib=1, reserve_mib=0, problem=in_words(error),
        code=error.value,
    )  # fmt: skip


def _reserve_mib(pynvml: ModuleType, handle: Any, used: int) -> int:
    """What is gone before any job starts: measured where nobody computes now, else the driver's own number
    and what is drawn with."""
    drivers = reserved_mib(pynvml, handle)
    try:
        drawing = graphics_processes(pynvml, handle)
        computing = compute_processes(pynvml, handle)
    except pynvml.NVMLError:
        return drivers or 0
    drawn = _sum_mib(drawing)
    used_mib = -(-used // MIB)
    if not computing and used_mib - drawn - (drivers or 0) <= IDLE_MIB_MAX:
        return used_mib
    return (drivers or 0) + drawn


def _is_busy(pynvml: ModuleType, handle: Any) -> bool:
    """Also where the driver does not say."""
    try:
        return bool(compute_processes(pynvml, handle))
    except pynvml.NVMLError:
        return True


def _sum_mib(processes: list[Used]) -> int:
    return sum(process.used_mib or 0 for process in processes)


def _in_mig_mode(pynvml: ModuleType, handle: Any) -> bool:
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError:  # Not supported: most GPUs.
        return False
    return bool(current == 1)


def _instances(pynvml: ModuleType, handle: Any) -> list[MigInstance]:
    found: list[MigInstance] = []
    for index in range(_optional(pynvml, 0, pynvml.nvmlDeviceGetMaxMigDeviceCount, handle)):
        try:
            part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            found.append(
                MigInstance(
                    uuid=text(pynvml.nvmlDeviceGetUUID(part)), name=text(pynvml.nvmlDeviceGetName(part))
                )
            )
        except pynvml.NVMLError:  # Places for instances that were not made.
            continue
    return found


def _optional(pynvml: ModuleType, default: Any, call: Any, *arguments: Any) -> Any:
    """What drivers and GPUs may lack."""
    try:
        value = call(*arguments)
    except pynvml.NVMLError:
        return default
    return text(value) if isinstance(value, bytes | str) else value


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
