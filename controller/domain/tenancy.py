"""Who may share a device at all, and how much of it a tenant needs.

Rule: the engine refuses by these functions, and policies ask the same ones, so that no policy proposes what
the engine refuses. A
job shares only if its peak memory is known: measured (profiled), else declared.
"""

from __future__ import annotations

from cotenant.controller.domain.job import Job
from cotenant.controller.domain.perf import memory_mib
from cotenant.controller.domain.reasons import Reason, because

FAULTS_ALONE = 2
"""So much evidence that a job causes faults makes it run alone."""


def why_alone(job: Job, beside: Job | None = None) -> Reason | None:
    """Why a job shares with no other at all; None if it may. `beside`: the job that would join it, to whom
    the reason is told."""
    if job.spec.gpu_fraction < 1.0:
        if beside is None:
            return because("sharing-part", job.spec.gpu_fraction)
        return because("sharing-unknown", job.job_id, "it holds a part of its device")
    if job.spec.share == "never":
        if beside is None:
            return because("sharing-off")
        return because("sharing-unknown", job.job_id, "it was submitted with --share never")
    if job.crowded:
        if beside is None:
            return because("sharing-alone", job.crowded)
        return because("sharing-unknown", job.job_id, "it ran out of device memory when it last shared")
    if job.outgrown:
        if beside is None:
            return because("sharing-outgrown")
        return because("sharing-unknown", job.job_id, "it needs more device memory than is known of it")
    if job.fault_evidence >= FAULTS_ALONE:
        if beside is None:
            return because("sharing-faults")
        return because("sharing-unknown", job.job_id, "it may be what caused GPU faults while it shared")
    return None


def memory_unknown(job: Job) -> str:
    """A reason that also says how to make the memory known."""
    return f"the memory that job {job.job_id} needs is not known: give --mem, or run its like alone"


def peak_mib(job: Job, accumulation_steps: int) -> int | None:
    """Peak memory per device at s: profiled, else declared (a bound at any s), else unknown."""
    profiled = memory_mib(job.profile, accumulation_steps) if job.profile else None
    return max(1, round(profiled)) if profiled is not None else job.spec.memory_mib


def tenant_mib(tenant: Job) -> int | None:
    """What a placed job needs per device: as planned, or more if measurements since then say so; None:
    unknown."""
    placement = tenant.placement
    if placement is None:
        return None
    profiled = memory_mib(tenant.profile, placement.accumulation_steps) if tenant.profile else None
    if profiled is None or placement.memory_mib is None:
        return placement.memory_mib
    return max(placement.memory_mib, round(profiled))
