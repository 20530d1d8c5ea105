"""The attempts that hold devices of this host, what this start of the agent knows of them beyond what is on
disk, and what it keeps telling their supervisors. Pure. Rule: the agent tells a supervisor what has changed,
and everything when it connects again; such a message may be lost, and asks for nothing that the attempt's
record does not say. What is known here is lost with the agent, and found out again: nothing in it may be
needed to obey a command twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from cotenant.agent.daemon.core import edge, energy, idleness, pacing, registration, reporting
from cotenant.agent.daemon.core.remembered import Attempt, AttemptKey
from cotenant.agent.ipc.channel import CoTenantsChanged, LeaseNow, PaceNow, ToSupervisor
from cotenant.agent.ipc.records import Result, Status
from cotenant.controller import domain, performance, wire

STOP_GRACE_S: Final = 60.0
"""How long after a stop's deadline the agent waits before it ends the supervisor as well."""
LEASE_NEWS_RATIO: Final = 0.1
"""A renewal is passed on where a supervisor's own countdown is this part of the lease behind."""
PACE_EVERY_S: Final = 5.0
"""Whoever is held back is told so again so often: ranks forget it after `PACE_KEPT_S`."""
PACE_NEWS: Final = 0.005
"""Of a pace, or of a step."""
_NEVER: Final = float("inf")


class LeaseTold(msgspec.Struct, frozen=True, kw_only=True):
    at_s: float
    left_s: float | None

    def believed_left_s(self, now_s: float) -> float | None:
        """What the supervisor's countdown stands at."""
        return None if self.left_s is None else self.left_s - (now_s - self.at_s)


class Live:
    def __init__(self, argv: tuple[str, ...] = ()) -> None:
        self.argv = argv
        """The command, if it was started in this agent's life."""
        self.cleaning = False
        self.releasing: Result | None = None
        """How it ended by its supervisor's word, while its devices are waited for."""
        self.ended_s = _NEVER
        """When that was."""
        self.connected = False
        self.status: Status | None = None
        self.started_s: float | None = None
        """When this agent first knew that its processes run."""
        self.stop_asked_s: float | None = None
        self.lease_told: LeaseTold | None = None
        self.co_tenants_told = CoTenantsChanged(alone=True)
        """What its supervisor believes; it starts with this belief. So with the pace."""
        self.pace_told = pacing.FREE
        self.pace_told_s = -_NEVER
        self.idle = idleness.IdleWatch()

    @property
    def is_there(self) -> bool:
        """A supervisor of it runs, or is taken to."""
        return not self.cleaning and self.releasing is None

    def is_lease_news(self, left_s: float | None, full_s: float | None, now_s: float) -> bool:
        """Whether the supervisor's own countdown is too far from what is left of the lease."""
        if self.lease_told is None:
            return True
        believed_s = self.lease_told.believed_left_s(now_s)
        if left_s is None or believed_s is None or full_s is None:
            return not (left_s is None and believed_s is None)
        return left_s - believed_s >= LEASE_NEWS_RATIO * full_s

    def is_pace_news(self, pace: PaceNow) -> bool:
        """Whether the ranks should know it at once."""
        told = self.pace_told
        return (
            (pace == pacing.FREE) != (told == pacing.FREE)
            or (pace.phase, pace.beside) != (told.phase, told.beside)
            or abs(pace.pace - told.pace) >= PACE_NEWS
            or abs(pace.window - told.window) >= PACE_NEWS
            or abs(pace.step_s - told.step_s) > PACE_NEWS * told.step_s
        )

    def quiet_until_s(self, attempt: Attempt, quiet_start_s: float) -> float:
        """When a job of which no first step is expected counts as running; of every other one the step is
        waited for."""
        if self.started_s is None or not self.is_there or attempt.first_step or attempt.first_step_assumed:
            return _NEVER
        if attempt.capabilities or attempt.uses_library or (self.status is not None and self.status.watched):
            return _NEVER
        return self.started_s + quiet_start_s

    def duty(self, now_s: float) -> float:
        """The part of the time in which it may use its devices; 0 while it is known to be idle."""
        idle = self.idle.read(now_s)
        return 0.0 if idle is not None and idle.idle_s > 0.0 else self.pace_told.pace

    def overdue_s(self, attempt: Attempt) -> float:
        """When the agent ends a supervisor that it has told to stop."""
        if not self.is_there or attempt.stop is None or self.stop_asked_s is None:
            return _NEVER
        return self.stop_asked_s + attempt.stop.deadline_s + STOP_GRACE_S


