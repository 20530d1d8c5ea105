"""The report on what sharing and preemption brought and cost. Pure: the numbers are `engine.accounts`'s."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cotenant.controller import wire
from cotenant.controller.api.moment import Now
from cotenant.controller.domain import Job, JobId
from cotenant.controller.engine import Engine
from cotenant.controller.history import ALWAYS_S, AttemptRecord, History, accounts
from cotenant.controller.knowledge import kind_of, signature

PAIRS_SHOWN: Final = 100

FORMULAS: Final = {
    "won_device_s": "sum over the time in which jobs trained beside others of (steps x alone step time, at "
    "most the time itself) x devices - device-seconds taken; a second of a device counts once, in equal "
    "parts for those who hold it",
    "cost_device_s": "save (request to stop until devices are free) + load (again, to the first step) + "
    "rework (steps done again x alone step time x devices) + futile (loads that ended before a first step)",
    "net_device_s": "won - cost of parting, of running out of memory and of GPU faults beside others",
}
NOT_KNOWN: Final = (
    "what each of two processes on a GPU draws: its energy is divided by the time that each may use it",
    "what preemption gained: when jobs would have started without it is unknown (`cotenant whatif`)",
    "how long jobs would have waited without sharing: likewise (`cotenant whatif --policies sjf,castor`)",
    "how much a job that loads slows those beside it: only time in which both train is compared",
)


def sharing_view(row: accounts.SharedWork) -> wire.SharingView:
    return wire.SharingView(
        beside=row.beside,
        steps=row.steps,
        predicted_s=row.predicted_s,
        measured_s=row.seconds,
        alone_s=row.alone_s,
        predicted_slowdown=row.slowdown,
        predicted_from=row.source,
        predicted_margin_s=None if row.margin is None or row.alone_s is None else row.margin * row.alone_s,
        device_s=row.device_s,
        won_device_s=row.won_device_s,
    )


def views_of(
    jobs: Mapping[JobId, Job], job: Job, attempts: Sequence[AttemptRecord]
) -> tuple[tuple[wire.SharingView, ...], tuple[wire.PromiseView, ...]]:
    """What a job did beside others, and what had been expected of that."""
    return (
        tuple(sharing_view(row) for row in accounts.together(jobs, job, attempts)),
        tuple(
            wire.PromiseView(
                beside=promise.beside,
                promised_s=promise.shared_s,
                took_s=took_s,
                sequential_s=promise.sequential_s,
            )
            for promise, took_s in accounts.promises(jobs, job, attempts)
        ),
    )


def report_view(
    engine: Engine,
    history: History,
    now: Now,
    since_s: float | None,
    kinds: Callable[[str, str], str] = lambda key, name: name,
) -> wire.ReportView:
    """The report on everything that is remembered, or only on what has happened since `since_s`."""
    from_s = ALWAYS_S if since_s is None else since_s
    jobs = engine.jobs
    found = accounts.totals(jobs, history.attempts, from_s, now.now_s)
    pairs = _pairs(jobs, history, from_s, kinds)
    oldest_s = min((job.submitted_s for job in jobs.values()), default=None)
    shared = found.shared
    idle = idle_by_user(jobs, history, from_s, now.now_s)
    return wire.ReportView(
        now=now.at,
        since=now.utc_if(since_s),
        remembered_since=now.utc_if(oldest_s),
        forgotten_jobs=forgotten_jobs(engine),
        held_device_s=found.held_device_s,
        idle_device_s=sum(idle.values()),
        idle_by_user=idle,
        energy_kwh=found.energy.kwh,
        energy_unknown_attempts=found.energy.unknown_attempts,
        sharing=wire.SharingTotals(
            jobs=found.jobs_shared,
            alone_device_s=shared.work_device_s,
            measured_device_s=shared.device_s,
            won_device_s=shared.won_device_s,
            unknown_device_s=shared.unknown_device_s,
            cost_device_s=shared.won_device_s - found.net_sharing_device_s,
            net_device_s=found.net_sharing_device_s,
        ),
        interruptions=tuple(
            wire.InterruptionView(
                cause=cause,
                count=sums.count,
                save_device_s=sums.save_device_s,
                load_device_s=sums.load_device_s,
                rework_device_s=sums.rework_device_s,
                futile_device_s=sums.futile_device_s,
                cost_device_s=sums.cost_device_s,
                rework_unknown_steps=sums.unknown_steps,
            )
            for cause, sums in sorted(found.interrupted.items())
        ),
        pairs=tuple(pairs[:PAIRS_SHOWN]),
        more_pairs=max(0, len(pairs) - PAIRS_SHOWN),
        formulas=dict(FORMULAS),
        not_known=NOT_KNOWN,
    )


def idle_by_user(
    jobs: Mapping[JobId, Job], history: History, since_s: float, now_s: float
) -> dict[str, float]:
    """Device-seconds that each user's jobs held without using them, the most first; nobody with none."""
    found: dict[str, float] = {}
    for job in jobs.values():
        idle_s = accounts.idle_by(history.attempts(job.job_id), since_s, now_s)
        if idle_s > 0.0:
            found[job.spec.user] = found.get(job.spec.user, 0.0) + idle_s
    return dict(sorted(found.items(), key=lambda each: (-each[1], each[0])))


def forgotten_jobs(engine: Engine) -> int:
    """How many jobs ended so long ago that only the journal knows them."""
    return max(0, engine.arrived - len(engine.jobs))


def _pairs(
    jobs: Mapping[JobId, Job], history: History, since_s: float, kinds: Callable[[str, str], str]
) -> list[wire.PairTotals]:
    names = {signature(job.spec): kind_of(job.spec) for job in jobs.values()}
    sums: dict[tuple[str, str], accounts.Sums] = {}
    for (mine, beside), one_way in accounts.sums_by_kinds(jobs, history.attempts, since_s).items():
        both = sums.setdefault((min(mine, beside), max(mine, beside)), accounts.Sums())
        both.device_s += one_way.device_s
        both.work_device_s += one_way.work_device_s
    found = [
        wire.PairTotals(
            first=kinds(pair[0], names.get(pair[0], "?")),
            second=kinds(pair[1], names.get(pair[1], "?")),
            alone_device_s=both.work_device_s,
            measured_device_s=both.device_s,
            won_device_s=both.won_device_s,
        )
        for pair, both in sums.items()
        if both.device_s > 0.0
    ]
    return sorted(found, key=lambda pair: (-pair.won_device_s, pair.first, pair.second))
