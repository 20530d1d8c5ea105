"""What a process gives up for good, and whose life its own is tied to."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
_libc = ctypes.CDLL(None, use_errno=True)


def drop_to(uid: int, gid: int, groups: tuple[int, ...]) -> None:
    """Become the job's user, for good. Without root there is nothing to drop."""
    if os.geteuid() != 0:
        return
    os.setgroups(groups or (gid,))
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def die_with(parent: int) -> None:
    """After the change of user, which clears it."""
    if _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:  # It died before we asked to be told.
        os._exit(126)


def become_subreaper() -> None:
    """Makes orphans below us, from now on, become our children instead of init's."""
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become a subreaper")
