"""Whether jobs can share a device through MPS on this host, if not why, and with which daemons.

Rule: `look` gathers facts and never talks to a live daemon; `verdict` decides from facts alone. A no always
carries the one reason to fix first, in words for `doctor` and `nodes`.

Rule: one daemon for all devices unless the operator asks for one per device (docs/decisions/0024). A process
of several devices can be its client; a fault on one device keeps new clients off all of them until it is
over.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal, Protocol

from cotenant.mps import answers, ownership, process
from cotenant.mps.environment import PIPE_DIRECTORY, pipe_directory
from cotenant.mps.process import CONTROL as CONTROL

CAPABILITY_MIN = (7, 0)
"""Volta: before it, clients shared one address space and had no limits of their own."""
MACHINES = ("x86_64", "aarch64")
VERSION_TIMEOUT_S = 5.0

COMPUTE_MODE_PROHIBITED = 2
FAKE_MARK = "fake"
"""In the version line of the stand-in that our tests use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedHost:
    """What `look` found, and whether the operator wants MPS at all."""

    system: str
    machine: str
    control_path: str | None
    version: tuple[int, int] | None
    """CUDA version of the control binary; None where it is too old to say."""
    runtime: PurePosixPath
    runtime_writable: bool
    uid: int
    driver: str = ""
    """The version of the kernel's driver; empty where none is loaded."""
    allowed: bool = True
    closed: str = ""
    """For root, whose daemons serve others: the first folder on the way to `runtime` that only its owner may
    enter; empty: none."""
    is_fake: bool = False
    """The control program is a stand-in for tests, by its own word: no record made with it counts."""


class DetectedDevice(Protocol):
    """What NVML says about a device. None is unknown, and unknown is never taken for good."""

    @property
    def uuid(self) -> str: ...
    @property
    def capability(self) -> tuple[int, int] | None: ...
    @property
    def compute_mode(self) -> int | None: ...
    @property
    def mig(self) -> bool | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsVerdict:
    """`reason` is a sentence fragment that fits behind "MPS: yes, " or "MPS: no, "."""

    usable: bool
    reason: str


def verdict(host: DetectedHost, device: DetectedDevice | None = None) -> MpsVerdict:
    """The verdict on the host alone, or on one device on it: the first obstacle found."""
    obstacle = _host_obstacle(host)
    if obstacle is None and device is not None:
        obstacle = _device_obstacle(host, device)
    if obstacle is not None:
        return MpsVerdict(usable=False, reason=obstacle)
    version = "version unknown" if host.version is None else "CUDA {}.{}".format(*host.version)
    if host.is_fake:
        version = "a stand-in for tests: nothing that is measured with it counts"
    return MpsVerdict(usable=True, reason=f"{CONTROL} at {host.control_path} ({version})")


def _host_obstacle(host: DetectedHost) -> str | None:
    if not host.allowed:
        return "switched off in the agent's settings"
    if host.system != "Linux" or host.machine not in MACHINES:
        return f"MPS needs 64-bit Linux, this is {host.system} on {host.machine}"
    if host.control_path is None:
        return f"{CONTROL} is not on PATH; it comes with the NVIDIA driver (Debian: package nvidia-cuda-mps)"
    if not host.runtime_writable:
        return f"{host.runtime} is not writable for user {host.uid}, so no daemon can live there"
    return None


def _device_obstacle(host: DetectedHost, device: DetectedDevice) -> str | None:
    if device.capability is None:
        return f"the compute capability of {device.uuid} is unknown"
    if device.capability < CAPABILITY_MIN:
        return "{} has compute capability {}.{}, and client limits need {}.{} (Volta)".format(
            device.uuid, *device.capability, *CAPABILITY_MIN
        )
    if device.mig:
        return f"{device.uuid} is split by MIG; its instances are devices of their own"
    if device.compute_mode == COMPUTE_MODE_PROHIBITED:
        return f"{device.uuid} is in compute mode PROHIBITED (an admin can change it: nvidia-smi -c DEFAULT)"
    try:
        pipe_directory(host.runtime, device.uuid)
    except ValueError as error:
        return str(error)
    return None


def look(runtime: PurePosixPath, *, allowed: bool = True, search_path: str | None = None) -> DetectedHost:
    """Facts about this host. Starts the control program once, with `-v`, away from any daemon."""
    control_path = shutil.which(CONTROL, path=search_path)
    said = "" if control_path is None else version_line(control_path)
    return DetectedHost(
        system=platform.system(),
        machine=platform.machine(),
        control_path=control_path,
        version=answers.control_version(said),
        runtime=runtime,
        runtime_writable=_writable(runtime),
        uid=os.getuid(),
        driver=process.driver_version(),
        allowed=allowed,
        closed=ownership.closed_folder(runtime) if os.geteuid() == 0 else "",
        is_fake=FAKE_MARK in said,
    )


def version_line(control_path: str, timeout_s: float = VERSION_TIMEOUT_S) -> str:
    """The line that `-v` prints; empty where the program does not run, or does not answer in time.

    An old program takes `-v` for a query to a daemon, which may be wedged or another's: an empty pipe
    directory makes sure there is none to find.
    """
    with tempfile.TemporaryDirectory(prefix="mps-") as nowhere:
        environment = {**os.environ, PIPE_DIRECTORY: nowhere, ownership.LOG_DIRECTORY: nowhere}
        try:
            done = process.run((os.path.abspath(control_path), "-v"), environment, timeout_s=timeout_s)
        except (OSError, TimeoutError):
            return ""
    return done.stdout + done.stderr


def _writable(directory: PurePosixPath) -> bool:
    """Whether we can make folders below it; where it is missing, whether we can make it."""
    existing = next((path for path in (directory, *directory.parents) if os.path.exists(path)), None)
    return existing is not None and os.path.isdir(existing) and os.access(existing, os.W_OK | os.X_OK)


Mode = Literal["auto", "off", "per-device", "per-host"]


def choose(mode: Mode, uuids: Sequence[str], *, one_uid: bool) -> tuple[tuple[tuple[str, ...], ...], str]:
    """Chooses the daemons of a host: the UUIDs of each one's devices, none if there is to be no daemon, and
    why so, for `doctor` and the log. `uuids`: the devices that can be shared through MPS. `one_uid`: all jobs
    of this host have one uid."""
    if mode == "off":
        return (), "MPS is switched off (mps.mode = off)"
    if not uuids:
        return (), "no device here can be shared through MPS"
    if mode == "per-device":
        return tuple((uuid,) for uuid in uuids), (
            "one daemon per device (mps.mode = per-device): a fault reaches one device only; each worker "
            "sees one device, is LOCAL_RANK 0 and does without NCCL's direct transports"
        )
    whose = "one daemon" if one_uid else "one daemon for each user with jobs here,"
    return (tuple(uuids),), (
        f"{whose} for all devices: gangs have their true LOCAL_RANK and NCCL's direct transports; a fault on "
        "one device keeps new clients off all of them until it is over"
        + ("" if mode == "per-host" else " (the default; mps.mode = per-device changes it)")
    )
