"""Processes of the script: each with a time limit, all ended by their ids, whoever their parent was.

Rule: whoever calls `adopt_orphans` becomes the parent of everything below that loses its own, daemons
included, and so nothing that was started can be out of reach.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

SET_PDEATHSIG: Final = 1
SET_CHILD_SUBREAPER: Final = 36
GRACE_S: Final = 4.0
"""A question that is cut off ends its daemons and loads in so long, or is killed with them."""
OUTPUT_BYTES_MAX: Final = 1 << 20


class Ended(NamedTuple):
    """How a child ended."""

    code: int | None
    """None: its time was over."""
    took_s: float


def adopt_orphans() -> None:
    """This process takes in whoever below it loses its parent."""
    ctypes.CDLL(None, use_errno=True).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent(parent: int) -> None:
    """This process is asked to end when its parent is gone: a script that was killed leaves no question."""
    ctypes.CDLL(None, use_errno=True).prctl(SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit("the script is gone")


def run(words: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path, limit_s: float) -> Ended:
    """Run a child to its end or to its limit; then end everything below this process."""
    began_s = time.monotonic()
    with log.open("ab") as said:
        child = subprocess.Popen(
            words, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            start_new_session=True,
        )  # fmt: skip
        code: int | None
        try:
            code = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
            child.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(GRACE_S)
        finally:
            end_below(os.getpid())
            if child.poll() is None:
                child.kill()
            child.wait()
    if log.stat().st_size > OUTPUT_BYTES_MAX:
        log.write_bytes(log.read_bytes()[-OUTPUT_BYTES_MAX:])
    return Ended(code, time.monotonic() - began_s)


def below(pid: int) -> list[int]:
    """All descendants of a process, those nearest to it first."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if fields[0] not in "ZX":
                    parents.setdefault(int(fields[1]), []).append(int(folder.name))
    found, waiting = [], [pid]
    while waiting:
        children = parents.get(waiting.pop(0), [])
        found += children
        waiting += children
    return found


def end_below(pid: int, within_s: float = 3.0) -> None:
    """Kill all descendants of this process and bury them. Whoever is left then hangs in the driver."""
    until_s = time.monotonic() + within_s
    while (left := below(pid)) and time.monotonic() < until_s:
        for each in left:
            with contextlib.suppress(OSError):
                os.kill(each, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)
