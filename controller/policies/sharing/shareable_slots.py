"""Where a newcomer could share: devices with one tenant that may take another, by tenant and place.

Rule: looked up once per decision and updated with it, so that trying many jobs costs what is shareable, not
what the cluster holds. What is the same for every newcomer (the tenant's remaining time, the memory beside
it) is computed once; what is the same for one kind (their interference ratios) once per kind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from math import inf
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from cotenant.controller import domain, planning
from cotenant.controller.knowledge import LOSS_MIN, loses, signature
from cotenant.controller.performance import Interference, ShareBound, gain_of
from cotenant.controller.policies.sharing.sub_batches import Batches, Floats, SubBatch, known_batches

HostAndType = tuple[domain.HostId, str]
"""A host and one type of its devices."""
TenantKind = tuple[str, ShareBound, int]
"""What interference depends on: a job's signature and its profile object (within one decision)."""
Mask = NDArray[np.bool_]


class ShareableSlot(msgspec.Struct, frozen=True):
    """What one tenant leaves at one place."""

    partner: domain.Job
    place: HostAndType
    devices: tuple[domain.DeviceId, ...]
    left_mib: int
    """Memory left beside the tenant, on the device that has least."""
    one_uid: bool
    """Under MPS both tenants must be one user's."""

    def admits(
        self, view: planning.View, job: domain.Job, scheduling_class: planning.SchedulingClass
    ) -> bool:
        if not is_suitable(view, scheduling_class, self.place):
            return False
        return not self.one_uid or job.spec.launch.uid == self.partner.spec.launch.uid


def is_suitable(view: planning.View, scheduling_class: planning.SchedulingClass, place: HostAndType) -> bool:
    """Whether a job of this class may use devices of the place."""
    host_id, type = place
    return domain.is_type_for(scheduling_class.gpu_type, type) and planning.suits(
        view.hosts[host_id], scheduling_class
    )


def memory_unknown(
    job: domain.Job, partner: domain.Job, now_s: float, *, measured: Iterable[domain.Job] = ()
) -> domain.Reason:
    """Why a pair does not share whose `job` needs an unknown amount of memory: it is waited for, or has to be
    said. `measured`: jobs that may be measured instead of it, as its like."""
    kind = signature(job.spec)
    for one in (job, *measured):
        if planning.is_being_measured(one, now_s) and signature(one.spec) == kind:
            return domain.because("sharing-memory-soon", partner.job_id, job.job_id, one.job_id)
    why = f"the memory that job {job.job_id} needs is not known: give --mem, or run its like alone"
    return domain.because("sharing-unknown", partner.job_id, why)


class Ratios(NamedTuple):
    """The interference ratios of newcomers beside each tenant; a row per newcomer and a column per slot."""

    mine: Floats
    theirs: Floats
    allowed: Mask
    """False where the place does not suit the job, or the pair is not made again."""


DEVICES_MAX: Final = 1024
"""Shareable devices that one decision looks at: in a large cluster some of the first ones will do."""


