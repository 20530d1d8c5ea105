"""What a simulated job tells the engine: the events that agents and jobs send in production, from a `JobRun`.

Rule: the engine learns only what a real job could report: steps done, step times, ends.
"""

from __future__ import annotations

from cotenant.controller.domain import (  # fmt: skip
    AttemptEnded,
    CapabilitiesSeen,
    CheckpointDurable,
    FirstStepDone,
    HostId,
    Outcome,
    ProgressSeen,
)
from cotenant.controller.sim.world.run import JobRun


def first_step(run: JobRun) -> FirstStepDone:
    return FirstStepDone(job_id=run.job_id, attempt=run.number, host_id=run.gang[0].host_id, step=run.steps)


def progress(run: JobRun) -> ProgressSeen:
    """The report of its steps and its present pace."""
    return ProgressSeen(
        job_id=run.job_id, attempt=run.number, step=run.steps, step_s=run.step_s * run.slowdown
    )


def durable(run: JobRun) -> CheckpointDurable:
    return CheckpointDurable(
        job_id=run.job_id, attempt=run.number, host_id=run.gang[0].host_id, step=run.safe_steps
    )


def resumed(run: JobRun, host_id: HostId) -> CapabilitiesSeen:
    """The report of a job that found a newer checkpoint than the engine knows of."""
    return CapabilitiesSeen(
        job_id=run.job_id,
        attempt=run.number,
        host_id=host_id,
        resumable=True,
        accumulates=False,
        step=run.safe_steps,
    )


def ended(run: JobRun, host_id: HostId, outcome: Outcome) -> AttemptEnded:
    return AttemptEnded(
        job_id=run.job_id,
        attempt=run.number,
        host_id=host_id,
        outcome=outcome,
        exit_code=0 if outcome == "finished" else None,
        step=run.steps,
    )
