"""Which devices of this host are shared through MPS, and which daemons that takes. Decides; starts nothing.

Rule: a GPU that is not shared through MPS says why (`Device.sharing_note`), for `nodes` and `explain`.
Until its daemon was seen to work, a device time-slices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from cotenant.controller.domain import Device, MpsSettings
from cotenant.mps import detection
from cotenant.mps.detection import DetectedHost, MpsChoice, choose
from cotenant.mps.environment import log_directory, pipe_directory
from cotenant.mps.ownership import Spec
from cotenant.mps.process import CONTROL
from cotenant.profiler.driver.facts import GpuFacts

WHOLE_HOST = ""
"""Stands for the UUID in the paths of a daemon that serves all devices."""
TENANTS = 2
"""Who share a device through MPS."""
NOT_SEEN = "its MPS daemon has not been seen to work yet"


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent does about MPS on this host."""

    runtime: str = ""
    """Where the daemons' pipe directories are; empty: MPS is not used here at all."""
    per_host: bool = False
    specs: tuple[Spec, ...] = ()
    why_not: Mapping[str, str] = {}
    """By device UUID: why it is not shared through MPS, whatever its daemon does."""
    tenants: Mapping[str, int] = {}
    """By device UUID: how many may share it without MPS."""
    reason: str = ""
    """Why one daemon per device or per host; empty on a host without GPUs."""


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
    usable = [device.local for device in cuda if device.local not in why_not]
    choice = choose(settings.mode, usable, one_uid=one_uid)
    for uuid in usable if not choice.groups else ():
        why_not[uuid] = choice.reason
    return Setup(
        runtime=str(host.runtime) if choice.groups else "",
        per_host=choice.per_host,
        specs=tuple(_spec(settings, host, choice, group, logs, owner) for group in choice.groups),
        why_not=why_not,
        tenants={device.local: device.max_tenants for device in cuda},
        reason=choice.reason if cuda else "",
    )


def _spec(
    settings: MpsSettings,
    host: DetectedHost,
    choice: MpsChoice,
    group: tuple[str, ...],
    logs: Path,
    owner: str,
) -> Spec:
    name = WHOLE_HOST if choice.per_host else group[0]
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
        max_tenants=alone if why else max(TENANTS, alone),
    )
