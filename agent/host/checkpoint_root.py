"""The folder for checkpoints: whether it works, and which hosts see the same one.

Rule: hosts share a root only if they read the same random name from it; nobody has to configure that, or can
claim it wrongly. The first agent makes the name, once and whole.
"""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

from cotenant.agent.host.user_files import OpenFolder

NAME_FILE: Final = ".cotenant-root"
HOSTS_FOLDER: Final = ".cotenant-hosts"
_NAME_BYTES_MAX: Final = 64


class BadRoot(OSError):
    """A checkpoint root that cannot be used; the text says why and what to do."""


def domain_of(root: Path, host_id: str) -> str:
    """Returns the name of the checkpoint root; the name is equal on every host that sees the same file system
    there.

    Raises:
        BadRoot: the root cannot be made, read or written.
    """
    try:
        root.mkdir(mode=0o755, parents=True, exist_ok=True)
        with OpenFolder.open_path(root) as folder:
            name = _read_or_make(folder)
            with folder.make(HOSTS_FOLDER, 0o755) as hosts:
                # Proves that we can write, and tells people who is here.
                hosts.write(host_id, f"{name}\n".encode())
    except OSError as error:
        raise BadRoot(
            f"checkpoint root {root} cannot be used ({error.strerror or error}): no job can save there; "
            "set checkpoint.root to a folder that this agent can write to"
        ) from None
    return name


def _read_or_make(root: OpenFolder) -> str:
    """The name in the file. Made whole under another name and linked, so that half of it is never read."""
    with suppress(FileNotFoundError):
        return _read(root)
    fresh = f".{uuid.uuid4().hex}"
    root.write(fresh, f"{uuid.uuid4().hex[:16]}\n".encode())
    try:
        with suppress(FileExistsError):  # Another host was first.
            root.link(fresh, NAME_FILE)
    finally:
        root.unlink(fresh)
    return _read(root)


def _read(root: OpenFolder) -> str:
    name = root.read(NAME_FILE, _NAME_BYTES_MAX).decode("ascii", errors="replace").strip()
    if not name.isalnum() or not name.isascii():
        raise OSError(22, f"{NAME_FILE} is damaged: remove it if no job has checkpoints there")
    return name


def make_checkpoint_folder(folder: Path, uid: int, gid: int) -> None:
    """A job's own folder, for its user alone, in the journal's folder, in the root.

    Raises:
        OSError: it cannot be made, or something else is in its place.
    """
    root = folder.parent.parent
    root.mkdir(mode=0o755, parents=True, exist_ok=True)
    owner = (uid, gid) if os.geteuid() == 0 and uid != 0 else None
    with OpenFolder.open_path(root) as top, top.make(folder.parent.name, 0o755) as journal:
        journal.make(folder.name, 0o700, owner).close()
