"""What the NVIDIA driver says of the GPUs of a host: values, and NVML's return codes in our words. Pure.

Rule: None is "it did not say", and nobody takes it for good or for bad. A GPU is known by its UUID; its index
is for people, and follows the bus and the driver's mood.

Rule: whoever shows an error shows these words. What is wrong and what to do are apart, since `doctor` has a
command of its own for what to do.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import msgspec

NOT_NVMLS: Final = 0
"""Stands for a failure that NVML has no code for: nobody could ask it."""
NOT_SUPPORTED: Final = 3
NO_PERMISSION: Final = 4
NOT_LOADED: Final = 9
TIMEOUT: Final = 10
NO_LIBRARY: Final = 12
FUNCTION_NOT_FOUND: Final = 13
LOST: Final = 15
RESET_REQUIRED: Final = 16
MISMATCH: Final = 18
UNKNOWN: Final = 999


class NvmlFailure(NamedTuple):
    what: str
    todo: str


# As nvml.h numbers them.
FAILURES: Final[dict[int, NvmlFailure]] = {
    NO_PERMISSION: NvmlFailure(
        "this user may not talk to the NVIDIA driver", "check the permissions of /dev/nvidia*"
    ),
    NOT_LOADED: NvmlFailure(
        "the NVIDIA driver is not loaded", "run `nvidia-smi` as root, or `modprobe nvidia`"
    ),
    11: NvmlFailure("the NVIDIA driver has a problem with its interrupts", "see `dmesg`"),
    NO_LIBRARY: NvmlFailure("no NVIDIA driver library, libnvidia-ml.so.1, on this machine", ""),
    FUNCTION_NOT_FOUND: NvmlFailure("the NVIDIA driver is too old for this question", "update it"),
    LOST: NvmlFailure("a GPU has fallen off the bus", "reboot the host"),
    RESET_REQUIRED: NvmlFailure("a GPU needs a reset", "`nvidia-smi --gpu-reset`, or reboot the host"),
    MISMATCH: NvmlFailure(
        "driver and library have different versions", "reload the driver, or reboot the host"
    ),
}


class NvmlError(Exception):
    """The error of NVML that has refused; the text says why, and what to do where we know."""

    def __init__(self, code: int, own_words: str = "") -> None:
        """Makes the error of one code. `own_words`: NVML's, for a code that we have none for; ours where it
        was not NVML."""
        self.code = code
        if code == NOT_NVMLS:
            self.what = own_words
        else:
            self.what = FAILURES[code].what if code in FAILURES else f"NVML error {code}: {own_words}"
        super().__init__(add_advice(self.what, code))


def add_advice(what: str, code: int) -> str:
    """What is wrong, and what to do about it where we know."""
    todo = FAILURES[code].todo if code in FAILURES else ""
    return f"{what}: {todo}" if todo else what


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


DeviceUse = Literal["computing", "drawing"]


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


def is_mig_instance(uuid: str) -> bool:
    """Whether a UUID is that of a MIG instance, and not of a GPU."""
    return uuid.startswith("MIG-")


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as NVML describes it."""

    index: int
    uuid: str = ""
    name: str = "GPU"
    problem: str = ""
    """It does not answer, and why."""
    problem_code: int = NOT_NVMLS
    memory_mib: int | None = None
    shared_memory: bool = False
    """Its memory is the host's (GB10, Jetson): the driver counts none of its own."""
    multiprocessors: int | None = None
    taken_mib: int | None = None
    """All that is in use: by processes, by the driver, and by nobody whom NVML names."""
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
    instances: tuple[GpuFacts, ...] = ()
    """Of a GPU in MIG mode, the parts into which it is divided: programs see each as a GPU of its own."""
    processes: tuple[GpuProcess, ...] = ()
    unlisted: tuple[DeviceUse, ...] = ()
    """Kinds of use for which the driver lists no processes."""

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
    """The facts that NVML answered; no GPUs and a problem if NVML could not."""

    driver: str = ""
    cuda: tuple[int, int] | None = None
    """The newest CUDA that the driver serves."""
    gpus: tuple[GpuFacts, ...] = ()
    """In NVML's order. One that is broken is here with its problem, for the others may work."""
    links: tuple[GpuLink, ...] = ()
    problem: str = ""
    problem_code: int = NOT_NVMLS