class Tenants:
    def __init__(self, config: edge.AgentConfig, outbox: reporting.Outbox, lease: registration.Lease) -> None:
        self.config = config
        self.live: dict[AttemptKey, Live] = {}
        self._out = outbox
        self._memory = outbox.memory
        self._lease = lease
        self._pacing = pacing.Pacing()
        self.kernels = idleness.Kernels()
        self.unused: frozenset[AttemptKey] = frozenset()
        """Attempts that make steps and use none of the GPUs that they hold."""
        self._energy = energy.EnergyMeter(outbox.memory.metered)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The records of the attempts that are tenants here."""
        return tuple(self._memory.attempts[key] for key in self.live)

    @property
    def host_id(self) -> domain.HostId:
        return self.config.report.host_id

    def gpus_of(self, attempt: Attempt) -> tuple[domain.Device, ...]:
        """Returns those of an attempt's devices that are GPUs, whatever their state: what is lost may have
        ended the attempt."""
        return tuple(
            device
            for device in self.config.report.devices
            if device.device_id in attempt.devices and device.kind == "cuda"
        )

    def list_faulted(self) -> tuple[Attempt, ...]:
        """Who was struck by a fault of a GPU, or has died of a CUDA error, and still holds its devices."""
        died = {
            key for key, live in self.live.items() if live.releasing and live.releasing.verdict.cuda_fault
        }
        return tuple(each for each in self.attempts if each.fault is not None or each.key in died)

    def device_type(self, attempt: Attempt) -> str:
        """Returns the type of the devices that an attempt holds here; empty if they are not offered any
        more."""
        types = {d.type for d in self.config.report.devices if d.device_id in attempt.devices}
        return types.pop() if len(types) == 1 else ""

    # --- To their supervisors ----------------------------------------------------------------------

    def tell(self, key: AttemptKey, message: ToSupervisor) -> None:
        """Sends a message to the attempt's supervisor, if we are connected; a new connection repeats what
        matters."""
        live = self.live.get(key)
        if live is not None and live.connected:
            self._out.add(edge.Tell(job_id=key[0], attempt=key[1], message=message))

    def tell_co_tenants(self) -> None:
        """Tells each supervisor whether its job has its devices to itself: what is measured, and how long a
        silence means something, depends on it."""
        tenants: dict[domain.DeviceId, list[Attempt]] = {}
        for attempt in self.attempts:
            for device_id in attempt.devices:
                tenants.setdefault(device_id, []).append(attempt)
        for key, live in self.live.items():
            attempt = self._memory.attempts[key]
            alone = all(len(tenants[device_id]) == 1 for device_id in attempt.devices)
            now = CoTenantsChanged(alone=alone, room_mib=None if alone else self._room_mib(attempt, tenants))
            if live.connected and now != live.co_tenants_told:
                live.co_tenants_told = now
                self.tell(key, now)

    def _room_mib(self, attempt: Attempt, tenants: Mapping[domain.DeviceId, Sequence[Attempt]]) -> int | None:
        """What others leave to each process of a job that started alone and without a limit; None: it has a
        limit, or what the others may take is unknown."""
        left_mib = []
        for device in self.gpus_of(attempt):
            others = [each.memory_cap_mib for each in tenants[device.device_id] if each.key != attempt.key]
            known = [cap_mib for cap_mib in others if cap_mib is not None]
            if len(known) < len(others):
                return None
            left_mib.append(device.usable_mib - sum(known))
        if attempt.memory_cap_mib is not None or not left_mib:
            return None
        return max(1, min(left_mib) // attempt.cuda_processes)

    def hold_to_bounds(self, now_s: float) -> list[pacing.LostBound]:
        """Tells supervisors when their jobs may train, so that others keep their bounds; returns the
        bounds that cannot be kept."""
        attempts = self._memory.attempts
        if len(self.live) < 2 and not any(
            attempts[key].bound is not None or live.pace_told != pacing.FREE
            for key, live in self.live.items()
        ):
            return []
        there = {key: live.status for key, live in self.live.items() if live.is_there}
        training = {
            key: status
            for key, status in there.items()
            if status is not None and status.first_step is not None
        }
        loading = {device for key in there.keys() - training.keys() for device in attempts[key].devices}
        tenants = [
            pacing.TrainingTenant(
                key,
                frozenset(attempts[key].devices),
                attempts[key].bound or performance.UNBOUNDED,
                status.clock,
                attempts[key].can_wait,
                is_disturbed=not loading.isdisjoint(attempts[key].devices),
            )
            for key, status in training.items()
        ]
        paces, lost = self._pacing.update(tenants, now_s)
        for key, pace in paces.items():
            live = self.live[key]
            is_due = pace != pacing.FREE and now_s - live.pace_told_s >= PACE_EVERY_S
            if live.connected and (is_due or live.is_pace_news(pace)):
                live.pace_told, live.pace_told_s = pace, now_s
                self.tell(key, pace)
        return lost

    def pass_lease_on(self, now_s: float) -> None:
        for key, live in self.live.items():
            self.tell_lease(key, live, now_s)

    def tell_lease(self, key: AttemptKey, live: Live, now_s: float) -> None:
        if not self._lease.is_counting or not live.connected:
            return
        left_s, full_s = self._lease.left_s(now_s), self._lease.full_s
        if live.is_lease_news(left_s, full_s, now_s):
            live.lease_told = LeaseTold(at_s=now_s, left_s=left_s)
            self.tell(key, LeaseNow(left_s=left_s, full_s=full_s))

    def look_at_idleness(self, now_s: float) -> None:
        """Takes note of which attempts do anything."""
        devices = {device.device_id: device for device in self.config.report.devices}
        held = Counter(device_id for each in self.attempts for device_id in each.devices)
        for key, live in self.live.items():
            status, attempt = live.status, self._memory.attempts[key]
            if status is None or not live.is_there:
                continue
            own = [devices[each] for each in attempt.devices if each in devices]
            shared = any(held[each] > 1 for each in attempt.devices)
            runs = (
                self.kernels.run_on(own, now_s, shared=shared) if len(own) == len(attempt.devices) else None
            )
            has_begun = attempt.first_step or attempt.first_step_assumed
            sight = idleness.AttemptSight(
                marks=(status.step, status.clock.steps, attempt.durable_step),
                activity=status.activity,
                has_kernels=runs,
                is_busy=not has_begun or status.saving or attempt.stop is not None,
                is_held=status.held_up or live.pace_told != pacing.FREE,
            )
            if key in self.unused:  # Whatever it does, and whoever else is there, its GPUs are idle.
                sight = idleness.AttemptSight(None, 0, has_kernels=False, is_busy=attempt.stop is not None)
            live.idle.look(sight, now_s)

    # --- Energy ------------------------------------------------------------------------------------

    def read_energy(self, event: edge.EnergyRead, now_s: float) -> None:
        """Divides what a GPU has used since its last reading among the attempts that hold it."""
        self._energy.forget(self._energy.known - self.live.keys())
        holders = (each for each in self.attempts if event.uuid in self._uuids(each))
        duties = {each.key: self.live[each.key].duty(now_s) for each in holders}
        self._energy.take(event.uuid, event.counter_mj, duties)
        self.keep_energy(now_s)

    def keep_energy(self, now_s: float | None = None) -> None:
        """Keeps what was divided so far, if that is due. `now_s`: None: at once."""
        note = self._energy.to_keep(now_s)
        if note is not None:
            self._out.keep(note)

    def energy_j(self, attempt: Attempt) -> float | None:
        """What an attempt has used here so far; None: unknown."""
        return self._energy.used_j(attempt.key, self._uuids(attempt))

    def _uuids(self, attempt: Attempt) -> list[str]:
        return [each.local for each in self.config.report.devices if each.device_id in attempt.devices]

    # --- In numbers --------------------------------------------------------------------------------

    def progress(self, now_s: float) -> tuple[wire.AttemptProgress, ...]:
        there = [(live.status, live) for live in self.live.values() if live.is_there]
        return tuple(
            wire.AttemptProgress(
                job_id=status.job_id,
                attempt=status.attempt,
                step=status.step,
                step_s=status.step_s,
                loss=status.loss,
                words=status.words,
                memory_mib=status.memory_mib,
                duty_cycle=status.duty_cycle,
                length=status.length,
                batch=status.batch,
                bound=self._pacing.standing((status.job_id, status.attempt), now_s),
                pace=live.pace_told.pace,
                idle_for=live.idle.read(now_s),
                energy_j=self.energy_j(self._memory.attempts[(status.job_id, status.attempt)]),
            )
            for status, live in there
            if status is not None and status.started
        )

    def memory_seen_mib(self) -> dict[domain.DeviceId, float]:
        """Returns, per device, the peaks of its tenants' memory, as their supervisors said, added up; without
        the tenants that nothing is known of."""
        found: dict[domain.DeviceId, float] = {}
        for key, live in self.live.items():
            if live.status is not None and live.status.memory_mib is not None:
                for device_id in self._memory.attempts[key].devices:
                    found[device_id] = found.get(device_id, 0.0) + live.status.memory_mib
        return found
