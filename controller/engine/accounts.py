"""What sharing and preemption brought and cost, and who used how much and waited how long, from the histories
of attempts. Pure.

Rule: `show`, `queue`, `pairs`, `report`, `usage` and the demo all take their numbers from here, so that they
agree: the sums over all users, over all kinds and over all organisations are each what `report` says of the
whole cluster. Won by sharing = the work done beside others, in the device-seconds that it takes alone (alone
step time x steps x devices), minus the device-seconds that it took; a second of a device counts in equal
parts for the jobs that hold it. It is unknown unless each of those who trained together was also measured
alone: one side would prove nothing. What is lost is what interruptions cost (`Interrupted.cost_device_s`);
what is shared is held beside others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from cotenant.controller.domain import ENDED, ON_DEVICES, Job, JobId, Phase
from cotenant.controller.engine.attempt_records import (
    AttemptRecord,
    Cause,
    Foretold,
    Promise,
    Spell,
)
from cotenant.controller.knowledge import kind_of, signature
from cotenant.controller.performance import XiSource

ALWAYS_S: Final = -float("inf")
Attempts = Callable[[JobId], Sequence[AttemptRecord]]
"""The attempts of a job, the oldest first."""


class SharedWork(msgspec.Struct, frozen=True, kw_only=True):
    """What a job did beside the same others, over all its attempts."""

    beside: tuple[JobId, ...]
    seconds: float
    device_s: float
    """Its share of its devices' time."""
    steps: float
    alone_s: float | None
    """The same steps alone, at the whole batch; None: what one takes alone is not known."""
    work_device_s: float | None
    """`alone_s` x its devices, and at most `device_s`: nobody is faster beside others than alone, and a pace
    alone that says so was measured badly. None where its own step time alone, or another's, is unknown."""
    predicted_s: float | None
    """The same steps as predicted when they were placed together, its sub-batch included."""
    slowdown: float | None
    """As first predicted: step time beside them / alone at the whole batch."""
    source: XiSource | None = None
    """Where the first `slowdown` came from."""
    margin: float | None = None
    """Half the width of the predicted interval, in `alone_s`; None without a trained model."""

    @property
    def won_device_s(self) -> float | None:
        return None if self.work_device_s is None else self.work_device_s - self.device_s

    def and_later(self, later: SharedWork) -> SharedWork:
        return msgspec.structs.replace(
            self,
            seconds=self.seconds + later.seconds,
            device_s=self.device_s + later.device_s,
            steps=self.steps + later.steps,
            alone_s=_sum(self.alone_s, later.alone_s),
            work_device_s=_sum(self.work_device_s, later.work_device_s),
            predicted_s=_sum(self.predicted_s, later.predicted_s),
        )


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def together(
    jobs: Mapping[JobId, Job], job: Job, attempts: Sequence[AttemptRecord], since_s: float = ALWAYS_S
) -> list[SharedWork]:
    """All that a job did beside others since `since_s`, in the order in which it met them. A spell that began
    earlier counts from then on, by time."""
    found: dict[tuple[JobId, ...], SharedWork] = {}
    for attempt in attempts:
        for spell in attempt.account.spells:
            part = _part_since(spell.from_s, spell.to_s, since_s)
            if part > 0.0:
                row = _row(jobs, job, attempt, spell, part)
                known = found.get(spell.beside)
                found[spell.beside] = row if known is None else known.and_later(row)
    return list(found.values())


def _part_since(from_s: float, to_s: float, since_s: float) -> float:
    if from_s >= since_s:
        return 1.0
    return max(0.0, (to_s - since_s) / (to_s - from_s)) if to_s > from_s else 0.0


def _row(
    jobs: Mapping[JobId, Job], job: Job, attempt: AttemptRecord, spell: Spell, part: float
) -> SharedWork:
    step_s, steps, seconds = job.solo_step_s, spell.steps * part, spell.seconds * part
    alone_s = None if step_s is None else step_s * steps
    forecast = _slowest(attempt.account.forecasts, spell.beside)
    is_known = all((other := jobs.get(o)) is not None and other.solo_step_s is not None for o in spell.beside)
    slowdown = None if forecast is None else forecast.xi * job.split_slowdown(attempt.accumulation_steps)
    return SharedWork(
        beside=spell.beside,
        seconds=seconds,
        device_s=spell.device_s * part,
        steps=steps,
        alone_s=alone_s,
        work_device_s=(
            None if alone_s is None or not is_known else min(alone_s, seconds) * len(attempt.devices)
        ),
        predicted_s=None if alone_s is None or slowdown is None else alone_s * slowdown,
        slowdown=slowdown,
        source=None if forecast is None else forecast.source,
        margin=None if forecast is None else forecast.margin,
    )


