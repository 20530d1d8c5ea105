"""Giving up rights in a new process, for good."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

PR_SET_PDEATHSIG: Final = 1
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
