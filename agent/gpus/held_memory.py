"""Who holds memory of a device that should be free, and the waits of ended attempts for it. Pure.

Rule: a device goes back into the ledger only when its memory does, and only after its watcher has looked
at it anew: a look comes after all errors that the watcher knew of by then, so an end that has waited for one
is told in the light of them. What visible, running processes use is theirs (a co-tenant, an MPS server, a
stranger); what is used beyond that and the driver's reserve is held by somebody who should be gone. Where a
driver does not say how much a process uses, only such a process is proof.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from cotenant.agent.daemon.core.memory import Key
from cotenant.agent.gpus.probe_results import ProbeResult, Process
from cotenant.controller.domain.cluster import HELD_MIB_MIN

HOLDERS_NAMED: Final = 3
PATIENCE_S: Final = 60.0
"""Tearing a large context down takes seconds; a minute is a fault."""
_DEAD: Final[dict[str, str]] = {
    "Z": "a zombie, its context still open",
    "X": "dead, its context still open",
}
_STUCK: Final = "stuck in the kernel (state D)"
UNASKED: Final = "nobody could be asked about its memory: NVML gave no answer"


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a device that should be free."""

    mib: int | None
    """None: the driver does not say how much."""
    by: tuple[str, ...] = ()
    """Who, each in words; empty: nobody that the driver lists."""

    @property
    def text(self) -> str:
        amount = "memory is" if self.mib is None else f"{self.mib} MiB are"
        named = "; ".join(self.by[:HOLDERS_NAMED])
        more = f" and {len(self.by) - HOLDERS_NAMED} more" if len(self.by) > HOLDERS_NAMED else ""
        return f"{amount} still held by {named or 'no process that can be seen here'}{more}"


def who_holds(look: ProbeResult, reserve_mib: int, live: Collection[Key]) -> Held | None:
    """Who holds memory that should be free; None if nobody does, or nobody can tell.

    reserve_mib: the driver's own part. live: attempts that still have the device. A process that cannot be
    seen from here (another PID namespace) is taken for theirs while there are any.
    """
    gone = [(process, why) for process in look.processes if (why := _why_gone(process, live))]
    should_go = {process.pid for process, _ in gone}
    stay = [process.used_mib for process in look.processes if process.pid not in should_go]
    by = tuple(f"process {process.pid}{_name(process)}, {why}" for process, why in gone)
    if None in stay:
        return Held(mib=None, by=by) if by else None
    held_mib = look.used_mib - reserve_mib - sum(used for used in stay if used is not None)
    return Held(mib=held_mib, by=by) if held_mib >= HELD_MIB_MIN else None


def _why_gone(process: Process, live: Collection[Key]) -> str:
    """Why it should not hold anything; empty: it may."""
    if process.state in _DEAD:
        return _DEAD[process.state]
    if process.owner.kind == "hidden":
        return "" if live else "not visible from here: gone, or in another container"
    if process.owner.kind == "attempt" and process.owner.key not in live:
        return _STUCK if process.state == "D" else "of a job that has ended"
    return ""


def _name(process: Process) -> str:
    return f" ({process.owner.command})" if process.owner.command else ""


class MemoryWait:
    """One ended attempt's."""

    def __init__(self, uuids: Iterable[str], since_s: float, until_s: float) -> None:
        self.since_s, self.until_s = since_s, until_s
        self.left = dict.fromkeys(uuids, UNASKED)
        """Devices that are not known to be free -> why."""


class Waits:
    """Attempts that have ended, and the devices whose memory they wait for."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._waits: dict[Key, MemoryWait] = {}

    def add(self, key: Key, uuids: Iterable[str], *, since_s: float) -> float:
        """Only looks that were begun at `since_s` or later count. Returns when the wait ends at last."""
        wait = self._waits[key] = MemoryWait(uuids, since_s, since_s + self._patience_s)
        return wait.until_s

    def looked(self, look: ProbeResult, reserve_mib: int, live: Collection[Key]) -> None:
        """`live`: attempts that have the device; those that wait here have ended, and do not count."""
        stay = {key for key in live if key not in self._waits}
        for wait in self._waits.values():
            if look.uuid not in wait.left or look.at_s < wait.since_s:
                continue
            if look.code:
                wait.left[look.uuid] = f"its memory cannot be asked for: {look.problem}"
            elif (held := who_holds(look, reserve_mib, stay)) is not None:
                wait.left[look.uuid] = held.text
            else:
                del wait.left[look.uuid]

    def lost(self, uuids: Collection[str]) -> None:
        """Nobody waits for the memory of a GPU that is lost: it is not given out anyway."""
        for wait in self._waits.values():
            for uuid in uuids:
                wait.left.pop(uuid, None)

    def over(self, now_s: float) -> dict[Key, dict[str, str]]:
        """Waits that have ended, each told once: by UUID who holds a device; empty: they are all free."""
        found = {
            key: wait.left for key, wait in self._waits.items() if not wait.left or now_s >= wait.until_s
        }
        for key in found:
            del self._waits[key]
        return found
