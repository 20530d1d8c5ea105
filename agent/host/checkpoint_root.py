"""The folder for checkpoints: whether it works, and which hosts see the same one.

Rule: hosts share a root only if they read the same random name from it; nobody is asked to configure
that, and nobody can claim it wrongly. The name is made once, whole, by whoever comes first.
"""

from __future__ import annotations

import os
import stat
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

NAME_FILE: Final = ".cotenant-root"
HOSTS_FOLDER: Final = ".cotenant-hosts"
_NAME_BYTES_MAX: Final = 64


class BadRoot(OSError):
    """A checkpoint root that cannot be used; the text says why and what to do."""


def domain_of(root: Path, host_id: str) -> str:
    """The root's name; equal on every host that sees the same file system there.

    Raises:
        BadRoot: it cannot be made, read or written.
    """
    try:
        root.mkdir(mode=0o755, parents=True, exist_ok=True)
        name = _read_or_make(root / NAME_FILE)
        hosts = root / HOSTS_FOLDER
        hosts.mkdir(exist_ok=True)
        (hosts / host_id).write_text(f"{name}\n")  # Proves that we can write, and tells people who is here.
    except OSError as error:
        raise BadRoot(
            f"checkpoint root {root} cannot be used ({error.strerror or error}): no job can save there; "
            "set checkpoint.root to a folder that this agent can write to"
        ) from None
    return name


def _read_or_make(path: Path) -> str:
    """The name in the file. Made whole under another name and linked, so that nobody reads half of it."""
    with suppress(FileNotFoundError):
        return _read(path)
    fresh = path.with_name(f".{uuid.uuid4().hex}")
    fresh.write_text(f"{uuid.uuid4().hex[:16]}\n")
    try:
        with suppress(FileExistsError):  # Another host was first.
            os.link(fresh, path)
    finally:
        fresh.unlink()
    return _read(path)


def _read(path: Path) -> str:
    with path.open() as file:
        name = file.read(_NAME_BYTES_MAX).strip()
    if not name.isalnum():
        raise OSError(22, f"{path.name} is damaged: remove it if no job has checkpoints there")
    return name


def make_checkpoint_folder(folder: Path, uid: int, gid: int) -> None:
    """A job's own folder, for its user alone.

    Raises:
        OSError: it cannot be made, or something else is in its place.
    """
    folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    for each in (folder.parent, folder):  # A link that a user put there would lead root astray.
        if not stat.S_ISDIR(os.lstat(each).st_mode):
            raise NotADirectoryError(20, "not a folder", str(each))
    if os.geteuid() == 0 and uid != 0:
        os.chown(folder, uid, gid, follow_symlinks=False)
