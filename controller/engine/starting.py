"""From a placement to the commands that start it, one per host. Pure."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET, UnsetType

from cotenant.controller.domain import AttemptNo, CommandId, GangMember, HostId, Job, StartAttempt
from cotenant.controller.engine.config import EngineConfig
from cotenant.controller.engine.ledger import Ledger


def hosts_of(ledger: Ledger, job: Job) -> tuple[HostId, ...]:
    """The hosts of a placement in rank order, whether or not their devices are still offered."""
    assert job.placement is not None
    return tuple(member.host_id for member in ledger.holdings.gang(job.placement.devices))


def is_profiled(job: Job, shared: bool) -> bool:
    """Whether this attempt is profiled in place: the job's own first one, on devices it has to itself.

    Of an elastic job the steps on each number of devices are learned as it trains. A job that is there for
    its profile is measured in whichever attempt; it has nothing else to do.
    """
    if job.spec.profiling == "never" or shared or job.spec.is_elastic:
        return False
    if job.spec.gpu_fraction < 1.0 and job.spec.profiling != "only":
        return False  # What it takes on a part of a device says little of its like.
    return job.attempt == 1 or job.spec.profiling == "only"


def memory_cap_mib(job: Job) -> int | None:
    """What a worker may use of its device, by the job's placement; None: all of it."""
    placement = job.placement
    limited = placement is not None and (placement.capped or placement.beside)
    return placement.memory_mib if placement is not None and limited else None


def start_commands(
    ledger: Ledger,
    job: Job,
    gang: tuple[GangMember, ...],
    config: EngineConfig,
    command_id: Callable[[], CommandId],
    shared: bool,
) -> list[StartAttempt]:
    """The commands that start the job's current attempt, one per host of its gang; `shared`: it has a
    co-tenant."""
    spec, placement = job.spec, job.placement
    assert placement is not None
    first = ledger.hosts[gang[0].host_id].report
    # Derived from the attempt, so that a repeated command names the same port.
    port = first.port_first + (job.number * 31 + job.attempt) % first.port_count
    newest = job.newest_checkpoint if job.checkpoints else None
    is_capped = shared or placement.capped or placement.beside
    profile_s = config.profile_s if not job.profile_given and is_profiled(job, shared) else 0.0
    time_left_s = _time_left_s(job) if job.spec.launch.slurm else UNSET
    step_batch: tuple[int, int] | UnsetType = UNSET
    if spec.gpus_max > spec.gpus_min and spec.batch_size is not None:
        step_batch = spec.batch_size, spec.gpus_max
    return [
        StartAttempt(
            command_id=command_id(),
            host_id=member.host_id,
            job_id=spec.job_id,
            attempt=job.attempt,
            launch=spec.launch,
            gang=gang,
            master_address=first.address if len(gang) > 1 else "127.0.0.1",
            master_port=port,
            sub_batch=placement.sub_batch,
            accumulation_steps=placement.accumulation_steps,
            memory_cap_mib=placement.memory_mib if is_capped else None,
            host_memory_mib=spec.host_memory_mib,
            cpus=spec.cpus,
            resume_attempt=AttemptNo(newest.attempt) if newest else None,
            resume_step=newest.step if newest else 0,
            checkpoint_every_s=config.checkpoint_every_s,
            profile_s=profile_s,
            name=spec.name,
            user=spec.user,
            job_class=spec.job_class,
            epoch=job.attempt_epoch,
            job_epoch=job.epoch,
            time_left_s=time_left_s,
            step_batch=step_batch,
            fraction=placement.fraction if placement.fraction < 1.0 else UNSET,
        )
        for member in gang
    ]


def _time_left_s(job: Job) -> float | UnsetType:
    limit_s = job.spec.time_limit_s
    if limit_s is None:
        return UNSET
    return max(0.0, limit_s + job.past_limit_s - job.load_s - job.run_s)
