"""Device-hours by user, kind or organisation: held, shared, lost; and how long their jobs waited."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from cotenant.controller.domain import ENDED, ON_DEVICES, Job, JobId
from cotenant.controller.history import accounts, attempt_records, interruptions
from cotenant.controller.knowledge import kind_of

By = Literal["user", "kind", "organisation"]

NAME_OF: Final[dict[By, Callable[[Job], str]]] = {
    "user": lambda job: job.spec.user,
    "kind": lambda job: kind_of(job.spec),
    "organisation": lambda job: job.spec.organisation,
}
"""The name under which a job counts; empty: none."""


class Use(msgspec.Struct, kw_only=True):
    """What one job used, or several together."""

    jobs: int = 0
    attempts: int = 0
    held_device_s: float = 0.0
    """Each second of a device once, in equal parts for those who hold it."""
    shared_device_s: float = 0.0
    """The part of `held_device_s` spent training beside others."""
    idle_device_s: float = 0.0
    """The part of `held_device_s` in which nothing used the devices, as far as their jobs were told so."""
    lost_device_s: float = 0.0
    """What having to leave cost: saves, loads and steps done once more, futile loads."""
    wait_s: float = 0.0
    """Time neither on devices nor ended, held and blocked included."""
    energy_kwh: float = 0.0
    """Of all attempts but `energy_unknown_attempts`."""
    energy_unknown_attempts: int = 0

    def add(self, other: Use) -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def use_of(
    jobs: Mapping[JobId, Job],
    job: Job,
    attempts: Sequence[attempt_records.AttemptRecord],
    since_s: float,
    now_s: float,
) -> Use:
    """What a job used since `since_s`."""
    interrupted: dict[attempt_records.EndCause, interruptions.Interrupted] = {}
    interruptions.interruptions_of(job, attempts, since_s, interrupted)
    energy = accounts.energy_by(attempts, since_s, now_s)
    return Use(
        jobs=1,
        attempts=sum(each.ended_s is None or each.ended_s >= since_s for each in attempts),
        held_device_s=accounts.held_by(attempts, since_s, now_s),
        shared_device_s=sum(row.device_s for row in accounts.together(jobs, job, attempts, since_s)),
        idle_device_s=accounts.idle_by(attempts, since_s, now_s),
        lost_device_s=sum(each.cost_device_s for each in interrupted.values()),
        wait_s=waited_s(job, attempts, since_s, now_s),
        energy_kwh=energy.kwh,
        energy_unknown_attempts=energy.unknown_attempts,
    )


def waited_s(
    job: Job, attempts: Iterable[attempt_records.AttemptRecord], since_s: float, now_s: float
) -> float:
    """How long a job waited since `since_s`: before each attempt, and after the last until now or its end."""
    found = before_s = 0.0
    for attempt in attempts:
        found += _after(since_s, attempt.launched_s, max(0.0, attempt.waited_s - before_s))
        before_s = max(before_s, attempt.waited_s)
    waits = job.phase not in ENDED and job.phase not in ON_DEVICES
    total_s = job.spent.wait_s + (now_s - job.phase_since_s if waits else 0.0)
    until_s = job.ended_s if job.phase in ENDED and job.ended_s is not None else now_s
    return found + _after(since_s, until_s, max(0.0, total_s - before_s))


def _after(since_s: float, until_s: float, seconds: float) -> float:
    """The part after `since_s` of so many seconds that ended at `until_s`."""
    return min(seconds, max(0.0, until_s - since_s))


def is_of(job: Job, since_s: float) -> bool:
    """Whether the job was there at any time since `since_s`."""
    return job.phase not in ENDED or job.ended_s is None or job.ended_s >= since_s


def usage(
    jobs: Mapping[JobId, Job],
    attempts: attempt_records.AttemptsOf,
    by: By,
    since_s: float,
    now_s: float,
    shown: Callable[[Job, str], str] = lambda job, name: name,
) -> dict[str, Use]:
    """Returns, by name, the use of everybody who had a job here since `since_s`. `shown`: the name of a job's
    kind, as its reader may see it."""
    found: dict[str, Use] = {}
    for job in jobs.values():
        if is_of(job, since_s):
            use = use_of(jobs, job, attempts(job.job_id), since_s, now_s)
            name = NAME_OF[by](job)
            found.setdefault(shown(job, name) if by == "kind" else name, Use()).add(use)
    return found
