"""Which devices of this host are shared through MPS, and which daemons that takes. Decides; starts nothing.

Rule: a GPU that is not shared through MPS says why (`Device.sharing_note`), for `nodes` and `explain`.
Until its daemon was seen to work, a device time-slices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

import msgspec
from msgspec import UNSET

from cotenant.agent.gpus.gpu_watch import TAKEN
from cotenant.controller.domain import Device, MpsSettings
from cotenant.mps import detection
from cotenant.mps.detection import DetectedHost, choose
from cotenant.mps.environment import host_daemon, log_directory, pipe_directory
from cotenant.mps.ownership import Spec
from cotenant.mps.process import CONTROL
from cotenant.profiler.driver.facts import GpuFacts

TENANTS = 2
"""Who share a device through MPS."""
TAKEN_AT_START = (
    "another agent held it when this one started, and one MPS daemon serves all devices of an agent: restart "
    "this agent when it is free"
)
NOT_SEEN = "its MPS daemon has not been seen to work yet"


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent does about MPS on this host."""

    runtime: str = ""
    """Where the daemons' pipe directories are; empty: MPS is not used here at all."""
    specs: tuple[Spec, ...] = ()
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

    def of_user(self, uid: int) -> Spec | None:
        """The daemon of one user's jobs, on a host where each has one; None: there is no such thing."""
        if self.one_uid or not self.host_devices:
            return None
        pipe = pipe_directory(PurePosixPath(self.runtime), host_daemon(uid, one_uid=False))
        own = self.specs[0]
        return dataclasses.replace(
            own, pipe_directory=pipe, log_directory=own.log_directory.with_name(pipe.name)
        )


def plan(
    settings: MpsSettings,
    host: DetectedHost,
    devices: Sequence[Device],
    gpus: Iterable[GpuFacts],
    *,
    logs: Path,
    owner: str,
    one_uid: bool,
) -> Setup:
    """`owner`: the agent's name over its restarts. `one_uid`: all jobs here run as one user."""
    known = {gpu.uuid: gpu for gpu in gpus}
    cuda = [device for device in devices if device.kind == "cuda"]
    why_not: dict[str, str] = {}
    for device in cuda:
        found = detection.verdict(host, _facts(device.local, known.get(device.local)))
        if not found.usable:
            why_not[device.local] = found.reason
        elif settings.mode != "per-device" and device.note.startswith(TAKEN):
            why_not[device.local] = TAKEN_AT_START
    usable = [device.local for device in cuda if device.local not in why_not]
    choice = choose(settings.mode, usable, one_uid=one_uid)
    for uuid in usable if not choice.groups else ():
        why_not[uuid] = choice.reason
    return Setup(
        runtime=str(host.runtime) if choice.groups else "",
        host_devices=choice.groups[0] if choice.per_host else (),
        one_uid=one_uid,
        specs=tuple(
            _spec(
                settings,
                host,
                host_daemon(host.uid, one_uid=one_uid) if choice.per_host else group[0],
                group,
                logs,
                owner,
            )
            for group in choice.groups
        ),
        why_not=why_not,
        tenants={device.local: device.max_tenants for device in cuda},
        reason=choice.reason if cuda else "",
    )


def _spec(
    settings: MpsSettings,
    host: DetectedHost,
    name: str,
    group: tuple[str, ...],
    logs: Path,
    owner: str,
) -> Spec:
    return Spec(
        pipe_directory=pipe_directory(host.runtime, name),
        log_directory=log_directory(PurePosixPath(logs), name),
        devices=group,
        owner=owner,
        percentage=settings.active_thread_percentage,
        program=host.control_path or CONTROL,
    )


def _facts(uuid: str, gpu: GpuFacts | None) -> detection.DetectedDevice:
    """What NVML said of it; what it did not say is unknown, and never taken for good."""
    return detection.DetectedDevice(
        uuid=uuid,
        compute_capability=None if gpu is None else gpu.capability,
        compute_mode=None if gpu is None else gpu.compute_mode,
        mig_enabled=None if gpu is None else gpu.mig,
    )


def shared(
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
    return tuple(
        _shared(device, setup, why_not, plain) if device.kind == "cuda" else device for device in devices
    )


def _shared(
    device: Device,
    setup: Setup,
    why_not: Mapping[str, str],
    plain: frozenset[str],
) -> Device:
    uuid = device.local
    why = setup.why_not.get(uuid) or why_not.get(uuid, NOT_SEEN)
    if not why and device.sharing != "mps" and uuid in plain:
        why = "a job that was started without MPS runs on it"
    alone = setup.tenants.get(uuid, device.max_tenants)
    return msgspec.structs.replace(
        device,
        sharing="time-slicing" if why else "mps",
        sharing_note=why,
        divides=not why or device.limits_jobs or UNSET,
        max_tenants=alone if why else max(TENANTS, alone),
    )
