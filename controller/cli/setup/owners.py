"""Who owns the controller and agent that `cotenant run` or `cotenant up` started here.

Rule: an `up` holds a file beside its socket as long as it lives, one name if a person started it and another
if `run` did. `down` asks only the holder to end, and that ends what it started, in order.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Final, NamedTuple

from cotenant.controller.cli.frame import daemons
from cotenant.controller.present.problem import Problem
from cotenant.controller.system import paths
from cotenant.controller.system.endpoint import is_system_socket, prepare_folder, socket_path
from cotenant.controller.system.locks import Lock, LockTaken, is_free

ENDS_WITHIN_S: Final = 45.0
"""Enough for it to stop an agent and a controller, one after the other."""
VERBS: Final = ("up", "run")


class UpProcess(NamedTuple):
    verb: str
    """The verb that started it."""
    pid: int
    lock: Path


def own(where: str, verb: str) -> Lock:
    """Takes the lock on an endpoint's cluster for `verb`. Raises Problem: another process starts or keeps a
    cluster at this endpoint."""
    try:
        return Lock(_lock(where, verb))
    except LockTaken as taken:
        raise Problem(
            "refused", f"`cotenant up` keeps a controller at {where} already (pid {taken.pid})", _ENDING
        ) from None


def owner(where: str) -> UpProcess | None:
    """The process that keeps a cluster at an endpoint. None: nobody does, or it is another kind of cluster
    (`cotenant controller`, a service manager's)."""
    for verb in VERBS:
        path = _lock(where, verb)
        if not path.exists():
            continue
        try:
            Lock(path).release()
        except LockTaken as taken:
            if taken.pid:
                return UpProcess(verb, taken.pid, path)
    return None


def end(found: UpProcess) -> None:
    """Returns once it has ended, and what it started with it.

    Raises:
        Problem: it does not end in time.
    """
    try:
        os.kill(found.pid, signal.SIGTERM)  # It held its lock a moment ago, so the pid is still its own.
    except ProcessLookupError:
        return
    if not daemons.wait_until(lambda: is_free(found.lock), ENDS_WITHIN_S):
        raise Problem(
            "failed",
            f"`cotenant {found.verb}` (pid {found.pid}) did not end within {ENDS_WITHIN_S:.0f} s",
            f"look at it: ps -fp {found.pid}",
        )


_ENDING: Final = "use it, or end it: cotenant down"


def _lock(where: str, verb: str) -> Path:
    socket = socket_path(where)
    if socket is None or is_system_socket(socket):
        return paths.runtime_dir() / f"{re.sub(r'[^A-Za-z0-9]+', '-', where)}.{verb}.lock"
    prepare_folder(socket)
    return socket.with_name(f"{socket.name}.{verb}.lock")
