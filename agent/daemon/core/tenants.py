"""The attempts that hold devices of this host, and what their supervisors are told again and again. Pure.

Rule: a supervisor is told what has changed, and everything anew when it is connected again; what it is told
here may be lost and asks for nothing that the attempt's record does not say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cotenant.agent.daemon.core.edge import AgentConfig, Tell
from cotenant.agent.daemon.core.lease import Lease
from cotenant.agent.daemon.core.live import LeaseTold, Live
from cotenant.agent.daemon.core.memory import Attempt, Key
from cotenant.agent.daemon.core.outbox import Outbox
from cotenant.agent.ipc.channel import CoTenantsChanged, LeaseNow, ToSupervisor
from cotenant.controller.domain.cluster import Device
from cotenant.controller.domain.ids import DeviceId, HostId
from cotenant.controller.wire.agents import AttemptProgress


class Tenants:
    def __init__(self, config: AgentConfig, outbox: Outbox, lease: Lease) -> None:
        self.config = config
        self.live: dict[Key, Live] = {}
        self._out = outbox
        self._memory = outbox.memory
        self._lease = lease

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Their records."""
        return tuple(self._memory.attempts[key] for key in self.live)

    @property
    def host_id(self) -> HostId:
        return self.config.report.host_id

    def gpus_of(self, attempt: Attempt) -> tuple[Device, ...]:
        """Those of its devices that are GPUs, whatever their state: what is lost may have ended it."""
        return tuple(
            device
            for device in self.config.report.devices
            if device.device_id in attempt.devices and device.kind == "cuda"
        )

    def device_type(self, attempt: Attempt) -> str:
        """Of the devices that it holds here; empty if they are not offered any more."""
        types = {d.type for d in self.config.report.devices if d.device_id in attempt.devices}
        return types.pop() if len(types) == 1 else ""

    # --- To their supervisors ----------------------------------------------------------------------

    def tell(self, key: Key, message: ToSupervisor) -> None:
        """To the attempt's supervisor, if we are connected; what matters is said again on connecting."""
        live = self.live.get(key)
        if live is not None and live.connected:
            self._out.add(Tell(job_id=key[0], attempt=key[1], message=message))

    def tell_co_tenants(self) -> None:
        """Each supervisor knows whether its job has its devices to itself: what is measured, and how long a
        silence means something, depends on it."""
        tenants: dict[DeviceId, list[Attempt]] = {}
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

    def _room_mib(self, attempt: Attempt, tenants: Mapping[DeviceId, Sequence[Attempt]]) -> int | None:
        """What others leave to each process of a job that started without a limit, when it was alone;
        None: it has a limit, or nobody knows what the others may take."""
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

    def pass_lease_on(self, now_s: float) -> None:
        for key, live in self.live.items():
            self.tell_lease(key, live, now_s)

    def tell_lease(self, key: Key, live: Live, now_s: float) -> None:
        if not self._lease.is_counting or not live.connected:
            return
        left_s, full_s = self._lease.left_s(now_s), self._lease.full_s
        if live.is_lease_news(left_s, full_s, now_s):
            live.lease_told = LeaseTold(at_s=now_s, left_s=left_s)
            self.tell(key, LeaseNow(left_s=left_s, full_s=full_s))

    # --- In numbers --------------------------------------------------------------------------------

    def progress(self) -> tuple[AttemptProgress, ...]:
        statuses = (live.status for live in self.live.values() if live.is_there)
        return tuple(
            AttemptProgress(
                job_id=status.job_id,
                attempt=status.attempt,
                step=status.step,
                step_s=status.step_s,
                loss=status.loss,
                memory_mib=status.memory_mib,
                duty_cycle=status.duty_cycle,
            )
            for status in statuses
            if status is not None and status.started
        )

    def memory_seen_mib(self) -> dict[DeviceId, float]:
        """Per device: the peaks of its tenants' memory, as their supervisors said, added up."""
        found: dict[DeviceId, float] = {}
        for key, live in self.live.items():
            if live.status is not None and live.status.memory_mib is not None:
                for device_id in self._memory.attempts[key].devices:
                    found[device_id] = found.get(device_id, 0.0) + live.status.memory_mib
        return found
