"""Alarms that ring."""

from __future__ import annotations

import heapq

from cotenant.controller.domain import SUSPECT_AFTER, Change, HostId, JobId, Phase, because
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import leaving
from cotenant.controller.engine.dispatch import Alarm, Dispatch
from cotenant.controller.engine.ending import ended


def on_alarm(dispatch: Dispatch, event: ev.AlarmRang) -> None:
    """Rings all alarms that are due, in the order of their times."""
    while dispatch.alarms and dispatch.alarms[0].at_s <= dispatch.ledger.now_s:
        _ring(dispatch, heapq.heappop(dispatch.alarms))


def _ring(dispatch: Dispatch, alarm: Alarm) -> None:
    if alarm.kind == "probation":
        host = dispatch.ledger.hosts.get(HostId(alarm.subject))
        if host is not None and host.is_suspect:
            host.failures_in_row = SUSPECT_AFTER - 1
            dispatch.ledger.refresh_host(host)
        return
    if alarm.kind == "leave":
        leaving.ring(dispatch, HostId(alarm.subject))
        return
    if alarm.kind == "promise":
        return  # `promises.py` looks after each event.
    if alarm.kind == "reunite":
        dispatch.ledger.pairs.reunite(alarm.subject, dispatch.ledger.now_s)
        return
    job = dispatch.ledger.jobs.get(JobId(alarm.subject))
    if job is None or job.attempt != alarm.attempt:
        return
    if alarm.kind == "deadline" and job.phase is Phase.CHECKPOINTING:
        waited_s = dispatch.config.policy.stop_deadline_s
        cause = job.stop_cause
        dispatch.stop(job, cause, because("checkpoint-deadline", waited_s, job.durable_step), save=False)
    elif alarm.kind == "limit" and job.phase in (Phase.LOADING, Phase.RUNNING):
        dispatch.stop(job, "time-limit", because("time-limit", job.spec.time_limit_s or 0.0), save=True)
    elif alarm.kind == "back-off" and job.phase is Phase.BLOCKED:
        dispatch.ledger.change(job, Change.UNBLOCK, job.reason)
        if not dispatch.queue_or_block(job):
            ended(dispatch, job)
    elif alarm.kind == "age" and job.phase is Phase.QUEUED and not job.aged:
        dispatch.ledger.age(job, because("aged", dispatch.config.policy.ageing_s))
