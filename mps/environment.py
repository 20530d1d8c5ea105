"""Where a device's MPS daemon lives on disk, and what a job needs in its environment to be its client.

Rule: these variables come from the placement alone. Whatever the submitter's shell had of them is removed
first, also for jobs that do not use MPS: a stale pipe directory would attach a job to a foreign daemon, or
silently to none. And "not set" is not "off": a process that is to be no client gets NOT_A_CLIENT.

Rule: the pipe directory is short. The control socket inside it must fit a Unix socket address, and a longer
path fails with no message at all, so it is refused here, where it can be explained.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

PREFIX = "CUDA_MPS_"
PIPE_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
ACTIVE_THREAD_PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
PINNED_DEVICE_MEM_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
PROTOCOL_VERSION = "CUDA_MPS_PROTOCOL_VERSION"
"""Of a daemon; older programs ignore it."""

NOT_A_CLIENT: Final[dict[str, str]] = {PIPE_DIRECTORY: "/nonexistent/mps"}
"""For every process that is to be no client. Without the variable CUDA looks in /tmp/nvidia-mps, and any
daemon that listens there takes the process in; with a folder that cannot exist it uses the GPU itself."""

_UUID = re.compile(r"(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """Device memory one client may hold. By UUID: what a device is called where it is planned."""

    device_uuid: str
    limit_mib: int
    daemon_number: int | None = None
    """Its number among the devices of a daemon that serves several; None: the daemon serves what its client
    sees."""

    def __post_init__(self) -> None:
        if not _UUID.fullmatch(self.device_uuid):
            raise ValueError(
                f"{self.device_uuid!r} is no device UUID; a limit by number may hit another device"
            )
        if self.limit_mib < 1:
            raise ValueError(
                f"{self.device_uuid}: a memory limit must be at least 1 MiB, got {self.limit_mib}"
            )

    def numbers(self, seen_as: int) -> set[int]:
        """The numbers by which the device may be known. The manual says: as its daemon counts it; with a list
        of visible devices a client counts from 0 again, and which of the two holds then has not been seen on
        a GPU."""
        return {seen_as} if self.daemon_number is None else {seen_as, self.daemon_number}


def client_environment(
    pipe_directory: PurePosixPath,
    memory: Sequence[MemoryLimit] = (),
    active_thread_percentage: float | None = None,
) -> dict[str, str]:
    """The variables of a client. They do not prove that it attached: ask the daemon for its clients. Limits
    are read when the CUDA context is created and fixed from then on.

    memory: of every device that the client sees, in the order of its CUDA_VISIBLE_DEVICES: what it counts as
    its device 0 comes first. active_thread_percentage: a cap on the share of multiprocessors, not a
    reservation; can only lower what the server gives.
    """
    environment = {PIPE_DIRECTORY: str(check_directory(pipe_directory))}
    percentage = active_thread_percentage
    if percentage is not None:
        if not 0 < percentage <= 100:
            raise ValueError(
                f"active_thread_percentage must be in (0, 100], got {percentage}; MPS ignores others"
            )
        environment[ACTIVE_THREAD_PERCENTAGE] = percentage_text(percentage)
    uuids = [limit.device_uuid for limit in memory]
    if len(set(uuids)) < len(uuids):
        raise ValueError(f"two memory limits for one device: {', '.join(sorted(uuids))}")
    if memory:
        environment[PINNED_DEVICE_MEM_LIMIT] = ",".join(
            f"{number}={limit_mib}M" for number, limit_mib in sorted(_limits_by_number(memory).items())
        )
    return environment


def _limits_by_number(memory: Sequence[MemoryLimit]) -> dict[int, int]:
    """The memory limits by device number, in whole MiB only: the daemon takes `<int>M` or `<int>G` and drops
    anything else without a word. By number: a limit by UUID is dropped just so (by the daemon of driver 535,
    and NVIDIA's own device plugin went back to numbers because such limits were not applied). Where a number
    may mean two devices, the smaller limit counts."""
    found: dict[int, int] = {}
    for seen_as, limit in enumerate(memory):
        for number in limit.numbers(seen_as):
            found[number] = min(limit.limit_mib, found.get(number, limit.limit_mib))
    return found


def drop_mps_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with every MPS variable removed: the start for each job, sharing or not."""
    return {name: value for name, value in environment.items() if not name.startswith(PREFIX)}


def percentage_text(percentage: float) -> str:
    """The percentage in plain decimals. A value that rounds to 0 would be ignored and leave the client
    without a cap."""
    return f"{max(percentage, 0.001):.3f}".rstrip("0").rstrip(".")


def host_daemon(uid: int, *, one_uid: bool) -> str:
    """The name that stands in place of a device's UUID in the paths of a daemon for all devices of a host: of
    the one user whom all jobs run as, or of that user."""
    return "" if one_uid else f"uid {uid}"


PIPE_DIRECTORY_BYTES_MAX = 87
DEVICE_NAME_BYTES = 4
"""Hashed to 8 hexadecimal digits: enough to tell a host's devices apart, and short."""


def device_name(device_uuid: str) -> str:
    """A short, stable folder name for a device. The full UUID would take nearly half of the room."""
    return hashlib.blake2s(device_uuid.encode(), digest_size=DEVICE_NAME_BYTES).hexdigest()


def daemons_folder(runtime: PurePosixPath) -> PurePosixPath:
    """Where the pipe directories of a runtime folder are."""
    return runtime / "mps"


def pipe_directory(runtime: PurePosixPath, device_uuid: str) -> PurePosixPath:
    """The pipe directory of the daemon that serves this device, below the agent's runtime folder."""
    return check_directory(daemons_folder(runtime) / device_name(device_uuid))


def log_directory(state: PurePosixPath, device_uuid: str) -> PurePosixPath:
    """Logs outlive the daemon (`quit` empties the pipe directory), and their length is not limited."""
    return state / "mps" / device_name(device_uuid)


def check_directory(directory: PurePosixPath) -> PurePosixPath:
    """Returns the same directory, or raises a ValueError that says what to change: the control daemon could
    not open its socket there."""
    if not directory.is_absolute():
        raise ValueError(
            f"{directory}: the MPS pipe directory must be absolute; daemon and jobs start elsewhere"
        )
    length = len(bytes(directory))
    if length > PIPE_DIRECTORY_BYTES_MAX:
        raise ValueError(
            f"{directory}: {length} bytes, and MPS takes at most {PIPE_DIRECTORY_BYTES_MAX}; "
            "set mps.runtime_dir to a shorter folder"
        )
    return directory
