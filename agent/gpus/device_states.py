"""The file that keeps what is known of devices, and what of it counts for the next agent. Pure.

Rule: a cause that was noted ends by its proof, never because the agent was restarted. So the file keeps what
the proof is made of beside it: whom the trouble concerned, the counters that fall when a GPU begins anew, up
to where the kernel's log was read, and whether a person has vouched for the device. A boot begins all of them
anew: a device that was draining or lost has to show that it works, everything else is forgotten.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from cotenant.agent.daemon.core.remembered import AttemptKey
from cotenant.agent.gpus.probe_results import ProbeResult
from cotenant.controller.domain import DeviceState

VERSION: Final = 1
RENEWED: Final = "renewed"
"""The cause of a device that has begun anew and must show that it works."""
_BY_STATE: Final[dict[DeviceState, str]] = {"suspect": "odd", "draining": "reset", "lost": "lost"}


class NotedCause(msgspec.Struct, frozen=True, kw_only=True):
    """A cause that was noted of a device."""

    uuid: str
    cause: str = ""
    """The name of its row in `CAUSES`; empty: written by an agent that kept one state of a device."""
    state: DeviceState
    why: str
    since_s: float
    """Seconds since the boot."""
    concerned: tuple[AttemptKey, ...] = ()
    """Whom it concerned: they must be gone before it counts as over."""


class ResetSigns(msgspec.Struct, frozen=True, kw_only=True):
    """What tells that a GPU has begun anew; None where it is not known."""

    energy_mj: int | None = None
    ecc_uncorrected: int | None = None
    """Both only grow while a driver lives."""
    remap_pending: bool = False
    """Rows of its memory wait for a reset."""

    def merge(self, probe: ProbeResult) -> ResetSigns:
        """What a probe does not say is as it was."""
        energy_mj, errors = probe.energy_mj, probe.ecc_uncorrected
        return ResetSigns(
            energy_mj=energy_mj if energy_mj is not None else self.energy_mj,
            ecc_uncorrected=errors if errors is not None else self.ecc_uncorrected,
            remap_pending=probe.remap_pending,
        )

    def began_anew(self, now: ResetSigns) -> bool:
        """Whether the driver was loaded again, or the GPU reset, between this and `now`. One sign is not
        enough: without persistence mode the energy counter of an idle GPU may begin anew alone."""
        signs = (
            _is_less(now.energy_mj, self.energy_mj),
            _is_less(now.ecc_uncorrected, self.ecc_uncorrected),
            self.remap_pending and not now.remap_pending,
        )
        return sum(signs) > 1

    def has_more_errors(self, now: ResetSigns) -> bool:
        return _is_less(self.ecc_uncorrected, now.ecc_uncorrected)


def _is_less(one: int | None, other: int | None) -> bool:
    return one is not None and other is not None and one < other


class PastStates(msgspec.Struct, frozen=True, kw_only=True):
    """What else was known of a device when it was last written down."""

    uuid: str
    counters: ResetSigns = ResetSigns()
    is_away: bool = False
    """NVML said that it is lost or wants a reset: an answer means that it began anew."""
    is_pardoned: bool = False
    """A person has accepted that it wants a reset, and trusts it."""
    record: int | None = None
    """Of the kernel's log: everything up to here was dealt with."""


class DeviceStateStore(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file."""

    version: int = VERSION
    boot_id: str
    marks: tuple[NotedCause, ...] = ()
    pasts: tuple[PastStates, ...] = ()

    def drop(self, uuids: Collection[str]) -> DeviceStateStore:
        return DeviceStateStore(
            boot_id=self.boot_id,
            marks=tuple(mark for mark in self.marks if mark.uuid not in uuids),
            pasts=tuple(past for past in self.pasts if past.uuid not in uuids),
        )


def recall(kept: DeviceStateStore | None, boot_id: str, now_s: float) -> DeviceStateStore:
    """What of a file still counts now. Quiet while no agent watched proves nothing."""
    if kept is None:
        return DeviceStateStore(boot_id=boot_id)
    if kept.boot_id == boot_id:
        marks = (
            msgspec.structs.replace(mark, cause=mark.cause or _BY_STATE.get(mark.state, "odd"), since_s=now_s)
            for mark in kept.marks
        )
        return DeviceStateStore(boot_id=boot_id, marks=tuple(marks), pasts=kept.pasts)
    renewed = {
        mark.uuid: msgspec.structs.replace(
            mark,
            cause=RENEWED,
            state="suspect",
            why=f"the host was booted after: {mark.why}",
            since_s=now_s,
            concerned=(),
        )
        for mark in kept.marks
        if mark.state in ("draining", "lost")
    }
    return DeviceStateStore(boot_id=boot_id, marks=tuple(renewed.values()))