class ShareableSlots:
    """The shareable slots of a plan, in the order of their first devices."""

    def __init__(self, plan: planning.Plan, observations: int | None = None) -> None:
        """Finds the slots of a plan that can be shared. `observations`: how many prove a measured loss, after
        which the pair is not made again; None: losses do not matter."""
        self._view, self._plan = plan.view, plan
        self._observations = observations
        self.closed: domain.Reason | None = None
        """Why a job that has a device to itself shares it with no other."""
        view = plan.view
        found: dict[tuple[domain.JobId, HostAndType], list[domain.DeviceId]] = {}
        able: dict[domain.JobId, int] = {}
        takes_work = {host_id: host.takes_work for host_id, host in view.hosts.items()}
        for device_id in islice(view.holdings.shareable(), DEVICES_MAX):
            device = view.devices[device_id]
            staying = plan.staying(device_id) if plan.actions else view.holdings.tenants(device_id)
            if len(staying) != 1 or not takes_work[device.host_id]:
                continue
            job_id = staying[0]
            needed = able.get(job_id)
            if needed is None:
                needed = able[job_id] = self._needs_mib(view.jobs[job_id])
            if needed:
                found.setdefault((job_id, (device.host_id, device.type)), []).append(device_id)
        self._all = [self._room(job_id, place, here, able[job_id]) for (job_id, place), here in found.items()]
        self._at = {device_id: n for n, slot in enumerate(self._all) for device_id in slot.devices}
        self._open = len(self._all)
        self._places = list({slot.place: None for slot in self._all})
        self._open_mask: Mask | None = None
        self.is_one_uid = any(slot.one_uid for slot in self._all)
        """Some tenant can only be joined by jobs of its own user."""
        self.batches: Batches = {}
        """Ways to split batches, computed once for all jobs that are alike."""
        self._pairs: dict[tuple[TenantKind, int], Interference] = {}
        self._left_s: Floats | None = None
        self._left_mib: Floats | None = None

    def _needs_mib(self, partner: domain.Job) -> int:
        """What a tenant that may share needs; 0 if it may not."""
        if partner.phase is not domain.RUNNING and partner.phase is not domain.LOADING:
            return 0
        alone = planning.why_alone(partner, beside=partner)
        if alone is not None:
            self.closed = alone
            return 0
        planned = planning.tenant_mib(partner)
        if planned is None:
            self.closed = memory_unknown(partner, partner, self._view.now_s)
        return planned or 0

    def _room(
        self, job_id: domain.JobId, place: HostAndType, here: list[domain.DeviceId], planned: int
    ) -> ShareableSlot:
        known, least_mib, one_uid = self._view.devices, inf, False
        for device_id in here:
            device = known[device_id]
            usable_mib = device.memory_mib - device.reserve_mib
            least_mib = usable_mib if usable_mib < least_mib else least_mib
            one_uid |= device.sharing == "mps"
        left_mib = int(least_mib) - planned
        return ShareableSlot(self._view.jobs[job_id], place, tuple(here), left_mib, one_uid)

    def __bool__(self) -> bool:
        return self._open > 0

    def __len__(self) -> int:
        """All slots, including those taken since."""
        return len(self._all)

    def __getitem__(self, number: int) -> ShareableSlot:
        return self._all[number]

    def everything(self) -> list[ShareableSlot]:
        """All slots in the order of `left_s` and the other arrays, including those taken since."""
        return self._all

    def __iter__(self) -> Iterator[ShareableSlot]:
        return (slot for slot in self._all if slot.devices)

    def take(self, taken: tuple[domain.DeviceId, ...]) -> None:
        """A newcomer has started there."""
        for number in dict.fromkeys(self._at[d] for d in taken if d in self._at):
            slot = self._all[number]
            left = tuple(d for d in slot.devices if d not in taken)
            self._all[number] = msgspec.structs.replace(slot, devices=left)
            self._open -= not left
            if self._open_mask is not None:
                self._open_mask[number] = bool(left)
        for device_id in taken:
            self._at.pop(device_id, None)
        self._left_mib = None

    # --- Places --------------------------------------------------------------------------------------

    def devices_at(self) -> NDArray[np.int64]:
        """Devices that each slot has left at each place of any; shape (slots, places)."""
        places = {place: n for n, place in enumerate(self._places)}
        found = np.zeros((len(self._all), len(places)), dtype=np.int64)
        for number, slot in enumerate(self._all):
            found[number, places[slot.place]] = len(slot.devices)
        return found

    def free_at(self) -> NDArray[np.int64]:
        """Free devices at each of these places."""
        return np.array([len(self._plan.free_devices(*place)) for place in self._places], dtype=np.int64)

    def free_everywhere(self) -> int:
        return self._plan.free_everywhere

    def is_wide(self, scheduling_class: planning.SchedulingClass) -> bool:
        """Whether there is a type of device of which no host could hold a gang of this class."""
        gpus, largest = scheduling_class.gpus, self._view.sizes.on_host
        types = {type for _, type in self._places}
        return gpus > 1 and any(gpus > largest(scheduling_class, type) for type in types)

    # --- All slots at once -------------------------------------------------------------------------

    def batches_of(self, job: domain.Job) -> tuple[SubBatch, ...]:
        """The ways to split a waiting job's batch, the whole one first; none where its memory is unknown."""
        return known_batches(job, self.batches)

    def may_limit(self, job: domain.Job, partner: domain.Job) -> bool:
        """Whether a job of unknown memory may join a tenant, limited to the memory that the tenant leaves."""
        return False

    def expected_left_s(self, job: domain.Job) -> float | None:
        """Seconds that a job still trains, alone; None: its length is unknown, and it shares with nobody."""
        return job.known_left_s(self._view.now_s)

    def left_s(self) -> Floats:
        """Seconds that each tenant still trains, alone; NaN if unknown."""
        if self._left_s is None:
            lefts = [self.expected_left_s(slot.partner) for slot in self._all]
            self._left_s = np.array([np.nan if left is None else left for left in lefts])
        return self._left_s

    def left_mib(self) -> Floats:
        """The memory that is left beside each tenant, in MiB; below 0 where no device is left."""
        if self._left_mib is None:
            self._left_mib = np.array([slot.left_mib if slot.devices else -1.0 for slot in self._all])
        return self._left_mib

    def open(self) -> Mask:
        """Slots of which a device is left; changes as they are taken."""
        if self._open_mask is None:
            self._open_mask = np.array([bool(slot.devices) for slot in self._all], dtype=np.bool_)
        return self._open_mask

    def kind(self, job: domain.Job) -> TenantKind:
        """Jobs of one kind have the same ratios beside everybody."""
        return signature(job.spec), self._view.pairs.bound_of(job), id(job.measured.profile)

    def ratios(self, jobs: Sequence[domain.Job], classes: Sequence[planning.SchedulingClass]) -> Ratios:
        """Ratios of newcomers, and of their classes, beside each tenant; asked once per kind of tenants."""
        tenants, of = self._kinds_of_tenants()
        pairs = self.pairs(jobs, tenants)
        each, shape = [xi for row in pairs for xi in row], (len(jobs), len(tenants))
        mine = np.array([xi.first for xi in each], dtype=np.float64).reshape(shape)
        theirs = np.array([xi.second for xi in each], dtype=np.float64).reshape(shape)
        never = [xi.crowded or xi.faulted or xi.over_bound for xi in each]
        apart: Mask = np.array(never, dtype=np.bool_).reshape(shape)
        if (least := self._observations) is not None:
            certain = [xi.both and xi.count >= least for xi in each]
            is_certain: Mask = np.array(certain, dtype=np.bool_).reshape(shape)
            apart |= is_certain & (gain_of(mine, theirs) < -LOSS_MIN)  # `loses`, of all at once.
        suits = {wanted: self._suits(wanted) for wanted in set(classes)}
        suited = np.array([suits[wanted] for wanted in classes], dtype=np.bool_)
        allowed = suited.reshape(len(jobs), len(of)) & ~apart[:, of]
        return Ratios(mine[:, of], theirs[:, of], allowed)

    def _kinds_of_tenants(self) -> tuple[list[domain.Job], list[int]]:
        """Returns a tenant of each kind, and for every slot the number of its tenant's kind."""
        kinds = [self.kind(slot.partner) for slot in self._all]
        first = dict(zip(kinds, [slot.partner for slot in self._all], strict=True))
        at = {kind: number for number, kind in enumerate(first)}
        return list(first.values()), [at[kind] for kind in kinds]

    def interference(self, job: domain.Job, partner: domain.Job) -> Interference:
        """The interference of two jobs as `pairs` has it, looked up once for each kind of newcomer."""
        key = (self.kind(job), partner.number)
        xi = self._pairs.get(key)
        if xi is None:
            xi = self._pairs[key] = self.pairs((job,), (partner,))[0][0]
        return xi

    def pairs(
        self, jobs: Sequence[domain.Job], partners: Sequence[domain.Job]
    ) -> Sequence[Sequence[Interference]]:
        """The view's forecasts for each of these beside each of those."""
        return self._view.pairs.interferences(jobs, partners)

    def _parted_from(self, job: domain.Job) -> Collection[domain.JobId]:
        """Jobs that it has shared with before one of the two was stopped."""
        if self._observations is None:
            return ()
        jobs = self._view.jobs
        return [
            o for o in job.co_tenants if o in jobs and (job.counts.preemptions or jobs[o].counts.preemptions)
        ]

    def why_not_again(self, job: domain.Job, partner: domain.Job) -> domain.Reason | None:
        """Why this pair is not made again, whatever it would bring by the model; None if it may be."""
        if partner.job_id in self._parted_from(job):
            return domain.because("sharing-parted", partner.job_id)
        xi = self.interference(job, partner)
        if xi.crowded:
            return domain.because("sharing-crowded", partner.job_id)
        if xi.faulted:
            return domain.because("sharing-faulted", partner.job_id)
        if xi.over_bound:
            return domain.because("sharing-bound", partner.job_id)
        if self._observations is not None and loses(xi, self._observations):
            return domain.because("sharing-lost", partner.job_id, xi.first, xi.second)
        return None

    def find_of_another_user(self, job: domain.Job) -> domain.Job | None:
        """A tenant that the job cannot join only because MPS wants both to be one user's."""
        uid = job.spec.launch.uid
        others = (slot.partner for slot in self if slot.one_uid and slot.partner.spec.launch.uid != uid)
        return next(others, None)

    def admission_mask(self, job: domain.Job) -> Mask:
        """Slots whose tenant it was not parted from, under MPS of the same user."""
        uid, parted = job.spec.launch.uid, self._parted_from(job)
        here = [
            (not slot.one_uid or slot.partner.spec.launch.uid == uid)
            and slot.partner.spec.job_id not in parted
            for slot in self._all
        ]
        return np.array(here, dtype=np.bool_)

    def _suits(self, scheduling_class: planning.SchedulingClass) -> list[bool]:
        """Tells for each slot whether its host and device type suit jobs of a class."""
        asks = scheduling_class.asks_hosts
        places = {
            place: is_suitable(self._view, scheduling_class, place)
            and (not asks or self._plan.has_room(place[0], scheduling_class))
            for place in self._places
        }
        return [places[slot.place] for slot in self._all]
