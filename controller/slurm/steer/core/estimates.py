"""How long a waiting job will run: what its like took, else what jobs use of their limits, else its limit.

A kind is who submitted it, its name without the numbers in it, its partition and its limit. From the closest
to the least close: the kind; the user's jobs of this name; the user's jobs with this limit in this partition.
Each time the median of the last few, never above the job's own limit.

Rule: only jobs that ended by themselves or at their limit teach. One that failed or was cancelled says
nothing of how long its like run.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from statistics import median
from typing import Final

import msgspec

from cotenant.controller.domain import texts
from cotenant.controller.slurm.steer.core.queue import QueueJob

KEPT: Final = 20
"""Runs of a kind: what a user ran half a year ago is another program."""
KINDS_MAX: Final = 100_000
SHARES_MAX: Final = 2_000
ENOUGH: Final = (1, 2, 5)
"""Runs from which a kind, a name and a limit say something."""
SHARES_ENOUGH: Final = 20
PAST_FIELDS: Final = ("JobIDRaw", "State", "ElapsedRaw", "TimelimitRaw", "Partition", "User", "JobName")
"""For `sacct -o`."""
TEACHES: Final = ("COMPLETED", "TIMEOUT")

_NUMBERS: Final = re.compile(r"(?<![a-zA-Z])[0-9a-f]{7,}(?![a-zA-Z])|[0-9]+")

EstimateKey = tuple[str | float | None, ...]


class PastRun(msgspec.Struct, frozen=True, kw_only=True):
    """A job that has ended."""

    job_id: str
    took_s: float
    limit_s: float | None
    partition: str
    user: str
    name: str


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    seconds: float | None
    """None: nothing is known, and it has no limit."""
    why: str


def kind_name(name: str) -> str:
    """A job's name without what tells it from its like."""
    return _NUMBERS.sub("#", name)


class RunTimes:
    """What ended jobs took, the latest of each kind."""

    def __init__(self) -> None:
        self._by_key: dict[EstimateKey, deque[float]] = {}
        self._shares: deque[float] = deque(maxlen=SHARES_MAX)
        self._seen: dict[str, None] = {}
        self.runs = 0

    def learn(self, runs: Iterable[PastRun]) -> None:
        """Learns the times of runs, the oldest first. A run that is told again changes nothing."""
        for run in runs:
            if run.job_id in self._seen:
                continue
            self._seen[run.job_id] = None
            while len(self._seen) > KINDS_MAX:
                del self._seen[next(iter(self._seen))]
            self.runs += 1
            for key in _keys(run):
                known = self._by_key.pop(key, None) or deque(maxlen=KEPT)
                known.append(run.took_s)
                self._by_key[key] = known  # At the end: the one that was heard of longest ago goes first.
            while len(self._by_key) > KINDS_MAX:
                del self._by_key[next(iter(self._by_key))]
            if run.limit_s:
                self._shares.append(run.took_s / run.limit_s)

    def estimate(self, job: QueueJob) -> Estimate:
        limit_s = job.limit_s
        for key, enough, what in zip(_keys(job), ENOUGH, _WHAT, strict=True):
            known = self._by_key.get(key, ())
            if len(known) >= enough:
                seconds = max(median(known), 1.0)
                capped = seconds if limit_s is None else min(seconds, limit_s)
                return Estimate(seconds=capped, why=f"the median of the last {len(known)} of {what}")
        if limit_s is None:
            return Estimate(seconds=None, why="nothing like it has ended, and it has no limit: it goes last")
        if len(self._shares) < SHARES_ENOUGH:
            return Estimate(seconds=limit_s, why="its limit: nothing like it has ended")
        share = median(self._shares)
        return Estimate(
            seconds=max(limit_s * share, 1.0),
            why=f"{100 * share:.0f} % of its limit, as jobs use here: nothing like it has ended",
        )


_WHAT: Final = (
    "this user's jobs of this name, limit and partition",
    "this user's jobs of this name",
    "this user's jobs with this limit in this partition",
)


def _keys(job: QueueJob | PastRun) -> tuple[EstimateKey, EstimateKey, EstimateKey]:
    name = kind_name(job.name)
    return (
        ("kind", job.user, name, job.partition, job.limit_s),
        ("name", job.user, name),
        ("limit", job.user, job.partition, job.limit_s),
    )


def runs_in(text: str, delimiter: str) -> Iterator[PastRun]:
    """The rows of `sacct -P --delimiter=...` that teach something."""
    for line in text.splitlines():
        row = line.split(delimiter, len(PAST_FIELDS) - 1)
        if len(row) < len(PAST_FIELDS):
            continue
        number, state, took, limit, partition, user, name = row
        if state.partition(" ")[0] not in TEACHES or not texts.is_whole_number(took):
            continue
        yield PastRun(
            job_id=number,
            took_s=float(took),
            limit_s=60.0 * int(limit) if texts.is_whole_number(limit) else None,
            partition=partition,
            user=user,
            name=name,
        )
