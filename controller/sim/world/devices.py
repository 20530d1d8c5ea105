"""Who is on which device of the simulated world, how they slow each other, how long devices were held, and
how long a job would have waited for devices of its own.

Rule: it follows only what happens. The engine's ledger says who may be there; a check compares the two.

Source: of the wait, which is the other half of the sharing benefit, Castor eq. 24: JCT "assuming it remains
pending until sufficient resources are released" over JCT when shared, "on the assumption that no new jobs
will be submitted". So: those that hold devices go on as they do, with their true lengths and present paces,
nobody arrives, and nobody else in the queue takes what they leave. The last makes waiting look shorter than
it is, and the benefit with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from cotenant.controller.domain import DeviceId, GangMember, HostId, HostReport
from cotenant.controller.planning import ROUNDING
from cotenant.controller.sim.world.physics import LoadRatios, RatioTable
from cotenant.controller.sim.world.run import LOADS, TRAINS, JobRun


class Devices:
    """All devices of the cluster; times are summed over them, up to the last change."""

    def __init__(
        self,
        hosts: Sequence[HostReport],
        ratios: RatioTable | None,
        loads: LoadRatios | None = None,
        lost: Sequence[Sequence[bool]] = (),
    ) -> None:
        """Starts with nobody on any device. `lost`: as in `BoundRatios`; empty where nobody has a bound."""
        self.busy = 0
        """Devices with a tenant."""
        self.held = 0.0
        """Places held: devices, counted once for each tenant; a part as such."""
        self.busy_gpu_s = 0.0
        self.held_gpu_s = 0.0
        self._since_s = 0.0
        self._ratios, self._loads, self._lost = ratios, loads, lost
        self._max_tenants = {d.device_id: d.max_tenants for host in hosts for d in host.devices}
        self.here: dict[DeviceId, tuple[JobRun, ...]] = dict.fromkeys(self._max_tenants, ())
        """Tenants of each device."""

    def count_to(self, now_s: float) -> None:
        """Add up the time since the last change."""
        passed_s = now_s - self._since_s
        if passed_s:
            self.busy_gpu_s += passed_s * self.busy
            self.held_gpu_s += passed_s * self.held
            self._since_s = now_s

    def occupy(self, run: JobRun, gang: Sequence[GangMember], now_s: float) -> bool:
        """A gang starts on its devices; whether it found a co-tenant there."""
        self.count_to(now_s)
        shared = False
        for member in gang:
            for device_id in member.devices:
                tenants = self.here[device_id]
                if tenants and run.fraction < 1.0:
                    parts = sum(other.fraction for other in (*tenants, run))
                    assert parts <= 1.0 + ROUNDING, f"{device_id}: parts of {parts}"
                elif tenants:
                    assert len(tenants) < self._max_tenants[device_id], f"{device_id}: too many tenants"
                    shared = True
                else:
                    self.busy += 1
                self.here[device_id] = (*tenants, run)
                self.held += run.fraction
        if run.fraction < 1.0:
            self.held = round(self.held, 6)
        return shared

    def vacate(self, run: JobRun, part: GangMember, now_s: float) -> None:
        """Removes one host's part of a gang from its devices."""
        self.count_to(now_s)
        for device_id in part.devices:
            tenants = self.here[device_id]
            if tenants == (run,):
                self.here[device_id] = ()
                self.busy -= 1
            else:
                self.here[device_id] = tuple([other for other in tenants if other is not run])
        count = len(part.devices)
        self.held -= run.fraction * count
        if run.fraction < 1.0:
            self.held = round(self.held, 6)
        run.held_gpu_s += count * run.fraction * (now_s - run.launched_s)

    def co_tenants(self, run: JobRun, gang: Sequence[GangMember]) -> list[JobRun]:
        """The co-tenants of `run` on the devices of `gang`, in device order; who has another part of one is
        none."""
        if run.fraction < 1.0:
            return []
        found: dict[int, JobRun] = {}
        for member in gang:
            for device_id in member.devices:
                for other in self.here[device_id]:
                    if other is not run:
                        found[other.row] = other
        return list(found.values())

    def on_host(self, host: HostReport) -> list[JobRun]:
        """The tenants of a host, in order of arrival."""
        found = {run.row: run for device in host.devices for run in self.here[device.device_id]}
        return [found[row] for row in sorted(found)]

    def slowdown(self, run: JobRun) -> float:
        """The slowest of its devices sets the pace; on one device the ratios of co-tenants multiply."""
        slowest = 1.0
        for member in run.gang:
            for device_id in member.devices:
                slowdown = 1.0
                for other in self.here[device_id]:
                    if other is not run:
                        slowdown *= self._ratio(run, other)
                slowest = max(slowest, slowdown)
        return slowest

    def _ratio(self, run: JobRun, other: JobRun) -> float:
        """Of a job that trains, or loads where loads take their part of a device, beside one co-tenant."""
        if other.doing is TRAINS and run.doing is not LOADS:
            assert self._ratios is not None, "two jobs on a device in a world without pairs"
            return self._ratios[run.model][other.model]
        loads = self._loads
        if loads is None:
            return 1.0
        if other.doing is TRAINS:
            return loads.training[other.model]
        if other.doing is LOADS:
            return loads.loading if run.doing is LOADS else loads.training[run.model]
        return 1.0

    def loses_bound_to(self, run: JobRun) -> JobRun | None:
        """Returns the co-tenant beside whom the bound of a job cannot be kept."""
        if not self._lost or run.doing is not TRAINS:
            return None
        mine = self._lost[run.model]
        for other in self.co_tenants(run, run.gang):
            if other.doing is TRAINS and mine[other.model]:
                return other
        return None

    def tenants(self) -> dict[DeviceId, list[str]]:
        return {device_id: [run.job_id for run in here] for device_id, here in self.here.items()}


def part_on(gang: Sequence[GangMember], host_id: HostId) -> GangMember:
    """A gang's part on one host."""
    return next(member for member in gang if member.host_id == host_id)


def wait_s(
    devices: Devices, hosts: Sequence[HostReport], gpus: int, leaves_in_s: Callable[[JobRun], float]
) -> float:
    """Seconds until a gang has devices to itself: on one host if one could hold it, else anywhere. Infinite
    if the cluster could never hold it."""
    at: list[list[float]] = []
    for host in hosts:
        free_in_s = []
        for device in host.devices:
            last_s = 0.0
            for run in devices.here[device.device_id]:
                leaves_s = leaves_in_s(run)
                last_s = leaves_s if leaves_s > last_s else last_s
            free_in_s.append(last_s)
        at.append(sorted(free_in_s))
    if any(len(times) >= gpus for times in at):
        return min(times[gpus - 1] for times in at if len(times) >= gpus)
    everywhere = sorted(time for times in at for time in times)
    return everywhere[gpus - 1] if len(everywhere) >= gpus else inf
