"""Asking the driver from a process that must not hang: in a child, with a time limit.

Rule: one that hangs is killed, and left behind where that does not help (it is stuck in the kernel until the
driver lets go). Only so many of those may be about before nobody is asked any more.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, TypeVar

import msgspec

from cotenant.profiler.driver.facts import DriverFacts

DRIVER_S_MAX: Final = 60.0
"""The first question after a boot may start the driver, which takes many seconds on large machines."""
KILL_WAIT_S: Final = 2.0
STUCK_MAX: Final = 4
REASON_CHARS: Final = 300

Answer = TypeVar("Answer", bound=msgspec.Struct)

_left_behind: list[subprocess.Popen[bytes]] = []


class NoAnswer(Exception):
    """Why there is none, for a person."""


def driver_facts(
    timeout_s: float = DRIVER_S_MAX, *, thorough: bool = False, words: Sequence[str] = ()
) -> DriverFacts:
    """What NVML says of this host's GPUs; `words` answer like `probe`, which they are by default."""
    usual = (sys.executable, "-m", "cotenant.profiler.driver.probe", *(("--thorough",) if thorough else ()))
    try:
        return ask(words or usual, DriverFacts, timeout_s)
    except NoAnswer as why:
        return DriverFacts(problem=str(why))


def ask(words: Sequence[str], kind: type[Answer], timeout_s: float, whom: str = "NVML") -> Answer:
    """What the program prints: one `kind` as JSON. Raises NoAnswer."""
    for child in [each for each in _left_behind if each.poll() is not None]:
        _left_behind.remove(child)
    if len(_left_behind) >= STUCK_MAX:
        raise NoAnswer(f"{len(_left_behind)} processes that asked hang in the driver: reboot the host")
    try:
        child = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        raise NoAnswer(f"cannot start {words[0]}: {error.strerror}") from None
    try:
        said, complaint = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _leave(child)
        limit = f"{timeout_s:g} s (is a GPU hung? see `dmesg`)"
        raise NoAnswer(f"{whom} did not answer within {limit}") from None
    try:
        return msgspec.json.decode(said, type=kind)
    except msgspec.DecodeError:  # Also ValidationError.
        last = complaint.decode(errors="replace").strip().splitlines()[-1:] or [f"exit {child.returncode}"]
        raise NoAnswer(f"asking {whom} failed: {last[0][:REASON_CHARS]}") from None


def _leave(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
    with suppress(subprocess.TimeoutExpired):
        child.wait(KILL_WAIT_S)
    if child.returncode is None:
        _left_behind.append(child)
