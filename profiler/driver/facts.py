"""What the NVIDIA driver says of the GPUs of a host: values.

Rule: None is "it did not say", and nobody takes it for good or for bad. A GPU is known by its UUID; its index
is for people, and follows the bus and the driver's mood.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from cotenant.profiler.driver.failures import NOT_NVMLS

COMPUTE_DEFAULT: Final = 0
COMPUTE_PROHIBITED: Final = 2
COMPUTE_EXCLUSIVE_PROCESS: Final = 3
COMPUTE_MODES: Final = {
    COMPUTE_DEFAULT: "DEFAULT",
    1: "EXCLUSIVE_THREAD",
    COMPUTE_PROHIBITED: "PROHIBITED",
    COMPUTE_EXCLUSIVE_PROCESS: "EXCLUSIVE_PROCESS",
}
"""As nvml.h numbers them, in the words of `nvidia-smi -c`."""


Doing = Literal["computing", "drawing"]


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody on a GPU."""

    pid: int
    memory_mib: int | None = None
    computes: bool = True
    """Else it only draws."""
    user: str = ""
    """Empty where nobody asked, or the process cannot be seen from here (another container, another user's
    with hidepid)."""
    command: str = ""
    ours: bool = False
    """It belongs to a job that an agent of ours started."""


class MigInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a GPU in MIG mode, which programs see as a GPU of its own."""

    uuid: str
    name: str


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as NVML describes it."""

    index: int
    uuid: str = ""
    name: str = "GPU"
    problem: str = ""
    """It does not answer, and why."""
    problem_code: int = NOT_NVMLS
    memory_mib: int | None = None
    taken_mib: int | None = None
    """All that is in use: processes, driver, and what nobody owns up to."""
    used_mib: int | None = None
    """Without what the driver keeps for itself."""
    reserved_mib: int | None = None
    """What the driver keeps for itself by its own account."""
    capability: tuple[int, int] | None = None
    compute_mode: int | None = None
    persistence: bool | None = None
    bus: str = ""
    """Its address on the PCI bus, `00000000:3B:00.0`; empty where it does not say."""
    mig: bool | None = None
    mig_next: bool | None = None
    """What it will be after a reset."""
    instances: tuple[MigInstance, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    unlisted: tuple[Doing, ...] = ()
    """What the driver does not list the processes of."""

    # What only diagnostics ask.
    ecc: bool | None = None
    ecc_uncorrected: int | None = None
    """Errors since the driver was loaded."""
    remap_pending: bool | None = None
    """Memory rows (or pages) wait to be replaced: at the next reset."""
    remap_failed: bool | None = None
    clock_mhz: int | None = None
    clock_mhz_max: int | None = None
    slowed_by: tuple[str, ...] = ()
    """What keeps its clock down now, beyond idleness and settings."""
    nvlinks: int | None = None
    """Links that are up."""
    gpm: bool | None = None
    gpm_problem: str = ""
    """Why a sample could not be taken, where the GPU has the counters."""


class GpuLink(msgspec.Struct, frozen=True, kw_only=True):
    """How two GPUs reach each other."""

    first: int
    second: int
    path: str
    """`NVLink`, or what PCIe traffic between them passes."""
    peer: bool | None = None
    """One may read the other's memory."""


class DriverFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What NVML answered; no GPUs and a problem if it could not."""

    driver: str = ""
    cuda: tuple[int, int] | None = None
    """The newest CUDA that the driver serves."""
    gpus: tuple[GpuFacts, ...] = ()
    """In NVML's order. One that is broken is here with its problem, for the others may work."""
    links: tuple[GpuLink, ...] = ()
    problem: str = ""
    problem_code: int = NOT_NVMLS
