"""What the job's user needs on disk: a folder for the sockets, log files, a place for `--output`.

Rule: the attempt's folder belongs to the agent, and what is in it stays closed to the job (`order.json`
holds its environment, and logs and results must not be changed). Only `job/` is the
user's, and only once everything in it is made: from then on it is used by its descriptor (`user_files.py`).
As root, nothing is ever opened on the user's behalf with root's rights.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from cotenant.agent.host.user_files import OpenFolder, find_exposed, remove_tree
from cotenant.agent.ipc.records import JOB, JOB_SOCKET, Order
from cotenant.checkpoint.talk.protocol import BEAT_FILE

ADDRESS_BYTES_MAX: Final = 107
"""The kernel's limit for a Unix socket's path; libraries in other processes have to fit it."""
_LONGEST_NAME: Final = "rank-1000000.sock"
SHORT_BASES: Final = ("/run/user/{uid}", "/tmp", "/var/tmp")
_SHORT_NAME: Final = re.compile(r"cotenant-[0-9a-f]{12}")
_INNER: Final = "j"
"""In a short folder, which stays ours: a user who owned that one could put another in its place."""


def owner_of(order: Order) -> tuple[int, int] | None:
    """Returns the user and the group that files are given to; None if they are ours already."""
    is_other = os.geteuid() == 0 and order.launch.uid != 0
    return (order.launch.uid, order.launch.gid) if is_other else None


def make_job_folder(folder: Path, order: Order, bases: Sequence[str] = SHORT_BASES) -> Path:
    """`job/`, closed to everybody, and ours until `give_job_folder`. Its path fits a socket's address: if the
    attempt's folder is too deep, or lies where the job's user may not go, it is a link to a folder that is
    neither.
    """
    owner = owner_of(order)
    own = folder / JOB
    fits = len(os.fsencode(own / _LONGEST_NAME)) <= ADDRESS_BYTES_MAX
    with OpenFolder.open_path(folder) as attempt:
        if fits and (owner is None or _may_pass(folder, owner[0])):
            attempt.make(JOB, 0o700).close()
            return own
        made = _short_folder(owner, bases)
        os.symlink(made, JOB, dir_fd=attempt.fd)
    return made


def give_job_folder(job_folder: OpenFolder, order: Order) -> None:
    """Sending to a socket needs the right to write to its file, and a rank writes its beat. The folder goes
    last: until then nobody else can have changed what is in it."""
    owner = owner_of(order)
    if owner is not None:
        for name in (JOB_SOCKET, BEAT_FILE):
            os.chown(name, *owner, dir_fd=job_folder.fd, follow_symlinks=False)
        os.fchown(job_folder.fd, *owner)


def remove_short_folder(folder: Path) -> None:
    """The sockets' folder, where it had to be outside the attempt's own. What the link says is trusted, for
    it is in our folder; what is found there is not. A user who fills it meanwhile keeps it, and delays no
    end.
    """
    with suppress(OSError), OpenFolder.open_path(folder) as attempt:
        said = Path(os.readlink(JOB, dir_fd=attempt.fd))  # An OSError: `job/` is a folder, or not there.
        attempt.unlink(JOB)
        if said.name == _INNER and _SHORT_NAME.fullmatch(said.parent.name):
            remove_tree(said.parent)


def open_output(path: Path, order: Order) -> int:
    """The user's own output file, opened for appending with the user's rights.

    Raises:
        OSError: they may not write there.
    """
    with _acting_as(order):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
        return os.open(path, flags, 0o644)


@contextmanager
def _acting_as(order: Order) -> Iterator[None]:
    """Have the user's rights for a moment. The real uid stays root's, so the user cannot touch us."""
    owner = owner_of(order)
    if owner is None:
        yield
        return
    groups = os.getgroups()
    os.setgroups(order.launch.groups or (owner[1],))
    os.setegid(owner[1])
    os.seteuid(owner[0])
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def _may_pass(folder: Path, uid: int) -> bool:
    """Whether a user can reach what is in a folder, as far as the mode bits say."""
    for each in (folder, *folder.parents):
        stat = each.stat()
        if not stat.st_mode & (0o100 if stat.st_uid == uid else 0o001):
            return False
    return True


def _short_folder(owner: tuple[int, int] | None, bases: Sequence[str]) -> Path:
    for base in (Path(pattern.format(uid=os.geteuid())) for pattern in bases):
        name = f"cotenant-{os.urandom(6).hex()}"
        try:
            if find_exposed(base) is not None or (owner is not None and not _may_pass(base, owner[0])):
                continue
            with OpenFolder.open_path(base) as there, there.make(name, 0o711) as short:
                os.fchmod(short.fd, 0o711)
                short.make(_INNER, 0o700).close()
        except OSError:
            continue
        return base / name / _INNER
    raise OSError(f"no place for sockets: tried {', '.join(bases)}")