def _slowest(forecasts: Iterable[Foretold], beside: tuple[JobId, ...]) -> Foretold | None:
    """With several co-tenants the slowest device sets the pace. None where one of them has no forecast."""
    found = [forecast for forecast in forecasts if forecast.beside in beside]
    return max(found, key=lambda each: each.xi) if len(found) == len(beside) else None


def promises(
    jobs: Mapping[JobId, Job], job: Job, attempts: Sequence[AttemptRecord]
) -> list[tuple[Promise, float | None]]:
    """What the policy expected of placing the job beside another, and what came of it: the average of the two
    ends, from its launch; None before both have finished."""
    found = []
    for attempt in attempts:
        promise = attempt.account.promise
        if promise is not None:
            other = jobs.get(promise.beside)
            ends_s = [each.ended_s for each in (job, other) if each is not None and each.phase is Phase.DONE]
            known_s = [end_s - attempt.launched_s for end_s in ends_s if end_s is not None]
            found.append((promise, sum(known_s) / 2 if len(known_s) == 2 else None))
    return found


# --- By kind --------------------------------------------------------------------------------------------


class Sums(msgspec.Struct, kw_only=True):
    """Sums of many rows. Rows with unknown work count in `unknown_device_s` alone."""

    device_s: float = 0.0
    work_device_s: float = 0.0
    unknown_device_s: float = 0.0
    alone_s: float = 0.0
    """This and `predicted_s`: of rows that have both."""
    predicted_s: float = 0.0

    @property
    def won_device_s(self) -> float:
        return self.work_device_s - self.device_s

    @property
    def predicted_xi(self) -> float | None:
        return self.predicted_s / self.alone_s if self.alone_s > 0.0 else None

    def add(self, row: SharedWork, part: float = 1.0) -> None:
        if row.work_device_s is None:
            self.unknown_device_s += row.device_s * part
        else:
            self.device_s += row.device_s * part
            self.work_device_s += row.work_device_s * part
        if row.alone_s is not None and row.predicted_s is not None:
            self.alone_s += row.alone_s * part
            self.predicted_s += row.predicted_s * part


def by_kinds(
    jobs: Mapping[JobId, Job], attempts: Attempts, since_s: float = ALWAYS_S
) -> dict[tuple[str, str], Sums]:
    """(this kind, beside that kind) -> sums. What a job did beside several counts in equal parts for each."""
    found: dict[tuple[str, str], Sums] = {}
    for job in jobs.values():
        for row in together(jobs, job, attempts(job.job_id), since_s):
            for other_id in row.beside:
                other = jobs.get(other_id)
                beside = signature(other.spec) if other is not None else ""
                key = (signature(job.spec), beside)
                found.setdefault(key, Sums()).add(row, 1.0 / len(row.beside))
    return found


# --- Interruptions --------------------------------------------------------------------------------------


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
    jobs: Mapping[JobId, Job], attempts: Attempts, since_s: float = ALWAYS_S
) -> dict[Cause, Interrupted]:
    """By cause. An attempt's pause counts with it; the load and the repeated steps of the next one count with
    the one before, so nothing counts twice."""
    found: dict[Cause, Interrupted] = {}
    for job in jobs.values():
        interruptions_of(job, attempts(job.job_id), since_s, found)
    return found


