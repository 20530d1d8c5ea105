"""Who may share a device, and how much of it a tenant needs; parts of one: how much a job takes, beside whom.

Rule: the engine refuses by these functions, and policies ask the same ones, so that no policy proposes what
the engine refuses. A job shares only if its peak memory is known: measured (profiled), else declared.

Rule: jobs that ask for a part of a GPU (`gpu_fraction`) hold one device together while their parts are at
most all of it, in share and in memory. A part is never beside a job that holds the whole device. Where
nothing would hold a job to its part (GPUs without MPS or the kernel's limit, slots of one core) it takes the
whole device; so does one that shares with nobody (`--share never`, faults, a run for its profile). A part's
memory is its share of the device's, or what is known that it needs if that is more: its limit. On a CPU slot
a part is so many whole cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from cotenant.controller.domain import Device, Job, JobId, Phase, Reason, because
from cotenant.controller.performance import memory_mib

FAULTS_ALONE = 2
"""So much evidence that a job causes faults makes it run alone."""


def why_alone(job: Job, beside: Job | None = None) -> Reason | None:
    """Why a job shares with no other at all; None if it may. `beside`: the job that would join it, to whom
    the reason is told. An idle job that lends its devices does so to jobs that can be asked to leave."""
    if job.spec.gpu_fraction < 1.0:
        if beside is None:
            return because("sharing-part", job.spec.gpu_fraction)
        return because("sharing-unknown", job.job_id, "it holds a part of its device")
    if job.spec.share == "never" and not (job.lends and beside is not None and beside.preemptible):
        if beside is None:
            return because("sharing-off")
        return because("sharing-unknown", job.job_id, "it was submitted with --share never")
    if job.counts.crowded:
        if beside is None:
            return because("sharing-alone", job.counts.crowded)
        return because("sharing-unknown", job.job_id, "it ran out of device memory when it last shared")
    if job.outgrown:
        if beside is None:
            return because("sharing-outgrown")
        return because("sharing-unknown", job.job_id, "it needs more device memory than is known of it")
    if job.counts.fault_evidence >= FAULTS_ALONE:
        if beside is None:
            return because("sharing-faults")
        return because("sharing-unknown", job.job_id, "it may be what caused GPU faults while it shared")
    return None


MEASURED_WITHIN_S: Final = 300.0
"""Of training: a job whose memory is not known by then is taken to be one that nothing measures."""


def is_being_measured(job: Job, now_s: float) -> bool:
    """Whether a job that has started will tell its peak memory soon: it is measured in its first attempt,
    alone, about a minute after it has started."""
    spec, placement = job.spec, job.placement
    if placement is None or placement.beside or job.phase not in (Phase.LOADING, Phase.RUNNING):
        return False
    if job.attempt.number > 1 or spec.profiling == "never" or spec.is_elastic or spec.gpu_fraction < 1.0:
        return False
    return job.phase is Phase.LOADING or now_s - job.phase_since_s <= MEASURED_WITHIN_S


def peak_mib(job: Job, accumulation_steps: int) -> int | None:
    """Peak memory per device at s: profiled, else declared (a bound at any s), else unknown."""
    profiled = memory_mib(job.measured.profile, accumulation_steps) if job.measured.profile else None
    return max(1, round(profiled)) if profiled is not None else job.spec.memory_mib


def tenant_mib(tenant: Job) -> int | None:
    """What a placed job needs per device: as planned, or more if measurements since then say so; None:
    unknown."""
    placement = tenant.placement
    if placement is None:
        return None
    profiled = (
        memory_mib(tenant.measured.profile, placement.accumulation_steps) if tenant.measured.profile else None
    )
    if profiled is None or placement.memory_mib is None:
        return placement.memory_mib
    return max(placement.memory_mib, round(profiled))


ROUNDING: Final = 1e-9
"""Thirds add up to all of it."""
PARTS_MAX: Final = 16
"""Of one device: a daemon of MPS serves 48 processes, and a job may have several."""


def cores_of(fraction: float, cores: int) -> int:
    """Whole cores of a slot that a part of it stands for."""
    return min(cores, max(1, -int(-(fraction * cores - ROUNDING) // 1)))


def fraction_of(job: Job, device: Device) -> float:
    """How much of the device the job takes; 1: all of it."""
    asked = job.spec.gpu_fraction
    if asked >= 1.0 or not device.divides or why_undivided(job):
        return 1.0
    return cores_of(asked, len(device.cores)) / len(device.cores) if device.kind == "cpu" else asked


def why_undivided(job: Job) -> str:
    """Why a job that asks for a part is beside nobody all the same; empty if it may be."""
    if job.spec.share == "never":
        return "it was submitted with --share never"
    if job.spec.profiling == "only":
        return "it runs to be measured"
    if job.counts.fault_evidence >= FAULTS_ALONE:
        return "it may be what caused GPU faults"
    return ""


def part_mib(job: Job, device: Device, fraction: float) -> int:
    """What a part may take of the device's memory."""
    return max(job.needed_mib(1) or 0, int(device.usable_mib * fraction + ROUNDING), 1)


class HeldPart(NamedTuple):
    """What a job has, or is to get, of a device."""

    job_id: JobId
    fraction: float
    mib: int
    uid: int
    alone: bool
    """Nobody may join it any more."""


def held_part(job: Job) -> HeldPart:
    """The part that a job holds which is on its devices."""
    placement = job.placement
    fraction = 1.0 if placement is None else placement.fraction
    return HeldPart(
        job.job_id, fraction, tenant_mib(job) or 0, job.spec.launch.uid, alone=bool(why_undivided(job))
    )


def part_to_get(job: Job, device: Device) -> HeldPart:
    """The part that a job which waits would get of a device."""
    fraction = fraction_of(job, device)
    mib = part_mib(job, device, fraction)
    return HeldPart(job.job_id, fraction, mib, job.spec.launch.uid, alone=fraction == 1.0)


def why_no_part(job: Job, device: Device, held: Sequence[HeldPart]) -> Reason | None:
    """Why the job cannot have its part of a device beside all these; None if it can."""
    device_id, mine = device.device_id, part_to_get(job, device)
    if mine.fraction == 1.0:
        why = why_undivided(job)
        return (
            because("part-alone", job.spec.gpu_fraction, why) if why else because("part-undivided", device_id)
        )
    for other in held:
        if other.alone or other.fraction == 1.0:
            return because("part-beside-whole", device_id, other.job_id)
        if device.sharing == "mps" and other.uid != mine.uid:
            return because("part-uid", device_id)
    if len(held) >= PARTS_MAX:
        return because("part-crowded", device_id, len(held))
    left = 1.0 - sum(other.fraction for other in held)
    if mine.fraction > left + ROUNDING:
        return because("part-no-room", device_id, max(0.0, left), mine.fraction)
    left_mib = device.usable_mib - sum(other.mib for other in held)
    return because("part-no-memory", device_id, left_mib, mine.mib) if mine.mib > left_mib else None
