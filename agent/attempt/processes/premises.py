"""What the job's user needs on disk: a folder for the sockets, log files, a place for `--output`.

Rule: the attempt's folder belongs to the agent, and what is in it stays closed to the job (`order.json`
holds secrets, also those of nobody else, but logs and results must not be changed). Only `job/` is the
user's. As root, nothing is ever opened on the user's behalf with root's rights.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cotenant.agent.folder import JOB, JOB_SOCKET
from cotenant.agent.records import Order

ADDRESS_BYTES_MAX: Final = 107
"""The kernel's limit for a Unix socket's path; libraries in other processes have to fit it."""
_LONGEST_NAME: Final = "rank-1000000.sock"
_SHORT_BASES: Final = ("/run/user/{uid}", "/tmp", "/var/tmp")


def owner_of(order: Order) -> tuple[int, int] | None:
    """Whom files are given to; None if they are ours already."""
    is_other = os.geteuid() == 0 and order.launch.uid != 0
    return (order.launch.uid, order.launch.gid) if is_other else None


def make_job_folder(folder: Path, order: Order) -> Path:
    """`job/`, closed to everybody but the job's user. Its path fits a socket's address: if the attempt's
    folder is too deep, or lies where that user may not go, it is a link to a folder that is neither."""
    owner = owner_of(order)
    own = folder / JOB
    fits = len(os.fsencode(own / _LONGEST_NAME)) <= ADDRESS_BYTES_MAX
    if fits and (owner is None or _may_pass(folder, owner[0])):
        own.mkdir(mode=0o700, exist_ok=True)
        made = own
    else:
        made = _short_folder(order.launch.uid if owner else os.geteuid())
        own.unlink(missing_ok=True)
        own.symlink_to(made)
    if owner is not None:
        os.chown(made, *owner)
    return made


def give_socket(job_folder: Path, order: Order) -> None:
    """Sending to a socket needs the right to write to its file."""
    path = job_folder / JOB_SOCKET
    path.chmod(0o600)
    owner = owner_of(order)
    if owner is not None:
        os.chown(path, *owner, follow_symlinks=False)


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


def _short_folder(uid: int) -> Path:
    for base in (pattern.format(uid=uid) for pattern in _SHORT_BASES):
        made = Path(base) / f"cotenant-{os.urandom(6).hex()}"
        try:
            made.mkdir(mode=0o700)
        except OSError:
            continue
        return made
    raise OSError(f"no place for sockets: tried {', '.join(_SHORT_BASES)}")
