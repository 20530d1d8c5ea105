"""The container that a job's commands run in: which image, and what of its hosts is mounted.

Rule: a mount never hides what the kernel or cotenant put there. GPUs come from the placement alone, so no
mount is, lies in or contains /dev. A path is judged without `//` and `/.`; its host judges it once more
with its links followed, as the job's user, and refuses what that user may not read.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

FILE_SUFFIXES: Final = (".sif", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.zst")
_NAME: Final = re.compile(
    r"[A-Za-z0-9][\w.-]*(:\d+(?=/))?(/[a-z0-9][\w.-]*)*(:\w[\w.-]{0,127})?(@sha256:[0-9a-f]{64})?", re.ASCII
)
_KERNELS: Final = ("/proc", "/sys", "/dev")
_ESSENTIAL: Final = ("/", "/usr", "/bin", "/lib", "/lib64", "/etc", "/run")


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """A file or folder of the job's host that its container sees."""

    source: str
    target: str
    read_only: bool = False

    def __post_init__(self) -> None:
        for path in (self.source, self.target):
            if not path.startswith("/") or ".." in path.split("/") or re.search(r"[\0\n\r\"]", path):
                raise ValueError(f"must name absolute paths without `..` and quotes, got {path!r}")
            if is_below(path, *_KERNELS):
                raise ValueError(f"must not touch {path}: /proc, /sys and /dev are the kernel's")
        if plain_path(self.source) == "/":
            raise ValueError(
                "must not mount / as a whole: it contains /proc, /sys and /dev; name its folders"
            )
        if plain_path(self.target) in _ESSENTIAL:
            raise ValueError(f"must not replace {self.target} of the image: give another folder in it")


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """An image, and the mounts that its user asks for."""

    image: str
    """A name, with its registry's if need be; or the absolute path of an archive or a .sif on the host."""
    mounts: tuple[Mount, ...] = ()

    def __post_init__(self) -> None:
        if not self.is_file and (len(self.image) > 512 or not _NAME.fullmatch(self.image)):
            raise ValueError(
                f"{self.image[:80]!r} is no image: give a name such as pytorch/pytorch:2.9, or a file"
            )
        if self.is_file and not self.image.endswith(FILE_SUFFIXES):
            raise ValueError(
                f"the image {self.image} must be an archive ({', '.join(FILE_SUFFIXES[1:])}) or a .sif"
            )

    @property
    def is_file(self) -> bool:
        return self.image.startswith("/")

    @property
    def feature(self) -> str:
        """The feature of hosts that can run it."""
        return "apptainer" if self.image.endswith(".sif") else CONTAINERS


CONTAINERS: Final = "container"
"""The feature of hosts that can run containers."""
RUNTIMES: Final = ("podman", "apptainer", "docker")
"""The programs that can, each a feature as well; a host prefers the first that it has."""


def plain_path(path: str) -> str:
    """An absolute path without empty parts and dots."""
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def is_below(path: str, *folders: str) -> bool:
    """Whether an absolute path is one of the folders, or in one."""
    return any(f"{plain_path(path)}/".startswith(f"{plain_path(folder)}/") for folder in folders)
