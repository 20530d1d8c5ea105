"""NVIDIA's management library (NVML), opened in one place and asked about one GPU, question by question.

Rule: nobody else imports pynvml, and only a process that somebody else waits for opens it, for any call may
never come back. What a driver, a GPU or the binding lacks is None for `maybe` and a `NvmlError` for `ask`.
Callers give NVML's constants by number: their names differ between versions of the binding, and some of them
are wrong there.

A question that this GPU or an old driver cannot answer costs that answer and no other; only what every GPU
that works must answer raises. `handle` is NVML's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, Self, TextIO

import msgspec

from cotenant.profiler.driver import facts

NO_BINDING: Final = "the Python package nvidia-ml-py is not installed: pip install nvidia-ml-py"


class Library:
    """NVML, open until it is closed."""

    def __init__(self, binding: Any) -> None:
        """Opens NVML through a binding. `binding`: pynvml. Raises NvmlError: the driver does not work."""
        self.binding = binding
        self.ask("nvmlInit")

    def ask(self, call: str, *arguments: Any, **more: Any) -> Any:
        """The answer of one call, text as str. Raises NvmlError."""
        function = getattr(self.binding, call, None)
        if function is None:
            raise facts.NvmlError(facts.FUNCTION_NOT_FOUND)
        try:
            answer = function(*arguments, **more)
        except self.binding.NVMLError as error:
            raise facts.NvmlError(error.value, str(error)) from None
        return answer.decode(errors="replace") if isinstance(answer, bytes) else answer

    def maybe(self, call: str, *arguments: Any) -> Any:
        """The answer, or None where there is none."""
        try:
            return self.ask(call, *arguments)
        except facts.NvmlError:
            return None

    def close(self) -> None:
        self.maybe("nvmlShutdown")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_library() -> Library:
    """Opens NVML through its binding. Raises NvmlError: there is no binding, or the driver does not work."""
    try:
        import pynvml
    except ImportError:
        raise facts.NvmlError(facts.NOT_NVMLS, NO_BINDING) from None
    return Library(pynvml)


def own_output() -> TextIO:
    """The way back to whoever asks. What a foreign library prints from now on, from C as well, goes to
    standard error: on the way back it would be taken for an answer that makes no sense."""
    sys.stdout.flush()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def say(what: msgspec.Struct, output: TextIO) -> None:
    """A line of JSON."""
    print(msgspec.json.encode(what).decode(), file=output, flush=True)


# --- One GPU ---------------------------------------------------------------------------------------


MIB: Final = 1024 * 1024
MEMORY_V2: Final = 0x0200_0028
"""The structure's version: its number in the upper byte, its size in the others."""
PROCESSES_MAX: Final = 256
PIDS_MAX: Final = 2**31
"""A process number is a signed int, and 0 is nobody's."""
UPDATE_FROM_535: Final = "versions 535.43 to 535.86 write another format: update it"
_UNCORRECTED, _VOLATILE = 1, 0
_RECOVERY_ACTION: Final = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION; drivers from 565 on."""
_UNSIGNED: Final = (1, 2, 3)
"""Value types whose low half is the number: unsigned int, long and long long."""


def handle_of(nvml: Library, uuid: str) -> Any:
    """The handle of the GPU or MIG instance with this UUID. Raises NvmlError: there is no such thing, or it
    is lost."""
    return nvml.ask("nvmlDeviceGetHandleByUUID", uuid)


def gpu(nvml: Library, index: int) -> Iterator[facts.GpuFacts]:
    """What must be known of a GPU before anything is put there; one that is broken has a problem. The last
    one counts; those before it stand if the driver hangs at the next question."""
    yield facts.GpuFacts(index=index, problem=facts.NO_WORD)
    try:
        handle = nvml.ask("nvmlDeviceGetHandleByIndex", index)
        uuid = nvml.ask("nvmlDeviceGetUUID", handle)
    except facts.NvmlError as error:
        yield facts.GpuFacts(index=index, problem=error.what, problem_code=error.code)
        return
    yield facts.GpuFacts(index=index, uuid=uuid, problem=facts.NO_WORD)
    modes = nvml.maybe("nvmlDeviceGetMigMode", handle)
    mig = _current(modes)
    found = _describe(nvml, handle, index, uuid, is_divided=bool(mig))
    if found.problem:
        yield found
        return
    capability = nvml.maybe("nvmlDeviceGetCudaComputeCapability", handle)
    yield msgspec.structs.replace(
        found,
        capability=None if capability is None else (int(capability[0]), int(capability[1])),
        compute_mode=nvml.maybe("nvmlDeviceGetComputeMode", handle),
        persistence=_flag(nvml.maybe("nvmlDeviceGetPersistenceMode", handle)),
        bus=bus_id(nvml, handle),
        mig=mig,
        mig_next=None if modes is None else bool(modes[1] == 1),
        instances=tuple(_instances(nvml, handle, index)) if mig else (),
    )


def _describe(
    nvml: Library, handle: Any, index: int, uuid: str, *, is_divided: bool = False
) -> facts.GpuFacts:
    """What GPUs and MIG instances both answer. `is_divided`: not everybody may ask for its memory as a
    whole."""
    memory: InUse | None = None
    try:
        memory = memory_mib(nvml, handle)
    except facts.NvmlError as error:
        if not is_divided:
            return facts.GpuFacts(index=index, uuid=uuid, problem=error.what, problem_code=error.code)
    reserved_mib, used_mib = _driver_memory_mib(nvml, handle)
    named, unlisted = named_processes(nvml, handle)
    attributes = nvml.maybe("nvmlDeviceGetAttributes_v2", handle)
    return facts.GpuFacts(
        index=index,
        uuid=uuid,
        name=nvml.maybe("nvmlDeviceGetName", handle) or "GPU",
        memory_mib=None if memory is None else memory.total_mib,
        shared_memory=memory is not None and memory.total_mib is None,
        multiprocessors=None if attributes is None else int(attributes.multiprocessorCount),
        taken_mib=None if memory is None else memory.taken_mib,
        used_mib=used_mib,
        reserved_mib=reserved_mib,
        processes=tuple(named[:PROCESSES_MAX]),
        unlisted=tuple(unlisted),
        unlisted_why=next(iter(unlisted.values()), ""),
    )


def bus_id(nvml: Library, handle: Any) -> str:
    """Where it is on the PCI bus, `00000000:3B:00.0`; empty where the driver does not say."""
    where = nvml.maybe("nvmlDeviceGetPciInfo", handle)
    found = "" if where is None else where.busId
    return found.decode(errors="replace") if isinstance(found, bytes) else str(found)


# --- Memory ----------------------------------------------------------------------------------------


class InUse(NamedTuple):
    total_mib: int | None
    """None: it has no memory of its own, but the host's (GB10, Jetson)."""
    taken_mib: int
    """By processes, by the driver, and by nobody whom NVML names; of the host's: by named processes."""


