"""The states of a device, as a table, and what an agent that is started anew must still know of them. Pure.

    ok        work may come
    suspect   something happened to it: no new work until it has proven itself
    draining  what runs may go on, nothing new comes; it wants a reset
    lost      it does not work any more: what ran there is ended

Rule: a device gets worse by itself and better only by proof. From suspect it comes back when NVML answers,
those whom the trouble concerned are gone and it has been quiet for long enough, or when a person says
`nodes resume`. From draining a person may bring it back too, who knows better; from lost nobody but the
device: it must have begun anew (a boot of the host, a reset), and then it proves itself like a suspect.

A noted state ends by that proof, never because the agent was restarted. So the file keeps what the proof is
made of beside it: whom the trouble concerned, the counters that fall when a GPU begins anew, up to where the
kernel's log was read, and whether a person has vouched for the device. A boot begins all of them anew: a
device that was draining or lost has to show that it works, everything else is forgotten.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal

import msgspec

from cotenant.agent.daemon.core import AttemptKey
from cotenant.agent.gpus.probe_results import ProbeResult
from cotenant.agent.gpus.xid import Bucket
from cotenant.controller.domain import DeviceState

DeviceHappening = Literal["restart", "suspect", "drain", "lost", "hung", "proven", "trusted", "renewed"]
"""hung: a question about it was never answered. proven: it answers, and all that is asked of a suspect is
true. trusted: a person said so. renewed: it was reset, or the host was booted."""

TABLE: Final[dict[tuple[DeviceState, DeviceHappening], DeviceState]] = {
    ("ok", "restart"): "suspect",
    ("ok", "suspect"): "suspect",
    ("ok", "drain"): "draining",
    ("ok", "lost"): "lost",
    ("ok", "hung"): "suspect",
    ("ok", "proven"): "ok",
    ("ok", "trusted"): "ok",
    ("ok", "renewed"): "ok",
    ("suspect", "restart"): "suspect",
    ("suspect", "suspect"): "suspect",
    ("suspect", "drain"): "draining",
    ("suspect", "lost"): "lost",
    ("suspect", "hung"): "suspect",
    ("suspect", "proven"): "ok",
    ("suspect", "trusted"): "ok",
    ("suspect", "renewed"): "suspect",
    ("draining", "restart"): "draining",
    ("draining", "suspect"): "draining",
    ("draining", "drain"): "draining",
    ("draining", "lost"): "lost",
    ("draining", "hung"): "draining",
    ("draining", "proven"): "draining",
    ("draining", "trusted"): "ok",
    ("draining", "renewed"): "suspect",
    ("lost", "restart"): "lost",
    ("lost", "suspect"): "lost",
    ("lost", "drain"): "lost",
    ("lost", "lost"): "lost",
    ("lost", "hung"): "lost",
    ("lost", "proven"): "lost",
    ("lost", "trusted"): "lost",
    ("lost", "renewed"): "suspect",
}

QUIET_S: Final[dict[DeviceHappening, float]] = {
    "restart": 0.0,
    "suspect": 600.0,
    "hung": 300.0,
    "renewed": 60.0,
}
"""How long a suspect must be without trouble, by what made it one."""

BY_BUCKET: Final[dict[Bucket, DeviceHappening | None]] = {
    "restart": "restart",
    "suspect": "suspect",
    "drain": "drain",
    "lost": "lost",
    "note": None,
}
VERSION: Final = 1


def next_state(state: DeviceState, happening: DeviceHappening) -> DeviceState:
    return TABLE[state, happening]


class NotedState(msgspec.Struct, frozen=True, kw_only=True):
    """Why a device is not ok."""

    uuid: str
    state: DeviceState
    why: str
    since_s: float
    """Seconds since the boot."""
    quiet_s: float = 0.0
    """How long it must be without trouble, while it is suspect."""
    concerned: tuple[AttemptKey, ...] = ()
    """Whom the trouble concerned: they must be gone before it counts as over."""


class RisingCounters(msgspec.Struct, frozen=True, kw_only=True):
    """What only grows while a driver lives; None where it is not known."""

    energy_mj: int | None = None
    ecc_uncorrected: int | None = None

    def merge(self, probe: ProbeResult) -> RisingCounters:
        """What a probe does not say is as it was."""
        energy_mj, errors = probe.energy_mj, probe.ecc_uncorrected
        return RisingCounters(
            energy_mj=energy_mj if energy_mj is not None else self.energy_mj,
            ecc_uncorrected=errors if errors is not None else self.ecc_uncorrected,
        )

    def began_anew(self, now: RisingCounters) -> bool:
        """Whether the driver was loaded again, or the GPU reset, between this and `now`."""
        return _less(now.energy_mj, self.energy_mj) or _less(now.ecc_uncorrected, self.ecc_uncorrected)

    def has_more_errors(self, now: RisingCounters) -> bool:
        return _less(self.ecc_uncorrected, now.ecc_uncorrected)


def _less(one: int | None, other: int | None) -> bool:
    return one is not None and other is not None and one < other


class PastStates(msgspec.Struct, frozen=True, kw_only=True):
    """What else was known of a device when it was last written down."""

    uuid: str
    counters: RisingCounters = RisingCounters()
    is_away: bool = False
    """NVML said that it is lost or wants a reset: an answer means that it began anew."""
    is_pardoned: bool = False
    """A person has accepted that it wants a reset, and trusts it."""
    record: int | None = None
    """Of the kernel's log: everything up to here was dealt with."""


class DeviceStateStore(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file that keeps device states."""

    version: int = VERSION
    boot_id: str
    states: tuple[NotedState, ...] = msgspec.field(default=(), name="marks")
    pasts: tuple[PastStates, ...] = ()

    def drop(self, uuids: Collection[str]) -> DeviceStateStore:
        return DeviceStateStore(
            boot_id=self.boot_id,
            states=tuple(noted for noted in self.states if noted.uuid not in uuids),
            pasts=tuple(past for past in self.pasts if past.uuid not in uuids),
        )


def recall(kept: DeviceStateStore | None, boot_id: str, now_s: float) -> DeviceStateStore:
    """What of a file still counts now."""
    if kept is None:
        return DeviceStateStore(boot_id=boot_id)
    if kept.boot_id == boot_id:
        # Quiet while no agent watched proves nothing.
        states = tuple(msgspec.structs.replace(noted, since_s=now_s) for noted in kept.states)
        return DeviceStateStore(boot_id=boot_id, states=states, pasts=kept.pasts)
    renewed = tuple(
        NotedState(
            uuid=noted.uuid,
            state=next_state(noted.state, "renewed"),
            why=f"the host was booted after: {noted.why}",
            since_s=now_s,
            quiet_s=QUIET_S["renewed"],
        )
        for noted in kept.states
        if noted.state in ("draining", "lost")
    )
    return DeviceStateStore(boot_id=boot_id, states=renewed)
