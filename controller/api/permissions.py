"""What a user may do: look jobs up (errors say what is missing), change jobs, set policies, and how much one
user may ask for.

Rule: each user has a bucket of requests and one of bytes, both filling at a steady rate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from cotenant.controller.api.submissions import LIST_HINT, Denied, expand_word, job_words
from cotenant.controller.domain import Job, JobId, JobWord, array_of
from cotenant.controller.engine import Engine
from cotenant.controller.history import JobRecord
from cotenant.controller.knowledge import public_kind, signature
from cotenant.controller.policies import registry
from cotenant.controller.store import ReadingCore
from cotenant.controller.system.keys import Identity
from cotenant.controller.wire import BadMessage


def one_job(core: ReadingCore, job_id: JobId) -> JobRecord:
    """A job that has not ended, or has at any time. Raises Denied: there is none of this id, or several."""
    try:
        if (record := core.record(job_id)) is not None:
            return record
        jobs = jobs_named(core, (job_id,))
        record = core.record(jobs[0].job_id)
    except BadMessage as error:
        raise Denied("version", f"job {job_id} cannot be read from the journal: {error}") from None
    if len(jobs) > 1 or record is None:
        several = "an array" if array_of(jobs[0].job_id) == job_id else "several jobs"
        raise Denied("not-found", f"no job {job_id}", f"it is {several}: try {jobs[0].job_id}")
    return record


def jobs_named(core: ReadingCore, wanted: Sequence[JobId]) -> list[Job]:
    """The jobs of these words, an array's number standing for its tasks; those that only the journal knows
    too. Raises Denied: a word is no job's, or one is not known."""
    jobs = core.state.engine.jobs
    found: dict[JobId, Job] = {}
    for word in job_words(wanted):
        here = [jobs[job_id] for job_id in expand_word(word, jobs)]
        if str(word) not in jobs:
            here = [*forgotten(core, word), *here]
        if not here:
            raise Denied("not-found", f"no job {word}", LIST_HINT)
        found.update({job.job_id: job for job in here})
    return list(found.values())


def forgotten(core: ReadingCore, word: JobWord) -> list[Job]:
    """The job of this word, or the tasks of an array, that only the journal knows."""
    try:
        one = core.record(JobId(str(word)))
        if one is not None:
            return [one.job]
        return [each.job for each in core.forgotten_tasks(word.number) if word.has_task(each.job.job_id)]
    except BadMessage as error:
        raise Denied("version", f"job {word} cannot be read from the journal: {error}") from None


def may_touch(who: Identity, job: Job) -> bool:
    return who.role == "admin" or job.spec.user == who.name


class Commands(NamedTuple):
    """Who may read whose command lines, values of grids and kinds of jobs."""

    who: Identity
    everyone: bool
    """They are everybody's here (`[privacy] commands`)."""

    def may_read(self, job: Job) -> bool:
        return self.everyone or may_touch(self.who, job)

    def kinds(self, engine: Engine) -> Callable[[str, str], str]:
        """Returns what makes of a kind's signature and its name the name to show: whole if the reader has a
        job of it."""
        if self.everyone or self.who.role == "admin":
            return lambda key, name: name
        own = {signature(job.spec) for job in engine.jobs.values() if job.spec.user == self.who.name}
        return lambda key, name: name if key.partition("@")[0] in own else public_kind(name)


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
