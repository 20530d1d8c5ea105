"""From heartbeats to events: who fell silent, who is lost, whose progress is worth a decision, who is idle.

Rule: pure. A heartbeat is not an event and is never journalled; only what changed enough to matter is.
Time in which we did not listen does not count as an agent's silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from cotenant.controller import domain
from cotenant.controller.domain import AttemptNo, HostId, JobId
from cotenant.controller.domain import events as ev
from cotenant.controller.performance import SeenBatch
from cotenant.controller.wire import AttemptProgress, IdleReading

DEAF_AFTER_S = 3.0
"""A longer gap between two ticks is ours: the controller was stopped, starved or busy."""
PROGRESS_SHARE = 0.05
PROGRESS_EVERY_S = 60.0
PROGRESS_EVERY_S_MAX = 3_600.0
STEADY_SHARE = 0.1
"""A job that goes on as was expected is told of after each such share of the time since it last did not."""
PROGRESS_SPACING_S = 2.0
PROGRESS_SPACING_S_MAX = 120.0
"""The least time from one event to the next. It doubles with each change of pace that follows soon on another
(within `CALM` times the spacing), so that a job whose pace jumps all the time does not fill the journal."""
CALM = 10.0
OLD_S: Final = 10.0
"""What a host has said longer ago of an idle job says nothing of now."""
BUDGET_SHARE = 0.01
BUDGET_EVERY_S = 1.0
"""A job with a budget is told of after each such share of it, at most once in so long: how far it is decides
when it has finished."""


class WatchedHost(msgspec.Struct, kw_only=True):
    """A known host that is watched, and when it was heard last."""

    heard_s: float
    silent: bool = False
    lost: bool = False


class HostWatch:
    """The watch over all known hosts. The lease of each host counts from when the host was last heard."""

    def __init__(self, *, silent_after_s: float, lease_s: float | None, now_s: float) -> None:
        self.silent_after_s = silent_after_s
        self.lease_s = lease_s
        self._hosts: dict[HostId, WatchedHost] = {}
        self._ticked_s = now_s

    def know(self, host_id: HostId, now_s: float, *, silent: bool = False, lost: bool = False) -> None:
        """A host of the journal, after our own restart: it is granted a full lease first."""
        self._hosts[host_id] = WatchedHost(heard_s=now_s, silent=silent, lost=lost)

    def join(self, host_id: HostId, now_s: float) -> None:
        """A host has joined; its `HostJoined` is the event, no other is needed."""
        self._hosts[host_id] = WatchedHost(heard_s=now_s)

    def declare_lost(self, host_id: HostId) -> None:
        """An admin has declared the host lost."""
        if host_id in self._hosts:
            self._hosts[host_id].lost = True

    def heard(self, host_id: HostId, now_s: float) -> ev.HostBack | None:
        """A heartbeat came from a host that has joined."""
        watch = self._hosts[host_id]
        watch.heard_s = now_s
        if not watch.silent or watch.lost:
            return None
        watch.silent = False
        return ev.HostBack(host_id=host_id)

    def age_s(self, host_id: HostId, now_s: float) -> float | None:
        watch = self._hosts.get(host_id)
        return None if watch is None else max(0.0, now_s - watch.heard_s)

    def tick(self, now_s: float) -> list[ev.HostSilent | ev.HostLost]:
        """Takes note that time passed. Called about twice a second; a long gap between calls shifts every
        host's clock."""
        gap_s, self._ticked_s = now_s - self._ticked_s, now_s
        if gap_s > DEAF_AFTER_S:
            for watch in self._hosts.values():
                watch.heard_s += gap_s
        return list(self._overdue(now_s))

    def _overdue(self, now_s: float) -> Iterator[ev.HostSilent | ev.HostLost]:
        for host_id, watch in self._hosts.items():
            quiet_s = now_s - watch.heard_s
            if watch.lost or quiet_s <= self.silent_after_s:
                continue
            if not watch.silent:
                watch.silent = True
                yield ev.HostSilent(host_id=host_id)
            if self.lease_s is not None and quiet_s > self.lease_s:
                watch.lost = True
                yield ev.HostLost(host_id=host_id, by="lease")


class LastProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The last progress of a job that went to the engine."""

    attempt: AttemptNo
    at_s: float
    step: int
    step_s: float | None
    total_steps: int | None
    batch: SeenBatch
    beside: tuple[JobId, ...]
    steady_since_s: float
    """When it last departed from what was expected, or got other co-tenants."""
    spacing_s: float

    @property
    def next_s(self) -> float:
        """When progress as it is expected is told next."""
        every_s = min(STEADY_SHARE * (self.at_s - self.steady_since_s), PROGRESS_EVERY_S_MAX)
        return self.at_s + max(PROGRESS_EVERY_S, every_s, self.spacing_s)


class ProgressFilter:
    """Which progress is worth an event: remaining time moved by 5 %, or it has not been told for long.

    Decisions go by the pace and extrapolate it, so progress as it was expected changes none, and is told ever
    more seldom while it lasts. It starts anew, at one a minute, with every change of pace or of co-tenants:
    what a pair costs is learned from these events.
    """

    def __init__(self) -> None:
        self._told: dict[JobId, LastProgress] = {}

    def take(
        self,
        news: AttemptProgress,
        iterations: int | None,
        beside: tuple[JobId, ...],
        now_s: float,
        budget_s: float | None = None,
    ) -> ev.ProgressSeen | None:
        """Takes the progress of a heartbeat. `beside`: the job's present co-tenants."""
        told = self._told.get(news.job_id)
        steady_since_s, spacing_s = now_s, PROGRESS_SPACING_S
        if told is None or told.attempt != news.attempt:
            if news.step_s is None:
                return None  # Nothing measured yet.
        else:
            if beside != told.beside:
                told = msgspec.structs.replace(
                    told, beside=beside, steady_since_s=now_s, spacing_s=PROGRESS_SPACING_S
                )
                self._told[news.job_id] = told
            every_s = None if budget_s is None else max(BUDGET_EVERY_S, BUDGET_SHARE * budget_s)
            is_due = every_s is not None and now_s >= told.at_s + every_s
            if news.step < told.step or (now_s < told.at_s + told.spacing_s and not is_due):
                return None
            spacing_s = told.spacing_s
            if is_due or not departs(told, news, iterations, now_s):
                if not is_due and (news.step == told.step or now_s < told.next_s):
                    return None
                steady_since_s = told.steady_since_s
            elif now_s - told.steady_since_s < CALM * spacing_s:
                spacing_s = min(2.0 * spacing_s, PROGRESS_SPACING_S_MAX)
            else:
                spacing_s = PROGRESS_SPACING_S
        self._told[news.job_id] = LastProgress(
            attempt=news.attempt,
            at_s=now_s,
            step=news.step,
            step_s=news.step_s,
            total_steps=news.length.steps,
            batch=news.batch,
            beside=beside,
            steady_since_s=steady_since_s,
            spacing_s=spacing_s,
        )
        return ev.ProgressSeen(
            job_id=news.job_id,
            attempt=news.attempt,
            step=news.step,
            step_s=news.step_s,
            total_steps=news.length.steps,
            batch=news.batch,
            alone_step_s=news.bound.alone_step_s if news.bound is not None else None,
            energy_j=news.energy_j,
        )

    def forget(self, gone: Iterable[JobId]) -> None:
        for job_id in gone:
            self._told.pop(job_id, None)


def departs(told: LastProgress, news: AttemptProgress, iterations: int | None, now_s: float) -> bool:
    """Whether the job goes on in another way than what was told last lets expect."""
    if news.step_s is None or told.step_s is None:
        return news.step_s is not None
    if (news.length.steps, news.batch) != (told.total_steps, told.batch):
        return True
    iterations = iterations or news.length.steps
    if iterations is None:
        return abs(news.step_s - told.step_s) > PROGRESS_SHARE * told.step_s
    expected_s = (iterations - told.step) * told.step_s - (now_s - told.at_s)
    remaining_s = (iterations - news.step) * news.step_s
    return abs(remaining_s - expected_s) > PROGRESS_SHARE * max(abs(expected_s), told.step_s)


class HeardIdle(NamedTuple):
    """What a host has said last of an attempt."""

    attempt: AttemptNo
    reading: IdleReading
    at_s: float


class IdleFilter:
    """Decides which heartbeats make an event about an idle job: a stage that it has come to, and that it
    works again. What was told before is in the job's record, so that a controller which starts anew goes on
    where it was. A gang is idle while each of its hosts has said so lately."""

    def __init__(self) -> None:
        self._heard: dict[JobId, dict[HostId, HeardIdle]] = {}

    def take(
        self, job: domain.Job, host_id: HostId, reading: IdleReading, now_s: float
    ) -> ev.IdleSeen | None:
        """Takes in the reading of a job on devices, from one of its hosts."""
        attempt, spell = job.attempt.number, job.attempt.idle
        steps = domain.idle_steps(job.spec.idle)
        if not steps:
            return None
        said = self._heard.setdefault(job.job_id, {})
        said[host_id] = HeardIdle(attempt, reading, now_s)
        known = {
            host: each
            for host, each in said.items()
            if host in job.attempt.hosts_left and each.attempt == attempt and now_s - each.at_s <= OLD_S
        }
        if job.phase is not domain.Phase.RUNNING:
            return None
        if spell is not None and _works_since(reading, spell, now_s):
            return ev.IdleSeen(job_id=job.job_id, attempt=attempt, since_s=None)
        if len(known) < len(job.attempt.hosts_left):
            return None
        idle_s = min(each.reading.idle_s for each in known.values())
        stage = domain.next_stage(steps, spell, idle_s)
        if not stage:
            return None
        since_s = now_s - idle_s if spell is None else spell.since_s
        return ev.IdleSeen(job_id=job.job_id, attempt=attempt, since_s=since_s, stage=stage)

    def forget(self, gone: list[JobId]) -> None:
        for job_id in gone:
            self._heard.pop(job_id, None)


def _works_since(reading: IdleReading, spell: domain.IdleSpell, now_s: float) -> bool:
    """Whether it has worked in the spell: what was heard late may seem to be a little after its beginning."""
    if reading.active_ago_s is None:
        return False
    return now_s - reading.active_ago_s > (spell.since_s + spell.told_s) / 2.0


def idle_words(event: ev.IdleSeen, now_s: float) -> str:
    """What the user of an idle job is told in its log; empty: nothing."""
    if event.since_s is None or event.stage in ("", "stop"):
        return ""
    return f"this job {domain.render(domain.idle_reason(event.stage, now_s - event.since_s))}"