def interruptions_of(
    job: Job, known: Sequence[AttemptRecord], since_s: float, found: dict[Cause, Interrupted]
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
    sums: Interrupted, job: Job, attempt: AttemptRecord, after: AttemptRecord | None
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
    if job.solo_step_s is None:
        sums.unknown_steps += again
    else:
        devices = len(attempt.devices)
        sums.rework_device_s += (
            again * job.solo_step_s * job.split_slowdown(1, devices) * devices * attempt.fraction
        )


# --- The whole cluster ----------------------------------------------------------------------------------

OF_SHARING: Final[tuple[Cause, ...]] = ("parted", "crowded", "faulted")
"""Causes that exist only because jobs share."""


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """What happened on all devices."""

    held_device_s: float
    """Time in which somebody held devices, each second of a device once."""
    shared: Sums
    jobs_shared: int
    interrupted: dict[Cause, Interrupted]

    @property
    def net_sharing_device_s(self) -> float:
        """What sharing won, less what it cost to part and to recover from faults beside others."""
        costs = (self.interrupted[cause].cost_device_s for cause in OF_SHARING if cause in self.interrupted)
        return self.shared.won_device_s - sum(costs)


def held_by(attempts: Sequence[AttemptRecord], since_s: float, now_s: float) -> float:
    """The job's share of device-seconds since `since_s`."""
    held_device_s = 0.0
    for each in attempts:
        end_s = now_s if each.ended_s is None else each.ended_s
        account, part = each.account, _part_since(each.launched_s, end_s, since_s)
        held_device_s += part * (account.load_device_s + account.train_device_s + account.leave_device_s)
    return held_device_s


def totals(jobs: Mapping[JobId, Job], attempts: Attempts, since_s: float, now_s: float) -> Totals:
    """Since `since_s`, of all jobs that are remembered."""
    held_device_s, shared, jobs_shared = 0.0, Sums(), 0
    for job in jobs.values():
        known = attempts(job.job_id)
        held_device_s += held_by(known, since_s, now_s)
        rows = together(jobs, job, known, since_s)
        jobs_shared += bool(rows)
        for row in rows:
            shared.add(row)
    return Totals(
        held_device_s=held_device_s,
        shared=shared,
        jobs_shared=jobs_shared,
        interrupted=interruptions(jobs, attempts, since_s),
    )


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
    lost_device_s: float = 0.0
    """What having to leave cost: saves, loads and steps done once more, futile loads."""
    wait_s: float = 0.0
    """Time neither on devices nor ended, held and blocked included."""

    def add(self, other: Use) -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def use_of(
    jobs: Mapping[JobId, Job], job: Job, attempts: Sequence[AttemptRecord], since_s: float, now_s: float
) -> Use:
    """What a job used since `since_s`."""
    interrupted: dict[Cause, Interrupted] = {}
    interruptions_of(job, attempts, since_s, interrupted)
    return Use(
        jobs=1,
        attempts=sum(each.ended_s is None or each.ended_s >= since_s for each in attempts),
        held_device_s=held_by(attempts, since_s, now_s),
        shared_device_s=sum(row.device_s for row in together(jobs, job, attempts, since_s)),
        lost_device_s=sum(each.cost_device_s for each in interrupted.values()),
        wait_s=waited_s(job, attempts, since_s, now_s),
    )


def waited_s(job: Job, attempts: Iterable[AttemptRecord], since_s: float, now_s: float) -> float:
    """How long a job waited since `since_s`: before each attempt, and after the last until now or its end."""
    found = before_s = 0.0
    for attempt in attempts:
        found += _after(since_s, attempt.launched_s, max(0.0, attempt.waited_s - before_s))
        before_s = max(before_s, attempt.waited_s)
    waits = job.phase not in ENDED and job.phase not in ON_DEVICES
    total_s = job.wait_s + (now_s - job.phase_since_s if waits else 0.0)
    until_s = job.ended_s if job.phase in ENDED and job.ended_s is not None else now_s
    return found + _after(since_s, until_s, max(0.0, total_s - before_s))


def _after(since_s: float, until_s: float, seconds: float) -> float:
    """The part after `since_s` of so many seconds that ended at `until_s`."""
    return min(seconds, max(0.0, until_s - since_s))


def is_of(job: Job, since_s: float) -> bool:
    """Whether the job was there at any time since `since_s`."""
    return job.phase not in ENDED or job.ended_s is None or job.ended_s >= since_s


def usage(
    jobs: Mapping[JobId, Job], attempts: Attempts, by: By, since_s: float, now_s: float
) -> dict[str, Use]:
    """By name, the use of everybody who had a job here since `since_s`."""
    found: dict[str, Use] = {}
    for job in jobs.values():
        if is_of(job, since_s):
            use = use_of(jobs, job, attempts(job.job_id), since_s, now_s)
            found.setdefault(NAME_OF[by](job), Use()).add(use)
    return found
