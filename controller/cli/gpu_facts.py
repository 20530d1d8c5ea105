"""What `doctor` knows about the GPUs of this host: values, and how they are asked for.

Rule: NVML is asked in a child with a time limit (`gpu_probe`), because a driver that hangs takes whoever asks
it with it. None is "it did not say", and no check takes it for good or for bad.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

import msgspec

TIMEOUT_S: Final = 30.0
"""The first question after a boot may start the driver, which takes many seconds on large machines."""

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


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody on a GPU."""

    pid: int
    memory_mib: int | None = None
    user: str = ""
    """Empty where the process cannot be seen from here (another container, another user's with hidepid)."""
    command: str = ""
    ours: bool = False
    """It belongs to a job that an agent of ours started."""


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as NVML describes it."""

    index: int
    uuid: str = ""
    name: str = "GPU"
    memory_mib: int | None = None
    used_mib: int | None = None
    """Without what the driver keeps for itself."""
    capability: tuple[int, int] | None = None
    compute_mode: int | None = None
    persistence: bool | None = None
    mig: bool | None = None
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
    processes: tuple[GpuProcess, ...] = ()
    problem: str = ""
    """It does not answer, and why."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
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
    links: tuple[Link, ...] = ()
    problem: str = ""
    problem_code: int = 0
    """NVML's number for it; 0: not NVML's."""


def ask(timeout_s: float = TIMEOUT_S, command: tuple[str, ...] = ()) -> DriverFacts:
    """What NVML says, asked in a child. One that hangs is killed, or left behind where that does not help."""
    words = command or (sys.executable, "-m", "cotenant.controller.cli.gpu_probe")
    try:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        return DriverFacts(problem=f"cannot ask NVML: {error.strerror}")
    try:
        said, complaint = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _leave(process)
        return DriverFacts(problem=f"NVML did not answer within {timeout_s:.0f} s: is a GPU hung?")
    try:
        return msgspec.convert(json.loads(said), DriverFacts)
    except (ValueError, msgspec.ValidationError):
        last = complaint.decode(errors="replace").strip().splitlines()[-1:] or [f"exit {process.returncode}"]
        return DriverFacts(problem=f"asking NVML failed: {last[0]}")


def _leave(process: subprocess.Popen[bytes]) -> None:
    """End it; in the driver it may not even notice, and then nobody waits for it."""
    process.kill()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:
        process.returncode = -9  # Not waited for again; it is the init process's when we end.
