"""Which devices of this host are shared through MPS, which daemons that takes, and whom a server's FAULT
concerns. Decides; starts nothing.

Rule: a GPU that is not shared through MPS says why (`Device.sharing_note`), for `nodes` and `explain`.
Until its daemon was seen to work, a device time-slices.

Rule: where one daemon serves several devices, a FAULT concerns those that share clients. NVIDIA's manual says
that a fatal fault is contained in the devices that share clients, directly or over others; that all clients
there have to exit before the server takes anybody new, on any of its devices; and that clients on its other
devices go on. A daemon does not say where it happened. So

    all its clients are on devices that are connected     they are ended
    where it was is known (an Xid, a CUDA error)          who is connected with that is ended, others go on
    nobody says where                                     all are ended, after some looks
    those are gone, and the server is still in FAULT      all that are left are ended, after some looks

A job counts as one client of all its devices of this host, for its workers see all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from cotenant.agent.ipc.records import Order
from cotenant.controller.domain import Device
from cotenant.controller.system.sections import MpsSettings
from cotenant.mps import detection, environment, ownership, process
from cotenant.profiler.driver.facts import COMPUTE_EXCLUSIVE_PROCESS, GpuFacts

TENANTS = 2
"""Who share a device through MPS."""
EXCLUSIVE = (
    "it is in compute mode EXCLUSIVE_PROCESS, and each user here has an MPS server, one of which would keep "
    "all others out (an admin can change it: nvidia-smi -c DEFAULT)"
)
UNSERVED = "time-slicing, not MPS: the MPS daemon of its user does not serve all its devices now"
NOT_SEEN = "its MPS daemon has not been seen to work yet"


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent does about MPS on this host."""

    runtime: str = ""
    """Where the daemons' pipe directories are; empty: MPS is not used here at all."""
    specs: tuple[ownership.Spec, ...] = ()
    """Daemons that always run. Where each user has one: the agent's own, which shows whether MPS works."""
    host_devices: tuple[str, ...] = ()
    """UUIDs, in the order of the daemons that serve all of them; empty: one daemon for each."""
    one_uid: bool = True
    """All jobs here run as one user, and so have one daemon for all devices in common."""
    why_not: Mapping[str, str] = {}
    """By device UUID: why it is not shared through MPS, whatever its daemon does."""
    tenants: Mapping[str, int] = {}
    """By device UUID: how many may share it without MPS."""
    reason: str = ""
    """Why one daemon per device or per host; empty on a host without GPUs."""

    def spec_of_user(self, uid: int) -> ownership.Spec | None:
        """The daemon of one user's jobs, on a host where each has one; None: there is no such thing."""
        if self.one_uid or not self.host_devices:
            return None
        pipe = environment.pipe_directory(
            PurePosixPath(self.runtime), environment.host_daemon(uid, one_uid=False)
        )
        own = self.specs[0]
        logs = own.log_directory.with_name(pipe.name)
        return dataclasses.replace(own, pipe_directory=pipe, log_directory=logs, client_uid=uid)


def plan(
    settings: MpsSettings,
    host: detection.DetectedHost,
    devices: Sequence[Device],
    gpus: Iterable[GpuFacts],
    *,
    logs: Path,
    owner: str,
    one_uid: bool,
) -> Setup:
    """Plans which devices MPS serves, and with which daemons. `owner`: the agent's name over its restarts.
    `one_uid`: all jobs here run as one user."""
    known = {gpu.uuid: gpu for gpu in gpus}
    cuda = [device for device in devices if device.kind == "cuda"]
    why_not = {device.local: device.sharing_note for device in cuda if device.sharing_note}
    is_per_host = settings.mode != "per-device"
    for device in cuda:
        if device.sharing_note:
            continue
        facts = known.get(device.local) or GpuFacts(index=0, uuid=device.local)
        found = detection.verdict(host, facts)
        if not found.usable:
            why_not[device.local] = found.reason
        elif is_per_host and not one_uid and facts.compute_mode == COMPUTE_EXCLUSIVE_PROCESS:
            why_not[device.local] = EXCLUSIVE
    usable = [device.local for device in cuda if device.local not in why_not]
    groups, reason = detection.choose(settings.mode, usable, one_uid=one_uid)
    why_not |= {} if groups else dict.fromkeys(usable, reason)

    def spec(group: tuple[str, ...]) -> ownership.Spec:
        name = environment.host_daemon(host.uid, one_uid=one_uid) if is_per_host else group[0]
        return ownership.Spec(
            pipe_directory=environment.pipe_directory(host.runtime, name),
            log_directory=environment.log_directory(PurePosixPath(logs), name),
            devices=group,
            owner=owner,
            client_uid=host.uid if is_per_host and not one_uid else None,
            percentage=settings.active_thread_percentage,
            driver=host.driver,
            program=host.control_path or process.CONTROL,
        )

    return Setup(
        runtime=str(host.runtime) if groups else "",
        host_devices=groups[0] if groups and is_per_host else (),
        one_uid=one_uid,
        specs=tuple(map(spec, groups)),
        why_not=why_not,
        tenants={device.local: device.max_tenants for device in cuda},
        reason=reason if cuda else "",
    )


