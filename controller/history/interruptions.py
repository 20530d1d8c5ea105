"""What interruptions cost: saves, loads, steps done again and loads in vain, by cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from cotenant.controller.domain import ENDED, Job, JobId
from cotenant.controller.history import attempt_records


class Interrupted(msgspec.Struct, kw_only=True):
    """What it cost that jobs left their devices for one cause."""

    count: int = 0
    save_device_s: float = 0.0
    """From the request until the devices were free, of jobs that had trained."""
    load_device_s: float = 0.0
    """Loading once more, up to the first step."""
    rework_device_s: float = 0.0
    """Steps done once more, at the step time alone."""
    futile_device_s: float = 0.0
    """Loads that ended before a first step, and the teardown after them."""
    unknown_steps: int = 0
    """Steps done once more by jobs whose step time alone is unknown: in no sum."""

    @property
    def cost_device_s(self) -> float:
        return self.save_device_s + self.load_device_s + self.rework_device_s + self.futile_device_s


def interruptions(
    jobs: Mapping[JobId, Job], attempts: attempt_records.AttemptsOf, since_s: float = attempt_records.ALWAYS_S
) -> dict[attempt_records.EndCause, Interrupted]:
    """Returns the interruptions by cause. An attempt's pause counts with it; the load and the repeated steps
    of the next attempt count with the one before, so nothing counts twice."""
    found: dict[attempt_records.EndCause, Interrupted] = {}
    for job in jobs.values():
        interruptions_of(job, attempts(job.job_id), since_s, found)
    return found


def interruptions_of(
    job: Job,
    known: Sequence[attempt_records.AttemptRecord],
    since_s: float,
    found: dict[attempt_records.EndCause, Interrupted],
) -> None:
    """Adds the interruptions of one job to `found`."""
    for number, attempt in enumerate(known):
        if not attempt.cause or attempt.ended_s is None or attempt.outcome in ("finished", "cancelled"):
            continue
        if attempt.ended_s >= since_s:
            after = known[number + 1] if number + 1 < len(known) else None
            sums = found.setdefault(attempt.cause, Interrupted())
            _add_interruption(sums, job, attempt, after)


def _add_interruption(
    sums: Interrupted,
    job: Job,
    attempt: attempt_records.AttemptRecord,
    after: attempt_records.AttemptRecord | None,
) -> None:
    sums.count += 1
    account = attempt.account
    if attempt.trains_since_s is None:
        sums.futile_device_s += account.load_device_s + account.leave_device_s
    else:
        sums.save_device_s += account.leave_device_s
    if after is not None and not (after.cause and after.trains_since_s is None):
        sums.load_device_s += after.account.load_device_s
    if after is None and job.phase in ENDED:
        return  # Nothing is done once more.
    again = max(0, attempt.end_step - (after.start_step if after is not None else job.durable_step))
    if job.measured.solo_step_s is None:
        sums.unknown_steps += again
    else:
        devices = len(attempt.devices)
        sums.rework_device_s += (
            again * job.measured.solo_step_s * job.split_slowdown(1, devices) * devices * attempt.fraction
        )
