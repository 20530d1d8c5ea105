"""What sharing brought, and how long devices were held, from the histories of attempts. Pure.

Rule: `show`, `queue`, `pairs`, `report`, `usage` and the demo all take their numbers from here, so that they
agree: the sums over all users, over all kinds and over all organisations are each what `report` says of the
whole cluster. Won by sharing = the work done beside others, in the device-seconds that it takes alone (alone
step time x steps x devices), minus the device-seconds that it took; a second of a device counts in equal
parts for the jobs that hold it. It is unknown unless each of those who trained together was also measured
alone: one side would prove nothing. What is lost is what interruptions cost (`interruptions.py`);
what is shared is held beside others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from cotenant.controller.domain import Job, JobId, Phase
from cotenant.controller.history.attempt_account import Foretold, Promise, Spell
from cotenant.controller.history.attempt_records import ALWAYS_S, AttemptRecord, AttemptsOf, EndCause
from cotenant.controller.history.interruptions import Interrupted, interruptions
from cotenant.controller.knowledge import signature
from cotenant.controller.performance import RATIO_STEPS_MIN, XiSource

J_PER_KWH: Final = 3.6e6


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
    step_s, steps, seconds = job.measured.solo_step_s, spell.steps * part, spell.seconds * part
    alone_s = None if step_s is None else step_s * steps
    forecast = _slowest(attempt.account.forecasts, spell.beside)
    is_known = all(
        (other := jobs.get(o)) is not None and other.measured.solo_step_s is not None for o in spell.beside
    )
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
    """The forecast of the slowest device: with several co-tenants the slowest device sets the pace. None
    where one of the co-tenants has no forecast."""
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
    steps: float = 0.0
    """This, `seconds` and `work_s`: of rows whose work is known."""
    seconds: float = 0.0
    work_s: float = 0.0

    @property
    def slowdown(self) -> float | None:
        """Step time beside the other / alone; None: too few steps for that."""
        return self.seconds / self.work_s if self.steps >= RATIO_STEPS_MIN and self.work_s > 0.0 else None

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
        if row.alone_s is not None:
            self.steps += row.steps * part
            self.seconds += row.seconds * part
            self.work_s += row.alone_s * part
        if row.alone_s is not None and row.predicted_s is not None:
            self.alone_s += row.alone_s * part
            self.predicted_s += row.predicted_s * part


def sums_by_kinds(
    jobs: Mapping[JobId, Job], attempts: AttemptsOf, since_s: float = ALWAYS_S
) -> dict[tuple[str, str], Sums]:
    """The sums by pairs of kinds: (this kind, beside that kind) -> sums. What a job did beside several counts
    in equal parts for each."""
    found: dict[tuple[str, str], Sums] = {}
    for job in jobs.values():
        for row in together(jobs, job, attempts(job.job_id), since_s):
            for other_id in row.beside:
                other = jobs.get(other_id)
                beside = signature(other.spec) if other is not None else ""
                key = (signature(job.spec), beside)
                found.setdefault(key, Sums()).add(row, 1.0 / len(row.beside))
    return found


# --- The whole cluster ----------------------------------------------------------------------------------

OF_SHARING: Final[tuple[EndCause, ...]] = ("parted", "crowded", "faulted")
"""Causes that exist only because jobs share."""


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of what happened on all devices."""

    energy: Energy
    held_device_s: float
    """Time in which somebody held devices, each second of a device once."""
    shared: Sums
    jobs_shared: int
    interrupted: dict[EndCause, Interrupted]

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
        held_device_s += part * (
            account.load_device_s + account.train_device_s + account.leave_device_s + _uncounted(each, now_s)
        )
    return held_device_s


def _uncounted(attempt: AttemptRecord, now_s: float, from_s: float = ALWAYS_S) -> float:
    """The attempt's share of device-seconds in the span that goes on, since `from_s`."""
    span = attempt.account.now
    return 0.0 if span is None else max(0.0, now_s - max(span.from_s, from_s)) * span.share


def idle_by(attempts: Sequence[AttemptRecord], since_s: float, now_s: float) -> float:
    """The part of `held_by` in which the job used none of its devices, as far as it was told to be idle."""
    idle_device_s = 0.0
    for attempt in attempts:
        for each in attempt.account.idle:
            more_s = _uncounted(attempt, now_s, each.from_s) if each.to_s is None else 0.0
            end_s = now_s if each.to_s is None else each.to_s
            idle_device_s += _part_since(each.from_s, end_s, since_s) * (each.device_s + more_s)
    return idle_device_s


class Energy(NamedTuple):
    """What attempts used, as far as that is known."""

    kwh: float
    unknown_attempts: int
    """Of these it is not known, or not of all of their hosts."""


def energy_by(attempts: Iterable[AttemptRecord], since_s: float, now_s: float) -> Energy:
    """What a job's attempts have used since `since_s`; of one that began earlier, its part by time."""
    used_j, unknown = 0.0, 0
    for each in attempts:
        part = _part_since(each.launched_s, now_s if each.ended_s is None else each.ended_s, since_s)
        if part > 0.0:
            used_j += sum(each.energy_by_host_j.values()) * part
            unknown += not each.is_metered
    return Energy(used_j / J_PER_KWH, unknown)


def totals(jobs: Mapping[JobId, Job], attempts: AttemptsOf, since_s: float, now_s: float) -> Totals:
    """Since `since_s`, of all jobs that are remembered."""
    held_device_s, shared, jobs_shared = 0.0, Sums(), 0
    kwh, unknown = 0.0, 0
    for job in jobs.values():
        known = attempts(job.job_id)
        held_device_s += held_by(known, since_s, now_s)
        energy = energy_by(known, since_s, now_s)
        kwh, unknown = kwh + energy.kwh, unknown + energy.unknown_attempts
        rows = together(jobs, job, known, since_s)
        jobs_shared += bool(rows)
        for row in rows:
            shared.add(row)
    return Totals(
        energy=Energy(kwh, unknown),
        held_device_s=held_device_s,
        shared=shared,
        jobs_shared=jobs_shared,
        interrupted=interruptions(jobs, attempts, since_s),
    )
