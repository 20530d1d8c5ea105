"""Starting one fork server as the user whose jobs it is for, and listening to it.

Rule: the agent reads nothing of the user's: the new process finds the interpreter in the user's PATH, with
the user's rights. The listening socket is ours, in a folder that only we can enter, so that no user can
replace it. A
server is killed when the agent dies, and ends when it lets go of its socket.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from cotenant.agent.ipc.channel import short_address
from cotenant.agent.warm.pool import LATE, LATE_PREFIXES, ServerKind
from cotenant.controller.wire import BadMessage, decode_json
from cotenant.mps.environment import NOT_A_CLIENT

FOLDER: Final = "warm"
"""In the job-side folder, beside what is on a job's PYTHONPATH."""
PACKAGE: Final = "cotenant_forkserver"
SIGN: Final = "COTENANT_SOCKET"
SIGN_BYTES: Final = 512
OUTPUT_BYTES_MAX: Final = 65536
MODULES_MAX: Final = 10_000
MODULES_BYTES_MAX: Final = 512 * 1024
TORCH: Final = "torch.distributed"
TORCHRUN: Final = "torch.distributed.run"
"""Imported where torch is, as `python` and torchrun are of one kind, and only the first of them has told."""
MODULE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_BACKLOG: Final = 64
END_S: Final = 1.0
_BOOT: Final = """\
import sys
if sys.path[:1] == ['']: del sys.path[0]
sys.path.insert(0, {folder!r})
from {package}.server import main
sys.path.remove({folder!r})
main()()
"""


class ServerWord(msgspec.Struct, frozen=True, kw_only=True):
    m: str
    code: str = ""
    detail: str = ""


def module_names(data: bytes) -> tuple[str, ...]:
    """What a rank has written down: foreign."""
    try:
        names: list[str] = decode_json(data, list[str])
    except BadMessage:
        return ()
    return tuple(name for name in names[:MODULES_MAX] if len(name) < 200 and MODULE.fullmatch(name))


class ForkServer:
    """A process that forks workers. `fileno` is readable when it has a word for us, or has ended."""

    def __init__(self, kind: ServerKind, modules: tuple[str, ...], jobside: Path, address: Path) -> None:
        """Starts the server's process. Raises OSError: it cannot be started, FileNotFoundError: there is no
        such interpreter."""
        self.kind = kind
        self.address = address
        ours, theirs = socket.socketpair()
        wanted = _write_wanted(kind, modules)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        output, written = os.pipe2(os.O_CLOEXEC)
        try:
            with short_address(address) as where:
                listener.bind(where)
            listener.listen(_BACKLOG)
            boot = _BOOT.format(folder=str(jobside / FOLDER), package=PACKAGE)
            words = [kind.interpreter, *kind.options, "-c", boot]
            fds = (theirs.fileno(), listener.fileno(), wanted)
            words += [*map(str, fds), str(os.getpid())]
            self._process = _spawn_server(kind, words, fds, written)
            _weigh(self._process.pid, LAST_NICE)
        except OSError:
            os.close(output)
            ours.close()
            with suppress(OSError):
                address.unlink()
            raise
        finally:
            for each in (theirs, listener):
                each.close()
            os.close(written)
            os.close(wanted)
        os.set_blocking(output, False)
        self.output = output
        """What imports print: read, so that none of them waits for a reader."""
        ours.setblocking(False)
        self._socket = ours
        self._heard = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        return self._socket.fileno()

    def read(self) -> ServerWord | None:
        """The server's next message; `ended` when none will come, None while it is incomplete."""
        try:
            data = self._socket.recv(65536)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            return ServerWord(m="ended")
        self._heard = (self._heard + data)[-OUTPUT_BYTES_MAX:]
        line, end, self._heard = self._heard.partition(b"\n")
        if not end:
            self._heard = line
            return None
        try:
            word: ServerWord = decode_json(line, ServerWord)
        except BadMessage:
            return ServerWord(m="ended")
        if word.m == "ready":  # From now on a start waits for it.
            _weigh(self._process.pid, USUAL_NICE)
        return word

    def drain(self) -> bool:
        """Reads what was printed, which nobody wants; whether more may come."""
        try:
            return bool(os.read(self.output, OUTPUT_BYTES_MAX))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def close(self) -> None:
        """Lets the server go: it ends, if it has not. What it forked lives on."""
        self._socket.close()
        os.close(self.output)
        with suppress(OSError):
            self.address.unlink()
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):  # Waits for a disk, perhaps; reaped with the next one.
            self._process.wait(END_S)


def _write_wanted(kind: ServerKind, modules: tuple[str, ...]) -> int:
    """A file with what it is to import: nobody has to wait until it can read."""
    modules = (*modules, TORCHRUN) if TORCH in modules else modules
    wanted = {"modules": modules, "env": kind.env, "late": sorted(LATE), "late_prefixes": LATE_PREFIXES}
    wanted["fence"] = NOT_A_CLIENT
    file = os.memfd_create("wanted", os.MFD_CLOEXEC)
    os.write(file, json.dumps(wanted).encode())
    return file


LAST_NICE: Final = "19"
USUAL_NICE: Final = "0"


def _weigh(pid: int, nice: str) -> None:
    """Sets how much of a busy core a server has: the least while it imports, so that those who train go
    first, and as much as they once it serves. Linux weighs sessions against each other by the niceness of
    their autogroups, where it has them; what is forked later begins a session and a weight of its own."""
    with suppress(OSError):
        (Path("/proc") / str(pid) / "autogroup").write_text(nice)


def _spawn_server(
    kind: ServerKind, words: list[str], fds: tuple[int, ...], output: int
) -> subprocess.Popen[bytes]:
    is_other = os.geteuid() == 0 and kind.uid != 0
    return subprocess.Popen(
        words,
        cwd="/",
        env={**kind.env, SIGN: "-" * SIGN_BYTES},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        pass_fds=fds,
        user=kind.uid if is_other else None,
        group=kind.gid if is_other else None,
        extra_groups=(kind.groups or (kind.gid,)) if is_other else None,
        umask=0o022,
    )
