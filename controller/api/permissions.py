"""What a user may do: look jobs up (errors say what is missing), change jobs, set policies, and how much one
user may ask for.

Rule: each user has a bucket of requests and one of bytes, both filling at a steady rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cotenant.controller.api.submissions import Denied, expand_job_id
from cotenant.controller.domain import Job, JobId
from cotenant.controller.engine import Engine
from cotenant.controller.history import JobRecord
from cotenant.controller.policies import registry
from cotenant.controller.store import ReadingCore
from cotenant.controller.system.keys import Identity
from cotenant.controller.wire import BadMessage

_LIST = "`cotenant queue --all` lists jobs"


def one_job(core: ReadingCore, job_id: JobId) -> JobRecord:
    """A job that has not ended, or has at any time. Raises Denied: there is none of this id."""
    try:
        record = core.record(job_id)
        if record is None:
            tasks = jobs_named(core, (job_id,))
            raise Denied("not-found", f"no job {job_id}", f"it is an array: try {tasks[0].job_id}")
    except BadMessage as error:
        raise Denied("version", f"job {job_id} cannot be read from the journal: {error}") from None
    return record


def jobs_named(core: ReadingCore, wanted: Sequence[JobId]) -> list[Job]:
    """The jobs, an array's number standing for its tasks; those that only the journal knows too. Raises
    Denied: one is not known."""
    jobs = core.state.engine.jobs
    found: dict[JobId, Job] = {}
    for name in wanted:
        here = [jobs[job_id] for job_id in expand_job_id(name, jobs)]
        if name not in jobs:
            here = [*forgotten(core, name), *here]
        if not here:
            raise Denied("not-found", f"no job {name}", _LIST)
        found.update({job.job_id: job for job in here})
    return list(found.values())


def forgotten(core: ReadingCore, name: JobId) -> list[Job]:
    """The job of this number, or the tasks of this array, that only the journal knows."""
    try:
        one = core.record(name)
        return [each.job for each in (core.forgotten_tasks(name) if one is None else (one,))]
    except BadMessage as error:
        raise Denied("version", f"job {name} cannot be read from the journal: {error}") from None


def may_touch(who: Identity, job: Job) -> bool:
    return who.role == "admin" or job.spec.user == who.name


def must_own(who: Identity, job: Job, what: str) -> None:
    if not may_touch(who, job):
        raise Denied("not-allowed", f"you cannot {what} job {job.job_id}: it belongs to {job.spec.user}")


def must_be_owner(who: Identity, job: Job, what: str) -> None:
    """For what is done in the owner's name: an admin may not either. Raises Denied."""
    if job.spec.user != who.name:
        raise Denied("not-allowed", f"only {job.spec.user} can {what} job {job.job_id}")


def must_be_admin(who: Identity, what: str) -> None:
    if who.role != "admin":
        raise Denied("not-allowed", f"only admins may {what}", "ask one, or use an admin's key")


def policies_offered(engine: Engine) -> dict[str, str]:
    """The policies that a message can set, with a line about each: ours, those of packages that are installed
    beside the controller, and the one that its configuration names.

    No other module: a message must not choose what a controller imports.
    """
    named = engine.config.policy.first
    found = registry.available()
    if named not in found and not registry.why_not(named):
        found[named] = "named in this controller's configuration"
    return found


PER_SECOND: Final = 200.0
BURST: Final = 10_000.0
"""One submission of the largest size, or as many questions at once."""
BYTES_PER_SECOND: Final = 1024.0 * 1024.0
BYTES_BURST: Final = 32.0 * 1024.0 * 1024.0
"""Eight messages of the largest size at once: some ten thousand jobs."""
TREE_BYTES_PER_SECOND: Final = 32.0 * 1024.0 * 1024.0
TREE_BYTES_BURST: Final = 256.0 * 1024.0 * 1024.0
"""Of packed trees, whose parts are written to disk at once: so much does not count in the other bucket."""
USERS_MAX: Final = 10_000


class Rates:
    """The rates of requests, in one bucket per user. Time is the cluster's."""

    def __init__(self, per_second: float = PER_SECOND, burst: float = BURST) -> None:
        self._per_second = per_second
        self._burst = burst
        self._buckets: dict[str, tuple[float, float]] = {}

    def allow(self, user: str, now_s: float, cost: int) -> bool:
        """Whether the user may have this now; if so it is paid for."""
        level, then_s = self._buckets.get(user, (self._burst, now_s))
        level = min(self._burst, level + (now_s - then_s) * self._per_second)
        allowed = cost <= level
        if len(self._buckets) >= USERS_MAX and user not in self._buckets:
            self._buckets.clear()
        self._buckets[user] = (level - cost if allowed else level, now_s)
        return allowed

    def give_back(self, user: str, cost: float) -> None:
        """Returns what was paid for."""
        if user in self._buckets:
            level, then_s = self._buckets[user]
            self._buckets[user] = (min(self._burst, level + cost), then_s)
