"""Where a device's MPS daemon lives on disk.

Rule: the pipe directory is short. The control socket inside it must fit a Unix socket address, and a longer
path fails with no message at all, so it is refused here, where it can be explained.
"""

from __future__ import annotations

import hashlib
from pathlib import PurePosixPath

PIPE_DIRECTORY_BYTES_MAX = 87
DEVICE_NAME_BYTES = 4
"""Hashed to 8 hexadecimal digits: enough to tell a host's devices apart, and short."""


class PathTooLong(ValueError):
    """A pipe directory that the control daemon could not open its socket in."""


def device_name(device_uuid: str) -> str:
    """A short, stable folder name for a device. The full UUID would take nearly half of the room."""
    return hashlib.blake2s(device_uuid.encode(), digest_size=DEVICE_NAME_BYTES).hexdigest()


def daemons_folder(runtime: PurePosixPath) -> PurePosixPath:
    """Where the pipe directories of a runtime folder are."""
    return runtime / "mps"


def pipe_directory(runtime: PurePosixPath, device_uuid: str) -> PurePosixPath:
    """The pipe directory of the daemon that serves this device, below the agent's runtime folder."""
    return checked(daemons_folder(runtime) / device_name(device_uuid))


def log_directory(state: PurePosixPath, device_uuid: str) -> PurePosixPath:
    """Logs outlive the daemon (`quit` empties the pipe directory), and their length is not limited."""
    return state / "mps" / device_name(device_uuid)


def checked(directory: PurePosixPath) -> PurePosixPath:
    """The same directory, or an error that says what to change."""
    if not directory.is_absolute():
        raise ValueError(
            f"{directory}: the MPS pipe directory must be absolute; daemon and jobs start elsewhere"
        )
    length = len(bytes(directory))
    if length > PIPE_DIRECTORY_BYTES_MAX:
        raise PathTooLong(
            f"{directory}: {length} bytes, and MPS takes at most {PIPE_DIRECTORY_BYTES_MAX}; "
            "set mps.runtime_dir to a shorter folder"
        )
    return directory
