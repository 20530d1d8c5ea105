"""Ask the driver about all GPUs of this host, or about one, as a process of its own: `python -m
cotenant.profiler.driver.probe [--diagnostics] [--gpu INDEX [--uuid]]`.

Rule: prints one `DriverFacts` as JSON and ends with 0, whatever NVML does; `asking.driver_facts` starts it.
"""

from __future__ import annotations

import argparse
import sys

from cotenant.profiler.driver import diagnostics
from cotenant.profiler.driver.facts import DriverFacts, GpuFacts, NvmlError
from cotenant.profiler.driver.library import Library, tell
from cotenant.profiler.driver.reading import gpu


def inventory(nvml: Library, only: int | None = None) -> DriverFacts:
    """All GPUs of this host, in NVML's order, or the one of that index (none if there is none). Raises
    NvmlError."""
    version = nvml.maybe("nvmlSystemGetCudaDriverVersion_v2")
    indices = range(nvml.ask("nvmlDeviceGetCount"))
    return DriverFacts(
        driver=nvml.maybe("nvmlSystemGetDriverVersion") or "",
        cuda=None if version is None else (int(version) // 1000, int(version) % 1000 // 10),
        gpus=tuple(gpu(nvml, index) for index in indices if only in (None, index)),
    )


def name_alone(nvml: Library, index: int) -> DriverFacts:
    """The UUID of one GPU, and nothing else that it could hang at. Raises NvmlError."""
    uuid = nvml.ask("nvmlDeviceGetUUID", nvml.ask("nvmlDeviceGetHandleByIndex", index))
    return DriverFacts(gpus=(GpuFacts(index=index, uuid=uuid),))


def everything(nvml: Library, only: int | None = None) -> DriverFacts:
    """And what only `doctor` wants to know. Raises NvmlError."""
    found = inventory(nvml, only)
    return DriverFacts(
        driver=found.driver,
        cuda=found.cuda,
        gpus=tuple(diagnostics.looked_at(nvml, each) for each in found.gpus),
        links=tuple(diagnostics.links(nvml, found.gpus)),
    )


def _no_facts(error: NvmlError) -> DriverFacts:
    return DriverFacts(problem=error.what, problem_code=error.code)


def main() -> int:
    known = argparse.ArgumentParser(prog="python -m cotenant.profiler.driver.probe")
    known.add_argument(
        "--diagnostics", action="store_true", help="also clocks, links, counters, processes' users"
    )
    known.add_argument("--gpu", type=int, metavar="INDEX", help="only this one")
    known.add_argument("--uuid", action="store_true", help="and of that only its UUID")
    wanted = known.parse_args()
    if wanted.uuid:
        return tell(lambda nvml: name_alone(nvml, wanted.gpu), _no_facts)
    look = everything if wanted.diagnostics else inventory
    return tell(lambda nvml: look(nvml, wanted.gpu), _no_facts)


if __name__ == "__main__":
    sys.exit(main())
