"""Who holds which device, and who gets it next.

Rule: a device is free when it is healthy, nobody holds it and nobody has a claim on it; every change here
keeps the index of free devices and the set of shareable ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from cotenant.controller import domain
from cotenant.controller.engine.state.capacity import FreeIndex
from cotenant.controller.planning import PARTS_MAX, ROUNDING, HeldPart, held_part


class _Tenants(dict[domain.DeviceId, list[domain.JobId]]):
    """The tenants by device; a device without an entry has none."""

    def __missing__(self, device_id: domain.DeviceId) -> Sequence[domain.JobId]:
        return ()


class Holdings:
    """Devices, their tenants and the claims on them."""

    def __init__(
        self, jobs: Mapping[domain.JobId, domain.Job], devices: dict[domain.DeviceId, domain.Device]
    ) -> None:
        self.devices = devices
        self.departed: dict[domain.DeviceId, domain.Device] = {}
        """Devices that left their host's report while a job was on them."""
        self._lessened: set[domain.DeviceId] = set()
        """Devices of which their host offers less than before, while jobs run there: the jobs stay."""
        self._jobs = jobs
        self._tenants = _Tenants()
        self.tenants: Callable[[domain.DeviceId], Sequence[domain.JobId]] = self._tenants.__getitem__
        self.claims: dict[domain.DeviceId, domain.JobId] = {}
        self.free = FreeIndex(self._tenants, self.claims)
        self.claimed_by: Callable[[domain.DeviceId], domain.JobId | None] = self.claims.get
        self.changes = 0
        """How often devices have been occupied or vacated."""
        self.shared_count = 0
        """Devices with more than one tenant."""
        self._shareable: list[domain.DeviceId] | None = []
        """None: computed when somebody asks; few policies do."""
        self.divided: dict[domain.DeviceId, None] = {}
        """Devices on which jobs hold parts."""
        self._on_host: dict[domain.HostId, dict[domain.JobId, Sequence[domain.DeviceId]]] = {}
        """The part of each gang on a host, until its processes there are gone."""

    # --- Reading -----------------------------------------------------------------------------------

    def being_left(self, device_id: domain.DeviceId) -> Sequence[domain.JobId]:
        """The tenants of a healthy device that nobody has a claim on, if all of them are leaving it."""
        here = self._tenants[device_id]
        if not here or device_id in self.claims or not self.devices[device_id].healthy:
            return ()
        for job_id in here:
            if self._jobs[job_id].phase not in domain.LEAVING:
                return ()
        return here

    def shareable(self) -> Sequence[domain.DeviceId]:
        if self._shareable is None:
            self._shareable = sorted(
                [d for d, here in self._tenants.items() if len(here) == 1 and self._has_room(d)]
            )
        return self._shareable

    def _has_room(self, device_id: domain.DeviceId) -> bool:
        device = self.devices[device_id]
        is_whole = device_id not in self.divided
        return is_whole and device.healthy and device.max_tenants > 1 and device_id not in self.claims

    def parts(self, device_id: domain.DeviceId) -> list[HeldPart]:
        """The parts that a device's tenants have, leaving ones included."""
        return [held_part(self._jobs[job_id]) for job_id in self._tenants[device_id]]

    def claimants(self, devices: Iterable[domain.DeviceId] | None = None) -> Sequence[domain.JobId]:
        """Jobs with a reservation or a resize, in order of arrival; on these devices only, if any are
        named."""
        if not self.claims:
            return ()
        claims = self.claims.values() if devices is None else map(self.claims.get, devices)
        found = {job_id for job_id in claims if job_id is not None}
        return sorted(found, key=lambda job_id: self._jobs[job_id].number)

    def holders(self, *device_ids: domain.DeviceId) -> list[domain.Job]:
        """Who holds any of these devices, or gets one next; each once."""
        found: dict[domain.JobId, None] = {}
        for device_id in device_ids:
            found.update(dict.fromkeys(self._tenants[device_id]))
            if (claim := self.claims.get(device_id)) is not None:
                found[claim] = None
        return [self._jobs[job_id] for job_id in found]

    def on_host(self, host_id: domain.HostId) -> Sequence[domain.Job]:
        """Jobs whose current attempt still has processes (as far as is known) on the host, by arrival."""
        here = (self._jobs[job_id] for job_id in self._on_host.get(host_id, ()))
        return sorted(here, key=lambda job: job.number)

    def asking_on(self, host_id: domain.HostId) -> Sequence[domain.Job]:
        """Jobs that ask for cores or main memory and have processes on the host, or a claim on devices of it;
        by arrival."""
        here = {*self._on_host.get(host_id, ())}
        here.update(job_id for device_id, job_id in self.claims.items() if self.host_of(device_id) == host_id)
        jobs = (self._jobs[job_id] for job_id in here)
        return sorted((job for job in jobs if domain.asks_hosts(job.spec)), key=lambda job: job.number)

    def host_of(self, device_id: domain.DeviceId) -> domain.HostId:
        """The host of a device, also of one that is gone: devices are named after their hosts."""
        device = self.devices.get(device_id)
        return device.host_id if device is not None else domain.HostId(device_id.rpartition("/")[0])

    def gang(self, device_ids: tuple[domain.DeviceId, ...]) -> tuple[domain.GangMember, ...]:
        """The hosts of a placement in rank order, each with its part of the devices."""
        known, first, host_id = self.devices, 0, domain.HostId("")
        members: list[domain.GangMember] = []
        for rank, device_id in enumerate(device_ids):
            here = known[device_id].host_id if device_id in known else self.host_of(device_id)
            if rank and here != host_id:
                members.append(
                    domain.GangMember(host_id=host_id, devices=device_ids[first:rank], first_rank=first)
                )
                first = rank
            host_id = here
        return (*members, domain.GangMember(host_id=host_id, devices=device_ids[first:], first_rank=first))

    def held_by(self, job: domain.Job, host_id: domain.HostId) -> Sequence[domain.DeviceId]:
        """The part of its devices on a host on which it still has processes."""
        return self._on_host[host_id][job.job_id]

    def partners(self, job: domain.Job) -> tuple[domain.JobId, ...]:
        """Jobs that share one of its devices at this moment, in device order; who holds another part of it
        does not."""
        is_part = job.placement is not None and job.placement.fraction < 1.0
        return () if is_part or not self.shared_count else self.neighbours(job)

    def neighbours(self, job: domain.Job) -> tuple[domain.JobId, ...]:
        """Jobs on one of its devices at this moment, in device order, those with other parts of it
        included."""
        if job.placement is None or job.phase not in domain.ON_DEVICES:
            return ()
        seen = {
            other: None
            for d in job.placement.devices
            for other in self._tenants.get(d, ())
            if other != job.spec.job_id
        }
        return tuple(seen)

    # --- Hosts -------------------------------------------------------------------------------------

    def put_devices(self, report: domain.HostReport, known: Sequence[domain.Device]) -> None:
        """What a host has now, and what it had before."""
        for device in known:
            if not self._tenants.get(device.device_id) and device.device_id not in self.claims:
                self.devices.pop(device.device_id, None)
            else:  # Nobody gets it any more, unless the new report has it.
                gone = msgspec.structs.replace(device, healthy=False, note="its host no longer has it")
                self.devices[device.device_id] = self.departed[device.device_id] = gone
        before = {device.device_id: device for device in known}
        for device in report.devices:
            self.devices[device.device_id] = device
            self.departed.pop(device.device_id, None)
            was = before.get(device.device_id)
            if was is not None and self._tenants.get(device.device_id) and _has_less_room(device, was):
                self._lessened.add(device.device_id)

    def refresh_host(self, host: domain.Host) -> None:
        """After a change of its state or devices."""
        self._shareable = None
        self.free.set_host(host)

    # --- Taking and giving back --------------------------------------------------------------------

    def claim(self, job: domain.Job, devices: Sequence[domain.DeviceId]) -> None:
        """Nobody else gets these devices, though victims may still be on them."""
        for device_id in devices:
            assert device_id not in self.claims, f"{device_id} is already claimed"
            self.claims[device_id] = job.spec.job_id
        self._note_change(devices)

    def unclaim(self, job: domain.Job) -> None:
        placement = job.resize_to or job.placement
        assert placement is not None
        mine = [d for d in placement.devices if self.claims.get(d) == job.job_id]
        for device_id in mine:
            del self.claims[device_id]
        self._note_change(mine)

    def occupy(self, job: domain.Job, gang: Iterable[domain.GangMember]) -> None:
        """The gang holds its devices, and has processes on their hosts, from now on; a claim on them has done
        its work."""
        assert job.placement is not None
        self.changes += 1
        job_id, tenants, claims = job.spec.job_id, self._tenants, self.claims
        if job.placement.fraction < 1.0:
            self.divided[job.placement.devices[0]] = None
        for device_id in job.placement.devices:
            if device_id in claims:
                assert claims[device_id] == job_id, f"{device_id} is claimed by {claims[device_id]}"
                del claims[device_id]
            if device_id not in tenants:
                tenants[device_id] = [job_id]
                continue
            here = tenants[device_id]
            limit = PARTS_MAX if device_id in self.divided else self.devices[device_id].max_tenants
            assert job_id not in here and len(here) < limit, f"{device_id}: too many tenants: {here}"
            here.append(job_id)
            self.shared_count += len(here) == 2
            here.sort(key=lambda job_id: self._jobs[job_id].number)  # One order, after a restart too.
        self._shareable = None
        for member in gang:
            if member.host_id not in self._on_host:
                self._on_host[member.host_id] = {}
            self._on_host[member.host_id][job_id] = member.devices
            self.free.refresh(member.host_id)

    def vacate(self, job: domain.Job, host_id: domain.HostId) -> Sequence[domain.DeviceId]:
        """Every process of the gang on this host is gone: the devices that it held there."""
        job_id = job.spec.job_id
        self.changes += 1
        gone, tenants = self._on_host[host_id].pop(job_id), self._tenants
        for device_id in gone:
            here = tenants[device_id]
            if here == [job_id]:
                del tenants[device_id]
                if device_id in self.divided:
                    del self.divided[device_id]
            else:
                here.remove(job_id)
                self.shared_count -= len(here) == 1
        if self._lessened:
            self._lessened.difference_update(device_id for device_id in gone if device_id not in tenants)
        self._shareable = None
        self.free.refresh(host_id)
        if self.departed:
            self._forget_departed(gone)
        return gone

    def restore(self, job: domain.Job) -> None:
        """Take over what a saved job holds; hosts are refreshed afterwards."""
        if job.placement is None:
            return
        if job.resize_to is not None:
            self.claims.update(dict.fromkeys(job.resize_to.devices, job.job_id))
        if job.phase not in domain.ON_DEVICES:
            self.claims.update(dict.fromkeys(job.placement.devices, job.job_id))
            return
        if job.placement.fraction < 1.0:
            self.divided[job.placement.devices[0]] = None
        for member in self.gang(job.placement.devices):
            if member.host_id in job.attempt.hosts_left:
                self._on_host.setdefault(member.host_id, {})[job.job_id] = member.devices
                for device_id in member.devices:
                    here = self._tenants.setdefault(device_id, [])
                    here.append(job.job_id)
                    self.shared_count += len(here) == 2
                    if len(here) > 1:  # Whether its host has taken room back since is not in the snapshot.
                        self._lessened.add(device_id)

    def _note_change(self, device_ids: Sequence[domain.DeviceId]) -> None:
        """The claims on these devices have changed."""
        self._shareable = None
        for host_id in {self.devices[d].host_id for d in device_ids if d not in self._tenants}:
            self.free.refresh(host_id)
        if self.departed:
            self._forget_departed(device_ids)

    def _forget_departed(self, device_ids: Sequence[domain.DeviceId]) -> None:
        """Forgets those of the devices that their host no longer has, once nobody holds them or has a claim
        on them."""
        for device_id in device_ids:
            if device_id in self.departed and not (device_id in self._tenants or device_id in self.claims):
                del self.devices[device_id], self.departed[device_id]

    def check(self, hosts: Iterable[domain.Host]) -> None:
        """Assert that nobody holds what cannot be held, and that the indexes say what counting says."""
        single = [d for d in self.devices if len(self.tenants(d)) == 1]
        assert self.shareable() == sorted(filter(self._has_room, single))
        assert self.shared_count == sum(1 for here in self._tenants.values() if len(here) > 1)
        for device_id, here in self._tenants.items():
            if here:
                self._check_device(self.devices[device_id], here)
        total: dict[str, int] = {}
        for host in hosts:
            is_up = host.state is domain.HostState.OK
            taken = {*self._tenants, *self.claims}
            wanted = {d.device_id for d in host.report.devices if is_up and d.healthy} - taken
            types = {d.type for d in host.report.devices}
            free = {type: self.free.devices[host.host_id, type] for type in types}
            assert {d for devices in free.values() for d in devices} == wanted, host.host_id
            for type, devices in free.items():
                total[type] = total.get(type, 0) + len(devices)
                assert list(devices) == sorted(devices)
                assert not is_up or host.host_id in self.free.hosts_with_free(type, len(devices))
        for type, count in total.items():
            assert self.free.total(type) == count, f"{type}: {self.free.total(type)} free instead of {count}"

    def _check_device(self, device: domain.Device, here: Sequence[domain.JobId]) -> None:
        assert len(here) == len(set(here)), f"{device.device_id}: tenants {here}"
        has_room = device.device_id not in self._lessened
        placements = [self._jobs[job_id].placement for job_id in here]
        fractions = [p.fraction for p in placements if p is not None]
        if min(fractions) < 1.0:  # A whole tenant beside parts is too much as well.
            assert sum(fractions) <= 1.0 + ROUNDING, f"{device.device_id}: parts {fractions} of {here}"
            assert len(here) <= PARTS_MAX and device.device_id in self.divided, device.device_id
        else:
            assert len(here) <= device.max_tenants or not has_room, f"{device.device_id}: tenants {here}"
            assert device.device_id not in self.divided, device.device_id
        assert all(self._jobs[job_id].phase in domain.ON_DEVICES for job_id in here), (
            f"{device.device_id}: {here}"
        )
        assert all(p is not None and device.device_id in p.devices for p in placements)
        if len(here) > 1:
            planned = [p.memory_mib for p in placements if p is not None and p.memory_mib is not None]
            assert len(planned) == len(here), f"{device.device_id}: shared with unknown memory: {here}"
            fits = sum(planned) <= device.usable_mib
            assert fits or not has_room, f"{device.device_id}: {planned} MiB planned"


def _has_less_room(now: domain.Device, before: domain.Device) -> bool:
    """Say, its MPS daemon is gone and its compute mode takes one process, or its driver keeps more memory
    now."""
    return now.max_tenants < before.max_tenants or now.usable_mib < before.usable_mib
