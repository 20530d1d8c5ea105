"""What is learned of a job's needs, and what is known of a new job from others of its kind. Pure.

Rule: a job's memory is known if it was declared or measured; until then no job shares a device with it. A
profile that is learned while its job runs alone replaces what was planned for it.
"""

from __future__ import annotations

from cotenant.controller.domain import (
    Job,
    JobSpec,
    Profile,
    ProfileLearned,
    StoredProfile,
    base_key,
    beginning,
    key_of,
)
from cotenant.controller.engine.estimating import estimate_arrival
from cotenant.controller.engine.ledger import Ledger


def known_profile(ledger: Ledger, spec: JobSpec) -> Profile | None:
    """Said with the submission, else kept from a like job of the same user on the same type of device.

    None where the job could be given several types: what was measured on one does not hold on another; nor
    on a part of it.
    """
    if spec.profile is not None or spec.profiling == "only" or not spec.code_sha256:
        return spec.profile
    if spec.gpu_fraction < 1.0:
        return None
    types = {spec.gpu_type} if spec.gpu_type else {device.type for device in ledger.devices.values()}
    if len(types) != 1:
        return None
    return ledger.profiles.use(key_of(spec, max(1, spec.nodes), types.pop()))


def give_profile(ledger: Ledger, job: Job, profile: Profile) -> None:
    """Gives a waiting job what was meanwhile measured of its kind."""
    ledger.learn_profile(job, profile, given=True)
    ledger.expect(job, *estimate_arrival(ledger.estimates, job.spec, profile))


def learn_profile(ledger: Ledger, job: Job, event: ProfileLearned) -> None:
    """Take in what was measured."""
    ledger.learn_profile(job, event.profile)
    placement = job.placement
    if placement is None:
        hosts = max(1, job.spec.nodes)
    else:
        hosts = len(ledger.holdings.gang(placement.devices))
        needed = job.needed_mib(placement.accumulation_steps)
        unclaimed = all(ledger.claimed_by(device_id) is None for device_id in placement.devices)
        if needed is not None and unclaimed and not ledger.partners(job):
            ledger.plan_memory(job, needed)
    _keep(ledger, job, event, hosts)
    _give_its_like(ledger, job)


def learn_whole_life(ledger: Ledger, job: Job) -> None:
    """A job has finished alone within the time of a profile: what was measured is all that its kind needs,
    unless its batch can be split in ways that were not tried."""
    if job.attempt != 1 or job.co_tenants or job.accumulates:
        return
    if ledger.profiles.complete(job.job_id):
        _give_its_like(ledger, job)


def _give_its_like(ledger: Ledger, job: Job) -> None:
    """Gives it to jobs of its kind that have never started: the rest of a sweep, mostly."""
    mine = job.spec
    if not mine.code_sha256:
        return
    alike = [
        other
        for other in ledger.queued()
        if other.profile is None
        and other.attempt == 0
        and (other.spec.user, other.spec.code_sha256) == (mine.user, mine.code_sha256)
    ]
    for other in alike:
        if (profile := known_profile(ledger, other.spec)) is not None:
            give_profile(ledger, other, profile)


def _keep(ledger: Ledger, job: Job, event: ProfileLearned, hosts: int) -> None:
    key = key_of(job.spec, hosts, event.device_type)
    if not key:
        return
    spec = job.spec
    known = StoredProfile(
        base=base_key(spec),
        user=spec.user,
        name=spec.name,
        command=beginning(spec.launch.argv),
        gpus=spec.gpus_min,
        hosts=hosts,
        device_type=event.device_type,
        batch_size=spec.batch_size,
        profile=event.profile,
        learned_s=ledger.now_s,
        job_id=job.job_id,
        is_complete=event.is_complete and bool(event.profile.points or event.profile.indicators),
    )
    ledger.profiles.keep(key, known)