def memory_mib(nvml: Library, handle: Any) -> InUse:
    """The memory of a GPU, total and in use. Raises NvmlError: every GPU that works answers this, also the
    one without memory of its own, which says that the question is not for it."""
    try:
        info = nvml.ask("nvmlDeviceGetMemoryInfo", handle)
    except facts.NvmlError as error:
        if error.code != facts.NOT_SUPPORTED:
            raise
        named, _ = named_processes(nvml, handle)
        return InUse(None, sum(each.memory_mib or 0 for each in named))
    return InUse(int(info.total) // MIB, -(-int(info.used) // MIB))


def _driver_memory_mib(nvml: Library, handle: Any) -> tuple[int | None, int | None]:
    """What it keeps for itself, and what others use; older drivers do not tell these apart."""
    try:
        full = nvml.ask("nvmlDeviceGetMemoryInfo", handle, version=MEMORY_V2)
    except facts.NvmlError:
        return None, None
    return -(-int(full.reserved) // MIB), int(full.used) // MIB


def ecc_uncorrected(nvml: Library, handle: Any) -> int | None:
    """Since the driver was loaded."""
    count = nvml.maybe("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE)
    return None if count is None else int(count)


class Remapping(NamedTuple):
    """Memory that is taken out of use: rows since Ampere, retired pages before."""

    pending: bool | None
    failed: bool | None


def remapping(nvml: Library, handle: Any) -> Remapping:
    rows = nvml.maybe("nvmlDeviceGetRemappedRows", handle)
    retired = _flag(nvml.maybe("nvmlDeviceGetRetiredPagesPendingStatus", handle))
    return Remapping(retired, None) if rows is None else Remapping(bool(rows[2] or retired), bool(rows[3]))


def recovery_action(nvml: Library, handle: Any) -> int | None:
    """What the driver wants done with it (nvmlDeviceGpuRecoveryAction_t; 0: nothing); None: it does not
    say."""
    fields = nvml.maybe("nvmlDeviceGetFieldValues", handle, [_RECOVERY_ACTION])
    if fields is None or fields[0].nvmlReturn != 0 or fields[0].valueType not in _UNSIGNED:
        return None
    return int(fields[0].value.uiVal)


# --- Processes -------------------------------------------------------------------------------------


LISTS: Final[dict[facts.DeviceUse, tuple[str, ...]]] = {
    "computing": ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses"),
    "drawing": ("nvmlDeviceGetGraphicsRunningProcesses",),
}
"""The calls; the second one lists MPS clients, where the driver has it. Some are in both lists. Who computes
comes first: one that does both computes."""


def named_processes(nvml: Library, handle: Any) -> tuple[list[facts.GpuProcess], dict[facts.DeviceUse, str]]:
    """Everybody the driver names, each once, by pid; and the lists that cannot be had, each with the
    reason."""
    named: dict[int, facts.GpuProcess] = {}
    unlisted: dict[facts.DeviceUse, str] = {}
    for doing, calls in LISTS.items():
        for call in calls:
            try:
                found = _list_processes(nvml, call, handle, computes=doing == "computing")
            except facts.NvmlError as error:
                if call == calls[0]:
                    unlisted[doing] = error.what
                break
            for each in found:  # The first number that anybody gives is its memory.
                before = named.setdefault(each.pid, each)
                if before.memory_mib is None:
                    named[each.pid] = msgspec.structs.replace(before, memory_mib=each.memory_mib)
    return [named[pid] for pid in sorted(named)], unlisted


def _list_processes(nvml: Library, call: str, handle: Any, *, computes: bool) -> list[facts.GpuProcess]:
    """Lists processes by the newest version of the call that the driver has: the binding's own plain name
    stands for one version, and fails with an error of another kind where a driver lacks it.

    Drivers 535.43 to 535.86 write larger records behind the name of version 3, so that all but the first are
    nonsense to the binding (nvitop's pull request 79); their version 2 is as everywhere.
    """
    problem = facts.NvmlError(facts.FUNCTION_NOT_FOUND)
    for version in ("_v3", "_v2"):
        try:
            found = nvml.ask(call + version, handle)
        except facts.NvmlError as error:
            if error.code != facts.FUNCTION_NOT_FOUND:
                raise
            continue
        if all(0 < each.pid < PIDS_MAX for each in found):
            return [
                facts.GpuProcess(
                    pid=int(each.pid),
                    memory_mib=None if each.usedGpuMemory is None else int(each.usedGpuMemory) // MIB,
                    computes=computes,
                )
                for each in found
            ]
        driver = nvml.maybe("nvmlSystemGetDriverVersion")
        problem = facts.NvmlError(
            facts.NOT_NVMLS, f"driver {driver} lists processes that cannot be: {UPDATE_FROM_535}"
        )
    raise problem


# --- Modes -----------------------------------------------------------------------------------------


def _instances(nvml: Library, handle: Any, index: int) -> Iterable[facts.GpuFacts]:
    """The MIG instances of the GPU with this index."""
    for place in range(nvml.maybe("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        part = nvml.maybe("nvmlDeviceGetMigDeviceHandleByIndex", handle, place)
        uuid = None if part is None else nvml.maybe("nvmlDeviceGetUUID", part)
        if uuid is not None:  # Else a place for an instance that was not made.
            yield _describe(nvml, part, index, uuid)


def is_divided(nvml: Library, handle: Any) -> bool:
    """Whether a GPU is in MIG mode, in which no program gets it as a whole."""
    return bool(_current(nvml.maybe("nvmlDeviceGetMigMode", handle)))


class DevicePlace(NamedTuple):
    """Where errors and counters of a device are reported."""

    gpu: Any
    """The handle of the GPU: its own, or that of the GPU of which it is a MIG instance."""
    instance: int | None = None
    """NVML's number of the GPU instance; None: the device is a whole GPU, or NVML does not say."""


def place_of(nvml: Library, uuid: str, handle: Any) -> DevicePlace:
    """Raises NvmlError: the GPU of a MIG instance is not known."""
    if not facts.is_mig_instance(uuid):
        return DevicePlace(handle)
    gpu = nvml.ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
    return DevicePlace(gpu, nvml.maybe("nvmlDeviceGetGpuInstanceId", handle))


def ecc_mode(nvml: Library, handle: Any) -> bool | None:
    return _current(nvml.maybe("nvmlDeviceGetEccMode", handle))


def _current(modes: Any) -> bool | None:
    """Whether a mode is on now, given the mode that is now and the one that will be after a reset."""
    return None if modes is None else bool(modes[0] == 1)


def _flag(value: Any) -> bool | None:
    return None if value is None else bool(value)
