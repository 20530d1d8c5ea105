"""In a launcher (torchrun) that was started warm: its workers are forked by the nanny instead of executed.

Rule: to the launcher a forked worker is what `subprocess.Popen` returns; where one cannot be forked, it is
executed as ever. The launcher has threads of torch's by then, so it does not fork itself.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HANDLER = "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"


class NotForked(Exception):
    """The worker is to be executed."""


class ForkedWorker:
    """A forked worker with as much of `Popen` as a launcher uses."""

    def __init__(
        self,
        asks: socket.socket,
        first_word_s: float,
        args: list[str],
        env: dict[str, str],
        stdout: Any,
        stderr: Any,
    ) -> None:
        """Asks the nanny for a fork and waits until the worker is up. Raises NotForked, OSError."""
        self.args = args
        self.returncode: int | None = None
        self._words, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        gate, opened = os.pipe()
        request = {
            "argv": args,
            "env": env,
            "workdir": os.getcwd(),
            "umask": _umask(),
            "cores": sorted(os.sched_getaffinity(0)),
        }
        text = os.memfd_create("worker")
        try:
            with theirs:
                os.write(text, json.dumps(request).encode())
                outputs = [1 if stdout is None else stdout.fileno(), 2 if stderr is None else stderr.fileno()]
                socket.send_fds(asks, [b"worker"], [text, *outputs, gate, theirs.fileno()])
            word = self._heard(first_word_s)
            if word is None or word.get("m") != "up":
                raise NotForked
            self.pid = int(word["pid"])
            os.write(opened, b".")
        finally:
            for each in (gate, opened, text):
                os.close(each)

    def poll(self) -> int | None:
        return self._wait_end(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._wait_end(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _wait_end(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            word = self._heard(timeout)
            if word is not None:
                self.returncode = int(word.get("code", -signal.SIGKILL))
                self._words.close()
        return self.returncode

    def _heard(self, timeout: float | None) -> dict[str, Any] | None:
        """The next word of the worker; empty when there is nobody to say one, None when none has come in
        time."""
        ready = select.select([self._words], [], [], timeout)[0]
        if not ready:
            return None
        try:
            data = self._words.recv(4096)
            return dict(json.loads(data)) if data else {}
        except (OSError, ValueError, RecursionError):
            return {}


def _umask() -> int:
    now = os.umask(0o077)
    os.umask(now)
    return now


def install(asks: socket.socket, first_word_s: float) -> None:
    """If torch is here at all, and is one whose workers are made where we think."""
    if "torch" not in sys.modules:
        return
    try:
        handler: Any = importlib.import_module(HANDLER).SubprocessHandler
        plain = handler._popen
    except (ImportError, AttributeError):
        return

    def popen(self: Any, args: Any, env: dict[str, str]) -> Any:
        try:
            return ForkedWorker(asks, first_word_s, list(args), dict(env), self._stdout, self._stderr)
        except (NotForked, OSError, ValueError):
            return plain(self, args, env)

    handler._popen = popen
