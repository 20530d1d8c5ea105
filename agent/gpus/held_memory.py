"""Memory of a device that should be free, and who holds it. Pure.

A device goes back into the ledger only when its memory does, and only after its watcher has probed it anew: a
probe comes after all errors that the watcher knew of by then, so an end that has waited for one is told in
the light of them. What visible, running processes use is theirs (a co-tenant, an MPS server, a stranger, a
job that was given another device); what is used beyond that and the driver's reserve is held by somebody who
should be gone. Where a driver does not say how much a process uses, or who uses the memory, only a process
that should be gone is proof.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from cotenant.agent.daemon.core.remembered import AttemptKey
from cotenant.agent.gpus.probe_results import ProbeResult, Process
from cotenant.controller.domain import HELD_MIB_MIN

HOLDERS_NAMED: Final = 3
_DEAD: Final = {"Z": "a zombie, its context still open", "X": "dead, its context still open"}
"""By the letter of a process's state."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a device that should be free."""

    mib: int | None
    """None: the driver does not say how much."""
    by: tuple[str, ...] = ()
    """The processes, each in words; empty: none that the driver lists."""

    @property
    def text(self) -> str:
        amount = "memory is" if self.mib is None else f"{self.mib} MiB are"
        named = "; ".join(self.by[:HOLDERS_NAMED])
        more = f" and {len(self.by) - HOLDERS_NAMED} more" if len(self.by) > HOLDERS_NAMED else ""
        return f"{amount} still held by {named or 'no process that can be seen here'}{more}"


def who_holds(
    probe: ProbeResult,
    reserve_mib: int | None,
    live: Collection[AttemptKey],
    elsewhere: Collection[AttemptKey] = (),
) -> Held | None:
    """Who holds memory that should be free; None if none is held, or it is unknown.

    reserve_mib: the driver's own part; None: others use memory whom NVML cannot list (Windows, the kernel).
    live: attempts that still have the device. elsewhere: attempts that run on others. A process that cannot
    be seen from here (another PID namespace) is taken for theirs while there are any; so is all memory where
    NVML lists none of theirs at all.
    """
    is_listed = reserve_mib is not None and probe.lists_computing
    may_be_theirs = (p.owner.kind != "attempt" or p.owner.key in live for p in probe.processes)
    is_listed = is_listed and (not live or any(may_be_theirs))
    here = {*live, *elsewhere}
    gone = {
        process.pid: (process, why)
        for process in probe.processes
        if (why := _why_gone(process, here, may_hide=bool(live) or not is_listed))
    }
    stay = [process.used_mib for process in probe.processes if process.pid not in gone]
    by = tuple(f"process {process.pid}{_name(process)}, {why}" for process, why in gone.values())
    if reserve_mib is None or not is_listed or None in stay:
        return Held(mib=None, by=by) if by else None
    held_mib = probe.used_mib - reserve_mib - sum(used for used in stay if used is not None)
    return Held(mib=held_mib, by=by) if held_mib >= HELD_MIB_MIN else None


def _why_gone(process: Process, here: Collection[AttemptKey], *, may_hide: bool) -> str:
    """Why it should not hold anything; empty: it may."""
    if process.state in _DEAD:
        return _DEAD[process.state]
    if process.owner.kind == "hidden":
        return "" if may_hide else "not visible from here: gone, or in another container"
    if process.owner.kind == "attempt" and process.owner.key not in here:
        return "stuck in the kernel (state D)" if process.state == "D" else "of a job that has ended"
    return ""


def _name(process: Process) -> str:
    return f" ({process.owner.command})" if process.owner.command else ""
