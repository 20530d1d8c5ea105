"""Ask NVML for all that `doctor` shows: `python -m cotenant.controller.cli.gpu_probe`, a process of its own.

Rule: prints one `DriverFacts` as JSON and ends with 0, whatever NVML does. A question that one GPU or an old
driver cannot answer costs that answer and no other. NVML's constants are given by number: their names differ
between versions of the binding, and some of them are wrong there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec

from cotenant.controller.cli.gpu_facts import DriverFacts, GpuFacts, GpuProcess, Link

MIB: Final = 1024 * 1024
PROCESSES_MAX: Final = 256
COMMAND_CHARACTERS: Final = 200
CLOCK_SM: Final = 1
UNCORRECTED, VOLATILE = 1, 0
P2P_READ, P2P_NVLINK, P2P_OK = 0, 2, 0
NVLINKS_MAX: Final = 36
JOB_VARIABLE: Final = b"COTENANT_JOB="

SLOWED_BY: Final = {
    0x08: "hardware slowdown",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
"""Bits of the clock event reasons. A power cap and idleness are how GPUs work, and not named."""

PATHS: Final = {
    0: "the same board",
    10: "one PCIe switch",
    20: "several PCIe switches",
    30: "the host bridge",
    40: "one processor's PCIe",
    50: "two processors",
}
"""nvmlGpuTopologyLevel_t: what PCIe traffic between two GPUs passes."""


def probe(pynvml: ModuleType) -> DriverFacts:
    """Everything, of all GPUs in NVML's order."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return DriverFacts(problem=str(error), problem_code=int(error.value))
    try:
        asker = _Asker(pynvml)
        version = asker.maybe("nvmlSystemGetCudaDriverVersion_v2")
        count = int(pynvml.nvmlDeviceGetCount())
        gpus = tuple(asker.gpu(index) for index in range(count))
        return DriverFacts(
            driver=_text(asker.maybe("nvmlSystemGetDriverVersion") or ""),
            cuda=None if version is None else (int(version) // 1000, int(version) % 1000 // 10),
            gpus=gpus,
            links=tuple(asker.links(gpu.index for gpu in gpus if not gpu.problem)),
        )
    except pynvml.NVMLError as error:
        return DriverFacts(problem=str(error), problem_code=int(error.value))
    finally:
        pynvml.nvmlShutdown()


class _Asker:
    """One question at a time."""

    def __init__(self, pynvml: Any) -> None:
        self._nvml = pynvml
        # The binding's own word for "this driver has it under an older name only".
        older = getattr(pynvml, "NVMLLibraryMismatchError", pynvml.NVMLError)
        self._no_answer = (pynvml.NVMLError, older, AttributeError, TypeError)

    def maybe(self, name: str, *arguments: Any) -> Any:
        """The answer, or None where driver, GPU or binding has none."""
        try:
            return getattr(self._nvml, name)(*arguments)
        except self._no_answer:
            return None

    def gpu(self, index: int) -> GpuFacts:
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = _text(self._nvml.nvmlDeviceGetUUID(handle))
        except self._nvml.NVMLError as error:
            return GpuFacts(index=index, problem=str(error))
        name = _text(self.maybe("nvmlDeviceGetName", handle) or "GPU")
        try:
            memory_mib, used_mib = self._memory_mib(handle)
        except self._nvml.NVMLError as error:
            return GpuFacts(index=index, uuid=uuid, name=name, problem=str(error))
        capability = self.maybe("nvmlDeviceGetCudaComputeCapability", handle)
        mig = self.maybe("nvmlDeviceGetMigMode", handle)
        ecc = self.maybe("nvmlDeviceGetEccMode", handle)
        gpm, gpm_problem = self._gpm(handle)
        remap_pending, remap_failed = self._remapping(handle)
        return GpuFacts(
            index=index,
            uuid=uuid,
            name=name,
            memory_mib=memory_mib,
            used_mib=used_mib,
            capability=None if capability is None else (int(capability[0]), int(capability[1])),
            compute_mode=self.maybe("nvmlDeviceGetComputeMode", handle),
            persistence=_flag(self.maybe("nvmlDeviceGetPersistenceMode", handle)),
            mig=None if mig is None else mig[0] == 1,
            ecc=None if ecc is None else ecc[0] == 1,
            ecc_uncorrected=self.maybe("nvmlDeviceGetTotalEccErrors", handle, UNCORRECTED, VOLATILE),
            remap_pending=remap_pending,
            remap_failed=remap_failed,
            clock_mhz=self.maybe("nvmlDeviceGetClockInfo", handle, CLOCK_SM),
            clock_mhz_max=self.maybe("nvmlDeviceGetMaxClockInfo", handle, CLOCK_SM),
            slowed_by=self._slowed_by(handle),
            nvlinks=self._nvlinks(handle),
            gpm=gpm,
            gpm_problem=gpm_problem,
            processes=self._processes(handle),
        )

    def _memory_mib(self, handle: Any) -> tuple[int, int | None]:
        """Total, and used without the driver's own. Raises NVMLError: the GPU does not answer."""
        total = int(self._nvml.nvmlDeviceGetMemoryInfo(handle).total) // MIB
        try:
            full = self._nvml.nvmlDeviceGetMemoryInfo(handle, version=self._nvml.nvmlMemory_v2)
        except self._no_answer:
            return total, None
        return total, int(full.used) // MIB

    def _remapping(self, handle: Any) -> tuple[bool | None, bool | None]:
        """Pending and failed: rows since Ampere, retired pages before."""
        rows = self.maybe("nvmlDeviceGetRemappedRows", handle)
        if rows is not None:
            return bool(rows[2]), bool(rows[3])
        return _flag(self.maybe("nvmlDeviceGetRetiredPagesPendingStatus", handle)), None

    def _slowed_by(self, handle: Any) -> tuple[str, ...]:
        bits = self.maybe("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if bits is None:  # Its name in older drivers.
            bits = self.maybe("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        return tuple(name for bit, name in SLOWED_BY.items() if bits is not None and int(bits) & bit)

    def _nvlinks(self, handle: Any) -> int | None:
        states = [self.maybe("nvmlDeviceGetNvLinkState", handle, link) for link in range(NVLINKS_MAX)]
        known = [state for state in states if state is not None]
        return sum(state == 1 for state in known) if known else None

    def _gpm(self, handle: Any) -> tuple[bool | None, str]:
        """Whether the counters exist, and whether we may read them: tried, not inferred."""
        support = self.maybe("nvmlGpmQueryDeviceSupport", handle)
        if support is None or not support.isSupportedDevice:
            return (None if support is None else False), ""
        sample = self.maybe("nvmlGpmSampleAlloc")
        if sample is None:
            return True, "no sample buffer"
        try:
            self._nvml.nvmlGpmSampleGet(handle, sample)
        except self._nvml.NVMLError as error:
            return True, str(error)
        finally:
            self.maybe("nvmlGpmSampleFree", sample)
        return True, ""

    def _processes(self, handle: Any) -> tuple[GpuProcess, ...]:
        found: dict[int, int | None] = {}
        for kind in ("Compute", "Graphics", "MPSCompute"):
            name = f"nvmlDeviceGet{kind}RunningProcesses"
            for process in self.maybe(name, handle) or self.maybe(f"{name}_v2", handle) or ():
                used = None if process.usedGpuMemory is None else int(process.usedGpuMemory) // MIB
                found[int(process.pid)] = used if used is not None else found.get(int(process.pid))
        return tuple(_who(pid, used) for pid, used in sorted(found.items())[:PROCESSES_MAX])

    def links(self, indices: Iterable[int]) -> Iterable[Link]:
        handles = {index: self._nvml.nvmlDeviceGetHandleByIndex(index) for index in indices}
        for first, second in combinations(handles, 2):
            pair = (handles[first], handles[second])
            nvlink = self.maybe("nvmlDeviceGetP2PStatus", *pair, P2P_NVLINK) == P2P_OK
            read = self.maybe("nvmlDeviceGetP2PStatus", *pair, P2P_READ)
            level = self.maybe("nvmlDeviceGetTopologyCommonAncestor", *pair)
            path = "NVLink" if nvlink else PATHS.get(-1 if level is None else int(level), "an unknown path")
            yield Link(first=first, second=second, path=path, peer=None if read is None else read == P2P_OK)


def _who(pid: int, used_mib: int | None) -> GpuProcess:
    import psutil

    user, command, ours = "", "", False
    try:
        process = psutil.Process(pid)
        user = process.username()
        command = " ".join(process.cmdline())[:COMMAND_CHARACTERS] or process.name()
        ours = JOB_VARIABLE in Path(f"/proc/{pid}/environ").read_bytes()
    except (psutil.Error, OSError, KeyError):
        pass  # Gone meanwhile, or not to be seen from here: the fields say so by being empty.
    return GpuProcess(pid=pid, memory_mib=used_mib, user=user, command=command, ours=ours)


def _flag(value: Any) -> bool | None:
    return None if value is None else bool(value)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def main() -> int:
    try:
        import pynvml
    except ImportError:
        answer = DriverFacts(problem="the Python package nvidia-ml-py is not installed")
    else:
        answer = probe(pynvml)
    sys.stdout.write(msgspec.json.encode(answer).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
