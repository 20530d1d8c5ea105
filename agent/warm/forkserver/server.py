"""The fork server of one user and one environment.

Rule: it imports packages of the environment and does nothing else: no code of the user, no working directory,
no tensor operation. It has one thread and no signal handler. It is ready only if `safety.py` found nothing,
and looks at each start whether a file that it has imported from was changed since. It ends with its agent.

Our arguments are descriptors: the agent's socket, which hears `ready` or `refused` and says no more than that
we may go; a listening socket (SEQPACKET) to which supervisors come, each with one request in a memory file,
followed by the descriptors of its ranks' outputs; a memory file with what to import; and the agent's pid.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import types

from . import nanny, safety

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SIGN = "COTENANT_SOCKET"
REQUEST_BYTES_MAX = 8 * 1024 * 1024
DESCRIPTORS_MAX = 66
"""In one request: its text, an output for each rank, and rank 0's errors."""


def main() -> Callable[[], None]:
    """Returns in a rank alone, with what is to be run."""
    agent = socket.socket(fileno=int(sys.argv[1]))
    listener = socket.socket(fileno=int(sys.argv[2]))
    _die_with(int(sys.argv[4]))
    sign = _sign_address()
    wanted = json.loads(os.pread(int(sys.argv[3]), REQUEST_BYTES_MAX, 0))
    os.close(int(sys.argv[3]))
    try:
        added, packages = _prepare(wanted)
    except safety.Unsafe as found:
        _tell(agent, {"m": "refused", "code": found.code, "detail": str(found)})
        os._exit(0)  # An import may have registered something for the exit.
    _tell(agent, {"m": "ready", "modules": len(sys.modules)})
    return _serve(agent, listener, Forked(sign, added, wanted), packages)


class Forked:
    """What a nanny and its ranks need from us."""

    def __init__(self, sign: int, added: dict[str, str], wanted: dict[str, Any]) -> None:
        self.sign_address = sign
        self.added = added
        """Variables that imports have set: a cold rank would have them as well."""
        self._early = {**wanted["env"], **added}
        self._late = frozenset(wanted["late"])
        self._late_prefixes = tuple(wanted["late_prefixes"])

    def serves(self, env: dict[str, str]) -> bool:
        """Whether a process with this environment would have imported the same."""
        early = {
            name: value
            for name, value in env.items()
            if name not in self._late and not name.startswith(self._late_prefixes)
        }
        return {**self._early, **early} == self._early


def _sign_address() -> int:
    """Where in our own memory the kernel reads the variable by which an attempt's processes are known."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    address = getenv(SIGN.encode())
    os.environ.pop(SIGN, None)
    return int(address or 0)


def _die_with(agent: int) -> None:
    """Makes this process die with the agent, even in the middle of an import. What is forked does not inherit
    it."""
    ctypes.CDLL(None).prctl(nanny.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != agent:
        os._exit(0)


def _prepare(wanted: dict[str, Any]) -> tuple[dict[str, str], safety.Packages]:
    """Imports the modules, and looks whether that was safe. Raises safety.Unsafe."""
    late = frozenset(wanted["late"])
    late_prefixes = tuple(wanted["late_prefixes"])
    before = safety.Before(dict(wanted["env"]))
    for name, value in wanted["fence"].items():  # Only C code sees it: an import may list `os.environ`.
        os.putenv(name, value)
    with safety.watched_environment(late, late_prefixes) as seen:
        for name in wanted["modules"]:
            try:
                importlib.import_module(name)
            except Exception:  # noqa: BLE001  # It will be imported by who needs it, or fail there.
                continue
            except BaseException as error:  # noqa: BLE001  # SystemExit, say.
                raise safety.Unsafe("import-ends", f"{name}: {type(error).__name__}") from None
    for name in wanted["fence"]:
        os.unsetenv(name)
    added = before.changes(seen)
    packages = safety.Packages()
    _freeze()
    return added, packages


def _freeze() -> None:
    """Take what the imports made from the collector: a rank that looks at it copies it.

    What stays frozen is not freed at a rank's end if it is part of a cycle. That is given up only where
    somebody would see it, for looking at it all costs as much as a second at the end.
    """
    gc.collect()
    if any(map(_is_missed_unless_freed, {type(each) for each in gc.get_objects()})):
        atexit.register(gc.unfreeze)  # The ranks'; our own end runs nothing.
    gc.freeze()


def _is_missed_unless_freed(kind: type) -> bool:
    """Whether objects of this kind run Python when they are freed, or are nanobind's (triton), which reports
    leaks."""
    if "nanobind" in (kind.__module__, type(kind).__module__):
        return True
    return any(isinstance(vars(base).get("__del__"), types.FunctionType) for base in kind.__mro__)


def _serve(
    agent: socket.socket, listener: socket.socket, forked: Forked, packages: safety.Packages
) -> Callable[[], None]:
    listener.setblocking(False)
    waiting = select.poll()
    for each in (agent, listener):
        waiting.register(each, select.POLLIN)
    while True:
        ready = {fd for fd, _ in waiting.poll(1000)}
        _reap()
        if agent.fileno() in ready and not _is_wanted(agent):
            os._exit(0)
        if listener.fileno() in ready:
            try:
                connection, _ = listener.accept()
            except OSError:
                continue
            with connection:
                run = _answer(connection, forked, packages, (agent, listener))
            if run is not None:
                return run


def _is_wanted(agent: socket.socket) -> bool:
    """The agent says nothing more: when it is gone, or closes the socket, we end."""
    try:
        return bool(agent.recv(4096))
    except OSError:
        return False


def _answer(
    connection: socket.socket,
    forked: Forked,
    packages: safety.Packages,
    ours: tuple[socket.socket, ...],
) -> Callable[[], None] | None:
    """Fork a nanny for one request; returns in a rank, and in the server. While it comes up we look whether
    what we have imported is still there: no rank runs before we have said so."""
    connection.settimeout(1.0)
    descriptors: list[int] = []
    try:
        _, descriptors, _, _ = socket.recv_fds(connection, 64, DESCRIPTORS_MAX)
        if not descriptors:
            return None
        request = json.loads(os.pread(descriptors[0], REQUEST_BYTES_MAX, 0))
        if os.fork() == 0:
            for each in ours:
                each.close()
            os.close(descriptors.pop(0))
            outputs, descriptors = descriptors, []  # They are the nanny's to close, and its ranks'.
            connection.settimeout(None)
            return nanny.main(connection, request, outputs, forked)
        stale = packages.stale()
        if stale:
            _tell(connection, {"m": "refused", "code": "stale", "detail": stale})
            os._exit(0)  # None of those that come would be served.
        _tell(connection, {"m": "fresh"})
    except (OSError, ValueError, RecursionError):
        return None  # The supervisor sees that nobody answers, and starts it cold.
    finally:
        for descriptor in descriptors:
            _close(descriptor)
    return None


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)


def _reap() -> None:
    """Reaps nannies that have ended. Nobody needs their exit codes from us."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


def _tell(connection: socket.socket, message: dict[str, Any]) -> None:
    try:
        connection.sendall(json.dumps(message).encode() + b"\n")
    except OSError:
        return
