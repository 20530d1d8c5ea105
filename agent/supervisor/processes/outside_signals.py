"""Signals to the supervisor itself that came from outside of its job: evidence that a host shuts down, or
that somebody ends all processes of an account.

Rule: the supervisor obeys none of them (`runtime.py`), so they are blocked and looked up: the kernel keeps
each with its sender. A process of the job's may send one too (`kill -TERM -1`); that is no evidence, and
neither is one of the job's user whose sender has ended, since nobody can tell whose it was.
"""

from __future__ import annotations

import signal
from collections.abc import Collection
from typing import Final

from cotenant.agent.host.process_identity import stat_of

HEARD: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def block_signals() -> None:
    """Keeps signals that ask to end until they are taken. Ranks unblock them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)


def take_outside_signals(uid: int, roots: Collection[int]) -> list[int]:
    """Takes what has come since the last call, without what the job's user or processes may have sent.
    `roots`: the processes that all of the job's descend from."""
    found = []
    while (heard := signal.sigtimedwait(HEARD, 0)) is not None:
        if heard.si_uid != uid or _runs_outside(heard.si_pid, roots):
            found.append(heard.si_signo)
    return found


def _runs_outside(pid: int, roots: Collection[int]) -> bool:
    """Whether a process runs that does not descend from any of the roots. 0: the kernel, or what we cannot
    see from our namespace."""
    known = stat_of(pid)
    while known is not None and known.pid not in roots and known.parent:
        known = stat_of(known.parent)
    return pid == 0 or (known is not None and known.pid not in roots)
