"""The jobs whose priority is ours: a file that knows of each before Slurm does.

Rule: a job is written down, durably, before its priority is set, and struck off after it was released or is
gone. So whoever reads the file after `kill -9` finds every job that may have a priority of ours, and perhaps
some that have none: releasing those changes nothing. One process has the file at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from cotenant.controller.system import files
from cotenant.controller.system.locks import Lock

VERSION: Final = 1
FILE_BYTES_MAX: Final = 256 << 20


class TouchedProblem(Exception):
    """The file cannot be read."""


class Touched(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VERSION
    cluster: str = ""
    order: str = ""
    """As it was given, for `explain`."""
    partitions: tuple[str, ...] = ()
    mark: int = 0
    """The number of the steerer's mark in Slurm; 0: none."""
    jobs: Mapping[int, float] = {}
    """When each was submitted: a number that Slurm has given to another job is not ours."""


class TouchedFile:
    """Held from `open` to `close`, or to the end of the process."""

    def __init__(self, path: Path) -> None:
        """Raises LockTaken."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = path
        self._lock = Lock(path.with_name(f"{path.name}.lock"))
        self.now = read(path)

    def write(self, touched: Touched) -> None:
        """Before Slurm is told. Nothing is written where nothing changes."""
        if touched != self.now:
            files.write_whole(self.path, msgspec.json.encode(touched))
            self.now = touched

    def begin(self, cluster: str, order: str, partitions: tuple[str, ...]) -> None:
        """What is done from now on."""
        self.write(msgspec.structs.replace(self.now, cluster=cluster, order=order, partitions=partitions))

    def forget_mark(self) -> None:
        self.write(msgspec.structs.replace(self.now, mark=0))

    def close(self) -> None:
        self._lock.release()


def read(path: Path) -> Touched:
    """Raises TouchedProblem; a file that is not there lists nothing."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise TouchedProblem(f"{path}: more than {FILE_BYTES_MAX >> 20} MiB")
        found = msgspec.json.decode(path.read_bytes(), type=Touched, strict=False)
    except FileNotFoundError:
        return Touched()
    except (OSError, msgspec.DecodeError) as error:
        raise TouchedProblem(f"{path}: {error}") from None
    if found.version > VERSION:
        raise TouchedProblem(f"{path}: written by a newer cotenant (version {found.version})")
    return found
