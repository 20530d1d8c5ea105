"""Whether an ended attempt's devices have their memory back, and who holds it if not. Pure.

Rule: a device goes back into the ledger only when its memory does. What visible, running processes use is
theirs (a co-tenant, an MPS server, a stranger); what is used beyond that and the driver's reserve is held by
somebody who should be gone: a zombie whose context is still open, a process stuck in the kernel (state D),
one that cannot be seen from here. Where a driver does not say how much a process uses, only such a process
is proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from cotenant.controller.domain.cluster import HELD_MIB_MIN, Device

HOLDERS_NAMED: Final = 3
_GONE: Final[dict[str, str]] = {
    "": "not visible from here: gone, or in another container",
    "Z": "a zombie, its context still open",
    "X": "dead, its context still open",
    "D": "stuck in the kernel (state D)",
}


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A process that the driver lists on a device."""

    pid: int
    used_mib: int | None = None
    """None: the driver does not say."""
    state: str = ""
    """Of /proc/PID/stat; empty: there is no such process here."""
    name: str = ""

    @property
    def runs(self) -> bool:
        return self.state not in _GONE

    @property
    def text(self) -> str:
        name = f" ({self.name})" if self.name else ""
        return f"process {self.pid}{name}, {_GONE.get(self.state, 'running')}"


class DeviceUse(msgspec.Struct, frozen=True, kw_only=True):
    uuid: str
    used_mib: int
    """Of the whole device, the driver's reserve included."""
    holders: tuple[Holder, ...] = ()
    problem: str = ""
    """Why it could not be asked; then nothing else counts."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What `python -m cotenant.agent.gpus.held_probe UUID...` prints."""

    devices: tuple[DeviceUse, ...] = ()
    problem: str = ""


def who_holds(use: DeviceUse, reserve_mib: int) -> str:
    """Who holds memory that should be free, for a person; empty if nobody does."""
    if use.problem:
        return f"its memory cannot be asked for: {use.problem}"
    gone = [holder for holder in use.holders if not holder.runs]
    running = [holder.used_mib for holder in use.holders if holder.runs]
    if None in running:
        return _held(None, gone) if gone else ""
    held_mib = use.used_mib - reserve_mib - sum(used for used in running if used is not None)
    return _held(held_mib, gone) if held_mib >= HELD_MIB_MIN else ""


def _held(held_mib: int | None, gone: list[Holder]) -> str:
    amount = "memory" if held_mib is None else f"{held_mib} MiB"
    named = "; ".join(holder.text for holder in gone[:HOLDERS_NAMED])
    more = f" and {len(gone) - HOLDERS_NAMED} more" if len(gone) > HOLDERS_NAMED else ""
    return f"{amount} still held after a job by {named or 'no visible process'}{more}"


def judged(answer: Answer, devices: Iterable[Device]) -> dict[str, str]:
    """By UUID: who holds a device's memory. A device that the answer leaves out could not be asked about."""
    uses = {use.uuid: use for use in answer.devices}
    why = answer.problem or "the driver does not list it"
    found = {
        device.local: who_holds(
            uses.get(device.local, DeviceUse(uuid=device.local, used_mib=0, problem=why)), device.reserve_mib
        )
        for device in devices
    }
    return {uuid: text for uuid, text in found.items() if text}


class Holds:
    """Devices that are not offered because somebody still holds their memory, or for another reason given."""

    def __init__(self) -> None:
        self._by_uuid: dict[str, str] = {}
        self._others: Mapping[str, str] = {}

    @property
    def uuids(self) -> frozenset[str]:
        """Devices whose memory is held."""
        return frozenset(self._by_uuid)

    def found(self, holders: Mapping[str, str]) -> None:
        self._by_uuid |= holders

    def freed(self, uuid: str) -> None:
        self._by_uuid.pop(uuid, None)

    def other_reasons(self, texts: Mapping[str, str]) -> bool:
        """Whether these are new: by UUID, why a device is suspect beside its memory."""
        changed = texts != self._others
        self._others = texts
        return changed

    def laid_over(self, devices: Iterable[Device]) -> tuple[Device, ...]:
        """The devices with what is held marked as suspect. Worse states stay, and so does what they say."""
        notes = {**self._others, **self._by_uuid}
        return tuple(
            msgspec.structs.replace(device, state="suspect", healthy=False, note=notes[device.local])
            if device.local in notes and device.state in ("ok", "suspect")
            else device
            for device in devices
        )
