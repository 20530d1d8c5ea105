"""`cotenant` command lines, forked from one interpreter that has imported it: for tests of no start.

Rule: whoever asks again and again until something is so must not keep a core busy with starts of Python. Each
command line is a process with its own folder, environment and pipes; only its imports are made already.
Run as a program this module is that interpreter: one request per message, with the caller's stdout and
stderr. It carries no mark of a test, and ends with the process that made it.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cotenant.controller.cli.verbs import BY_NAME

REQUEST_BYTES_MAX: Final = 1 << 20
FOLDERS: Final = ("jobs", "cluster")
"""Of verbs that are asked often: what they import is imported once. Who asks for others says so."""
ENVIRONMENT: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
"""What the interpreter itself may know. It outlives the module that asks first: whatever that one has set for
its own time (a library's folder, a mark) must not stay."""


class Said(NamedTuple):
    code: int
    out: str
    err: str


class WarmCommandLine:
    """Answers one command line after the other."""

    def __init__(self, folders: Sequence[str] = FOLDERS) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            words = (sys.executable, "-m", __name__, str(theirs.fileno()), *folders)
            root = str(Path(__file__).resolve().parents[2])
            env = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
            env["PYTHONPATH"] = os.pathsep.join((*filter(None, sys.path), root))
            self._process = subprocess.Popen(
                words,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env=env,
                cwd="/",
                start_new_session=True,
            )
        self._socket = ours

    def __call__(self, words: Sequence[str], *, env: Mapping[str, str], cwd: Path, timeout_s: float) -> Said:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            request = json.dumps({"words": list(words), "env": dict(env), "cwd": str(cwd)}).encode()
            self._socket.settimeout(timeout_s)
            socket.send_fds(self._socket, [request], [out.fileno(), err.fileno()])
            answer = self._socket.recv(64)
            assert answer, f"the warm interpreter ended with {self._process.wait()}"
            out.seek(0)
            err.seek(0)
            texts = [each.read().decode(errors="replace") for each in (out, err)]
        return Said(int(answer), *texts)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


def serve(peer: socket.socket, folders: Sequence[str]) -> None:
    """Until the caller hangs up."""
    for verb in BY_NAME.values():
        if verb.module.partition(".")[0] in folders:
            importlib.import_module(f"cotenant.controller.cli.{verb.module}")
    while True:
        data, streams, _, _ = socket.recv_fds(peer, REQUEST_BYTES_MAX, 2)
        if not data:
            return
        pid = os.fork()
        if not pid:
            peer.close()
            run(json.loads(data), streams)
        for stream in streams:
            os.close(stream)
        _, status = os.waitpid(pid, 0)
        peer.send(str(os.waitstatus_to_exitcode(status)).encode())


def run(request: dict[str, object], streams: Sequence[int]) -> None:
    """In the child, which ends here."""
    from cotenant.controller.cli.main import main

    code = 1
    try:
        os.setsid()  # What it leaves behind is its own, not the interpreter's.
        os.dup2(streams[0], 1)
        os.dup2(streams[1], 2)
        os.environ.clear()
        os.environ.update(request["env"])  # type: ignore[call-overload]
        os.chdir(str(request["cwd"]))
        code = main(request["words"])  # type: ignore[arg-type]
    except BaseException:  # noqa: BLE001  # we stand in for the interpreter here
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
