"""Ask the driver about all GPUs of this host, as a process of its own: `python -m
cotenant.profiler.driver.probe [--thorough]`.

Rule: prints one `DriverFacts` as JSON and ends with 0, whatever NVML does; `asking.driver_facts` starts it.
"""

from __future__ import annotations

import argparse
import sys

from cotenant.profiler.driver import thorough
from cotenant.profiler.driver.facts import DriverFacts
from cotenant.profiler.driver.failures import NvmlError
from cotenant.profiler.driver.library import Library, tell
from cotenant.profiler.driver.reading import gpu


def inventory(nvml: Library) -> DriverFacts:
    """All GPUs of this host, in NVML's order. Raises NvmlError."""
    version = nvml.maybe("nvmlSystemGetCudaDriverVersion_v2")
    return DriverFacts(
        driver=nvml.maybe("nvmlSystemGetDriverVersion") or "",
        cuda=None if version is None else (int(version) // 1000, int(version) % 1000 // 10),
        gpus=tuple(gpu(nvml, index) for index in range(nvml.ask("nvmlDeviceGetCount"))),
    )


def everything(nvml: Library) -> DriverFacts:
    """And what only `doctor` wants to know. Raises NvmlError."""
    found = inventory(nvml)
    return DriverFacts(
        driver=found.driver,
        cuda=found.cuda,
        gpus=tuple(thorough.looked_at(nvml, each) for each in found.gpus),
        links=tuple(thorough.links(nvml, found.gpus)),
    )


def _no_facts(error: NvmlError) -> DriverFacts:
    return DriverFacts(problem=error.what, problem_code=error.code)


def main() -> int:
    known = argparse.ArgumentParser(prog="python -m cotenant.profiler.driver.probe")
    known.add_argument(
        "--thorough", action="store_true", help="also clocks, links, counters, processes' users"
    )
    return tell(everything if known.parse_args().thorough else inventory, _no_facts)


if __name__ == "__main__":
    sys.exit(main())
