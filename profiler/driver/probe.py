"""Ask the driver about all GPUs of this host as a process of its own: `python -m
cotenant.profiler.driver.probe [--diagnostics] [--first INDEX]`.

Rule: prints `DriverFacts` as JSON, a line for each thing that it learns, and ends with 0, whatever NVML does;
so whoever waits (`probe_client.driver_facts`) knows what it was asking when it hangs.

With `--diagnostics` also what only `doctor` wants to know: errors, clocks, links, counters, and who the
processes are. An agent that starts does not ask this, because a sick GPU may hang in every further question.
Every answer may be missing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Any, Final

import msgspec

from cotenant.checkpoint.talk.protocol import ENV_JOB
from cotenant.profiler.driver import library, process_info
from cotenant.profiler.driver.facts import DriverFacts, GpuFacts, GpuLink, GpuProcess, NvmlError

# --- What only doctor asks -------------------------------------------------------------------------


COMMAND_CHARACTERS: Final = 200
CLOCK_SM: Final = 1
P2P_READ, P2P_NVLINK, P2P_OK = 0, 2, 0
NVLINKS_MAX: Final = 36

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


def looked_at(nvml: library.Library, gpu: GpuFacts) -> GpuFacts:
    """Returns the same GPU with all that can be known of it; a GPU that does not answer stays as it is."""
    handle = None if gpu.problem else nvml.maybe("nvmlDeviceGetHandleByUUID", gpu.uuid)
    if handle is None:
        return gpu
    gpm, gpm_problem = _gpm(nvml, handle)
    remapped = library.remapping(nvml, handle)
    return msgspec.structs.replace(
        gpu,
        ecc=library.ecc_mode(nvml, handle),
        ecc_uncorrected=library.ecc_uncorrected(nvml, handle),
        remap_pending=remapped.pending,
        remap_failed=remapped.failed,
        clock_mhz=nvml.maybe("nvmlDeviceGetClockInfo", handle, CLOCK_SM),
        clock_mhz_max=nvml.maybe("nvmlDeviceGetMaxClockInfo", handle, CLOCK_SM),
        slowed_by=_slowed_by(nvml, handle),
        nvlinks=_nvlinks(nvml, handle),
        gpm=gpm,
        gpm_problem=gpm_problem,
        processes=tuple(_introduce_process(each) for each in gpu.processes),
    )


def links(nvml: library.Library, gpus: Iterable[GpuFacts]) -> Iterable[GpuLink]:
    """Between each two that answer."""
    asked = {g.index: nvml.maybe("nvmlDeviceGetHandleByUUID", g.uuid) for g in gpus if not g.problem}
    handles = {index: handle for index, handle in asked.items() if handle is not None}
    for first, second in combinations(handles, 2):
        pair = (handles[first], handles[second])
        nvlink = nvml.maybe("nvmlDeviceGetP2PStatus", *pair, P2P_NVLINK) == P2P_OK
        read = nvml.maybe("nvmlDeviceGetP2PStatus", *pair, P2P_READ)
        level = nvml.maybe("nvmlDeviceGetTopologyCommonAncestor", *pair)
        path = "NVLink" if nvlink else PATHS.get(-1 if level is None else int(level), "an unknown path")
        yield GpuLink(first=first, second=second, path=path, peer=None if read is None else read == P2P_OK)


def _slowed_by(nvml: library.Library, handle: Any) -> tuple[str, ...]:
    bits = nvml.maybe("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if bits is None:  # Its name in older drivers.
        bits = nvml.maybe("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return tuple(name for bit, name in SLOWED_BY.items() if bits is not None and int(bits) & bit)


def _nvlinks(nvml: library.Library, handle: Any) -> int | None:
    states = [nvml.maybe("nvmlDeviceGetNvLinkState", handle, link) for link in range(NVLINKS_MAX)]
    known = [state for state in states if state is not None]
    return sum(state == 1 for state in known) if known else None


def _gpm(nvml: library.Library, handle: Any) -> tuple[bool | None, str]:
    """Whether the counters exist, and whether we may read them: tried, not inferred."""
    support = nvml.maybe("nvmlGpmQueryDeviceSupport", handle)
    if support is None or not support.isSupportedDevice:
        return (None if support is None else False), ""
    sample = nvml.maybe("nvmlGpmSampleAlloc")
    if sample is None:
        return True, "no sample buffer"
    try:
        nvml.ask("nvmlGpmSampleGet", handle, sample)
    except NvmlError as error:
        return True, error.what
    finally:
        nvml.maybe("nvmlGpmSampleFree", sample)
    return True, ""


def _introduce_process(process: GpuProcess) -> GpuProcess:
    return msgspec.structs.replace(
        process,
        user=process_info.user(process.pid),
        command=process_info.command(process.pid, COMMAND_CHARACTERS),
        ours=ENV_JOB in process_info.environment(process.pid),
    )


# --- The child -------------------------------------------------------------------------------------


def answers(nvml: library.Library, *, diagnostics: bool = False, first: int = 0) -> Iterator[DriverFacts]:
    """What `DriverFacts.add` makes one of: all GPUs from the first on, in NVML's order. Raises NvmlError."""
    version = nvml.maybe("nvmlSystemGetCudaDriverVersion_v2")
    cuda = None if version is None else (int(version) // 1000, int(version) % 1000 // 10)
    yield DriverFacts(driver=nvml.maybe("nvmlSystemGetDriverVersion") or "", cuda=cuda, complete=False)
    gpus: dict[int, GpuFacts] = {}
    for index in range(first, nvml.ask("nvmlDeviceGetCount")):
        for found in library.gpu(nvml, index):
            gpus[index] = found
            yield DriverFacts(gpus=(found,), complete=False)
        if diagnostics:
            gpus[index] = looked_at(nvml, gpus[index])
    yield DriverFacts(
        gpus=tuple(gpus.values()), links=tuple(links(nvml, gpus.values())) if diagnostics else ()
    )


def main() -> int:
    known = argparse.ArgumentParser(prog="python -m cotenant.profiler.driver.probe")
    known.add_argument(
        "--diagnostics", action="store_true", help="also clocks, links, counters, processes' users"
    )
    known.add_argument("--first", type=int, default=0, metavar="INDEX", help="leave out those before it")
    wanted = known.parse_args()
    output = library.own_output()
    try:
        with library.open_library() as nvml:
            for facts in answers(nvml, diagnostics=wanted.diagnostics, first=wanted.first):
                library.say(facts, output)
    except NvmlError as error:
        library.say(DriverFacts(problem=error.what, problem_code=error.code), output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