def mark_shared(
    devices: tuple[Device, ...],
    setup: Setup,
    why_not: Mapping[str, str],
    *,
    plain: frozenset[str] = frozenset(),
) -> tuple[Device, ...]:
    """The devices, each GPU with how it is shared now.

    `why_not`: by UUID, what its daemon's owner says; empty where it works. `plain`: UUIDs that a
    job which is no client of a daemon runs on: such a device goes on to time-slice until that job has ended,
    for a client beside it would.
    """

    def marked(device: Device) -> Device:
        uuid = device.local
        why = setup.why_not.get(uuid) or why_not.get(uuid, NOT_SEEN)
        if not why and device.sharing != "mps" and uuid in plain:
            why = "a job that was started without MPS runs on it"
        alone = setup.tenants.get(uuid, device.max_tenants)
        return msgspec.structs.replace(
            device,
            sharing="time-slicing" if why else "mps",
            sharing_note=why,
            divides=not why or device.limits_jobs,
            max_tenants=alone if why else max(TENANTS, alone),
        )

    return tuple(marked(device) if device.kind == "cuda" else device for device in devices)


def number_devices(order: Order, serving: Mapping[str, tuple[str, ...]]) -> Order:
    """Returns the order as its daemons can serve it now: with its devices by their numbers, or without MPS.
    `serving`: by pipe directory, the devices of each daemon in its own order."""
    clients = []
    for client in order.mps:
        served = serving.get(client.pipe_directory, ())
        uuids = (client.device_uuid,) if client.device_uuid else order.ranks[0].cuda_uuids
        if not set(uuids) <= set(served):
            return msgspec.structs.replace(order, mps=(), notes=(*order.notes, UNSERVED))
        clients.append(msgspec.structs.replace(client, device_numbers=tuple(map(served.index, uuids))))
    return msgspec.structs.replace(order, mps=tuple(clients))


# --- Whom a FAULT concerns -------------------------------------------------------------------------


NEWS_LOOKS: Final = 2
"""For news of where it was."""
RECOVERY_LOOKS: Final = 5
"""For a server to make its contexts anew."""

DeviceGroup = frozenset[str]
"""UUIDs of devices that share clients."""


@dataclass
class _Fault:
    looks: int = 0
    """Since it began, or since those that were told have gone."""
    told: set[DeviceGroup] = field(default_factory=set)


class FaultReach:
    def __init__(self) -> None:
        self._faults: dict[str, _Fault] = {}

    def look(
        self,
        in_fault: Collection[str],
        clients: Mapping[str, Collection[DeviceGroup]],
        known: Collection[str],
        *,
        decide: bool = False,
    ) -> list[DeviceGroup]:
        """Groups whose clients are to be ended now; each once.

        `in_fault`: pipe directories of daemons whose server is in FAULT. `clients`: by pipe directory, the
        devices of each job that is its client. `known`: devices on which an error is known. `decide`:
        somebody waits for a verdict, and not for news.
        """
        self._faults = {pipe: self._faults.get(pipe) or _Fault() for pipe in in_fault}
        found: list[DeviceGroup] = []
        for pipe, fault in self._faults.items():
            new = _concerned_groups(fault, connect_groups(clients.get(pipe, ())), known, decide)
            fault.told |= new
            found += sorted(new, key=sorted)
        return found


def _concerned_groups(
    fault: _Fault, groups: set[DeviceGroup], known: Collection[str], decide: bool
) -> set[DeviceGroup]:
    leaving = {group for group in groups if any(group <= told for told in fault.told)}
    left = groups - leaving
    named = {group for group in left if not group.isdisjoint(known)}
    if named or leaving:
        fault.looks = 0
        return named
    fault.looks += 1
    if fault.told:
        return left if fault.looks > RECOVERY_LOOKS else set()
    return left if decide or len(left) == 1 or fault.looks > NEWS_LOOKS else set()


def connect_groups(parts: Collection[DeviceGroup]) -> set[DeviceGroup]:
    """The devices that share clients, directly or over others, together."""
    found: set[DeviceGroup] = set()
    for part in parts:
        touched = {group for group in found if not group.isdisjoint(part)}
        found = (found - touched) | {part.union(*touched)}
    return found
