"""What is offered of a GPU as the driver describes it, and what is told where the driver says less. Pure.

Rule: a gap in what the driver says is a row of `GAPS`; the first row that has something to say of a GPU
decides. Answers without which a GPU is offered as usual (energy, ECC, links, persistence, the driver's own
memory) need no row: they are None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from cotenant.controller.domain import DIVIDED, MIG_TYPE
from cotenant.profiler.driver.facts import COMPUTE_PROHIBITED, GpuFacts, add_advice

IDLE_MIB_MAX: Final = 2048
"""More than this on a GPU without visible processes is held by one that cannot be seen."""
NO_INSTANCES: Final = (
    "it is in MIG mode and has no instances: make some (`nvidia-smi mig -cgi PROFILE -C`, as root; "
    "`nvidia-smi mig -lgip` lists profiles) or leave the mode (`nvidia-smi -mig 0`), and restart the agent"
)
PROHIBITED: Final = "its compute mode is PROHIBITED: `nvidia-smi -c DEFAULT` (as root) lets programs use it"
SHARED_MEMORY: Final = "its memory is the host's, and the driver does not count it: one job at a time"
UNSERVED: Final = "on the bus ({}), not known to the driver: see `dmesg | grep NVRM`, then reboot the host"
_BUS_CHARACTERS: Final = 12
"""`0000:3b:00.0`; NVML writes the domain with more zeros, and in capitals."""


class Gap(NamedTuple):
    says: Callable[[GpuFacts], str]
    """Empty: this GPU has no such gap."""
    tenants_max: int
    """Jobs that may be on the GPU; 0: it is listed, and not offered."""


def _divided(gpu: GpuFacts) -> str:
    if not gpu.instances:
        return NO_INSTANCES if gpu.mig else ""
    types = ", ".join(sorted({mig_type(part) for part in gpu.instances}))
    return f"{DIVIDED}{len(gpu.instances)} MIG instances, for jobs with --gpu-type {types}"


def _unlisted(gpu: GpuFacts) -> str:
    kinds = " or ".join(gpu.unlisted)
    return (
        f"the driver does not list the processes that are {kinds} on it: {gpu.unlisted_why}" if kinds else ""
    )


GAPS: Final = (
    Gap(lambda gpu: add_advice(gpu.problem, gpu.problem_code), 0),
    Gap(_divided, 0),
    Gap(lambda gpu: PROHIBITED if gpu.compute_mode == COMPUTE_PROHIBITED else "", 0),
    Gap(lambda gpu: SHARED_MEMORY if gpu.shared_memory else "", 1),
    Gap(_unlisted, 2),
)


def find_gap(gpu: GpuFacts) -> tuple[str, int]:
    """What is to be said of a GPU, and how many jobs may be on it; "" and 2 where the driver says all."""
    said = ((gap.says(gpu), gap.tenants_max) for gap in GAPS)
    return next(((text, tenants_max) for text, tenants_max in said if text), ("", 2))


def gpus_only_on_the_bus(gpus: Sequence[GpuFacts], on_the_bus: Sequence[str]) -> tuple[GpuFacts, ...]:
    """The GPUs that are on the bus and that NVML does not count, each with its problem. Empty where NVML's
    own are not on that bus: it then says nothing of them."""
    known = {gpu.bus.lower()[-_BUS_CHARACTERS:] for gpu in gpus if gpu.bus}
    others = [address for address in on_the_bus if address[-_BUS_CHARACTERS:] not in known]
    if len(others) > len(on_the_bus) - len(known):
        return ()
    count = max(0, len(on_the_bus) - len(gpus))
    # A GPU that NVML counts and that does not answer may not say where it is.
    names = others if len(others) == count else [" or ".join(others)] * count
    return tuple(
        GpuFacts(index=len(gpus) + number, bus=name, problem=UNSERVED.format(name))
        for number, name in enumerate(names)
    )


# --- Memory and types ------------------------------------------------------------------------------


def is_busy(gpu: GpuFacts) -> bool:
    """A process computes there; also where the driver does not say."""
    return "computing" in gpu.unlisted or any(each.computes for each in gpu.processes)


def reserve_mib(gpu: GpuFacts) -> int:
    """Memory in use before any job starts: measured where no process computes now, else the driver's own
    number and that of processes that draw."""
    drivers_mib, taken_mib = gpu.reserved_mib or 0, gpu.taken_mib or 0
    if gpu.unlisted:
        return drivers_mib
    drawn_mib = sum(each.memory_mib or 0 for each in gpu.processes if not each.computes)
    if not is_busy(gpu) and taken_mib - drawn_mib - drivers_mib <= IDLE_MIB_MAX:
        return taken_mib
    return drivers_mib + drawn_mib


def type_of(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-") or "GPU"


def mig_type(part: GpuFacts) -> str:
    """The type of a MIG instance, `MIG-1g.10gb`: NVML calls it `NVIDIA H100 80GB HBM3 MIG 1g.10gb`."""
    return f"{MIG_TYPE}{type_of(part.name.rpartition('MIG ')[2])}"
