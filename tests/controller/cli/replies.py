"""Replies as a controller gives them, for the command lines' tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from cotenant.controller.domain import DeviceId, HostId, HostState, JobId, JobSpec, Phase
from cotenant.controller.performance import INDICATOR_NAMES, Profile
from cotenant.controller.wire import (
    InterruptionView,
    PairTotals,
    ReportView,
    SharingTotals,
    Utc,
    profile_view,
    throughput_view,
    utc,
)
from cotenant.controller.wire import clients as wire

NOW_S = 1000.0
WALL_S = 1_763_629_200.0
"""2025-11-20T09:00:00Z"""
NOW = utc(WALL_S)


def at(at_s: float) -> Utc:
    """A time of the journal."""
    return utc(WALL_S - NOW_S + at_s)


def job_view(job_id: str = "7", **more: Any) -> wire.JobView:
    """A running job; `more` says what is different."""
    known: dict[str, Any] = {
        "job_id": JobId(job_id),
        "name": "train",
        "user": "ada",
        "phase": Phase.RUNNING,
        "reason": "1 free device is enough",
        "reason_code": "free-devices",
        "attempt": 1,
        "gpus": 1,
        "devices": ("laptop/cpu0",),
        "co_tenants": (),
        "co_tenants_ever": (),
        "sub_batch": 32,
        "accumulation_steps": 1,
        "accumulation_steps_ever": (1,),
        "step": 40,
        "iterations": 100,
        "step_s": 0.25,
        "loss": 1.5,
        "resumable": True,
        "left_s": 15.0,
        "left_source": "iterations x measured step time",
        "durable_step": 30,
        "submitted_at": at(100.0),
        "started_at": at(110.0),
        "ended_at": None,
        "wait_s": 10.0,
        "load_s": 2.0,
        "run_s": 60.0,
        "pause_s": 0.0,
        "preemptions": 0,
        "exit_code": None,
        "job_class": "spot",
        "share": "auto",
    }
    return wire.JobView(**{**known, **more})


def waiting(job_id: str, reason: str, **more: Any) -> wire.JobView:
    known: dict[str, Any] = {
        "phase": Phase.QUEUED, "reason": reason, "reason_code": "behind", "devices": (), "attempt": 0,
        "started_at": None, "step": 0, "run_s": 0.0, "load_s": 0.0, "loss": None, "step_s": None,
    }  # fmt: skip
    return job_view(job_id, **{**known, **more})


def done(job_id: str = "7", **more: Any) -> wire.JobView:
    known = {"phase": Phase.DONE, "ended_at": at(900.0), "exit_code": 0, "devices": (), "reason": "finished"}
    return job_view(job_id, **{**known, **more})


def jobs(*views: wire.JobView) -> wire.Jobs:
    return wire.Jobs(request_id=0, jobs=views, now=NOW)


def attempt(number: int = 1, **more: Any) -> wire.AttemptView:
    known: dict[str, Any] = {
        "devices": ("laptop/cpu0",), "co_tenants": (), "accumulation_steps": 1, "launched_at": at(100.0),
        "first_step_at": at(102.0), "first_step": 1, "stop_requested_at": None, "ended_at": None,
        "outcome": "", "reason": "free",
    }  # fmt: skip
    return wire.AttemptView(attempt=number, **{**known, **more})


def details(
    job: wire.JobView,
    spec: JobSpec,
    attempts: Sequence[wire.AttemptView] = (),
    profile: Profile | None = None,
    *,
    given: bool = False,
) -> wire.JobDetails:
    return wire.JobDetails(
        **msgspec.structs.asdict(job),
        spec=wire.spec_view(spec),
        attempts=tuple(attempts),
        profile=None if profile is None else profile_view(profile),
        profile_given=given,
        throughput=throughput_view(profile, spec.batch_size, spec.gang),
    )


def shown(
    job: wire.JobView,
    spec: JobSpec,
    attempts: Sequence[wire.AttemptView] = (),
    profile: Profile | None = None,
) -> wire.Shown:
    return wire.Shown(request_id=0, job=details(job, spec, attempts, profile), now=NOW)


def explained(job: wire.JobView, *lines: str) -> wire.Explained:
    explanation = wire.ExplanationView(
        job_id=job.job_id,
        phase=job.phase,
        reason=job.reason,
        reason_code=job.reason_code,
        lines=lines,
        now=NOW,
    )
    return wire.Explained(request_id=0, job=job, explanation=explanation)


def device(local: str = "cpu0", host: str = "laptop", **more: Any) -> wire.DeviceView:
    known: dict[str, Any] = {
        "kind": "cpu", "type": "cpu", "memory_mib": 4096, "reserve_mib": 0, "planned_mib": 0,
        "max_tenants": 2, "sharing": "time-slicing", "sharing_note": "", "cores": (0,), "state": "ok",
        "healthy": True, "note": "",
    }  # fmt: skip
    known["jobs_planned_mib"] = (0,) * len(more.get("jobs", ()))
    return wire.DeviceView(device_id=DeviceId(f"{host}/{local}"), **{**known, **more})


def reading(source: str, values: dict[str, float], **more: Any) -> wire.ReadingView:
    known: dict[str, Any] = {"age_s": 0.0, "lasted_s": 1.0, "memory_used_mib": None, "note": ""}
    named: dict[str, float | None] = {name: values.get(name) for name in INDICATOR_NAMES}
    return wire.ReadingView(source=source, values=named, **{**known, **more})


def node(
    host: str = "laptop",
    *devices: wire.DeviceView,
    tenants: Mapping[str, tuple[JobId, ...]] | None = None,
    readings: Mapping[str, wire.ReadingView] | None = None,
    planned_mib: Mapping[str, int] | None = None,
    **more: Any,
) -> wire.NodeView:
    """What is told of devices by their names is put into them."""
    told = [
        msgspec.structs.replace(
            each,
            jobs=(tenants or {}).get(each.device_id, ()),
            reading=(readings or {}).get(each.device_id),
            planned_mib=(planned_mib or {}).get(each.device_id, 0),
        )
        for each in devices
    ]
    known: dict[str, Any] = {
        "state": HostState.OK, "reason": "", "heartbeat_age_s": 0.4, "version": "0.1.0", "cpus": 2,
        "address": "127.0.0.1", "memory_mib": 8192, "features": (), "checkpoint_domain": "",
    }  # fmt: skip
    return wire.NodeView(host=HostId(host), devices=tuple(told), **{**known, **more})


def nodes(*views: wire.NodeView) -> wire.Nodes:
    return wire.Nodes(request_id=0, nodes=views, now=NOW)


def status(**more: Any) -> wire.ControllerStatus:
    known: dict[str, Any] = {
        "version": "0.1.0", "pid": 1, "now_s": NOW_S, "wall_s": WALL_S, "uptime_s": 90.0, "policy": "castor",
        "jobs_by_phase": {"running": 2, "queued": 1}, "hosts": 1, "devices": 2, "counters": {},
        "journal": "journal.db", "endpoint": "ipc:///x",
    }  # fmt: skip
    return wire.ControllerStatus(request_id=0, **{**known, **more})


def standby(**more: Any) -> wire.StandbyView:
    known: dict[str, Any] = {"endpoint": "tcp://b:1", "host": "b", "behind_entries": 0, "behind_s": 0.5}
    return wire.StandbyView(**{**known, **more})


def controllers(*standbys: wire.StandbyView, **more: Any) -> wire.ControllersView:
    """Of a journal that controllers share; with term=0 of one in a file."""
    known: dict[str, Any] = {
        "endpoint": "tcp://a:1", "role": "leader", "journal": "postgresql://db/cotenant", "entries": 7,
        "leader": "tcp://a:1", "leader_host": "a", "leads_since": None, "why": "the leader had ended",
        "term": 3,
    }  # fmt: skip
    return wire.ControllersView(request_id=0, standbys=standbys, **{**known, **more})


def pair(**more: Any) -> wire.PairView:
    known: dict[str, Any] = {
        "first": "python a.py, batch 8", "second": "python b.py x2", "first_xi": 1.25, "second_xi": 1.6,
        "first_count": 7, "second_count": 5, "benefit": 0.425, "verdict": "pays",
    }  # fmt: skip
    return wire.PairView(**{**known, **more})


def pairs(*views: wire.PairView, more: int = 0) -> wire.Pairs:
    return wire.Pairs(request_id=0, pairs=views, observations=3, now=NOW, more=more)


def policy(unavailable: Mapping[str, str] | None = None) -> wire.Policies:
    castor: wire.Parameters = {"ageing_s": 86400.0, "share": True, "pairs": 3}
    offers = [
        wire.PolicyOffer(
            policy="castor", about="shares when it pays", current=True, available=True, defaults=castor
        ),
        wire.PolicyOffer(
            policy="fifo", about="first come, first served", current=False, available=True, defaults={}
        ),
    ]
    offers += [
        wire.PolicyOffer(
            policy=name, about=wire.NOT_AVAILABLE + lacks, current=False, available=False, defaults={}
        )
        for name, lacks in (unavailable or {}).items()
    ]
    given: wire.Parameters = {"ageing_s": 3600.0}
    current = wire.PolicyView(policy="castor", about="shares when it pays", parameters={**castor, **given})
    return wire.Policies(request_id=0, current=current, given=given, offers=tuple(offers))


def report(**more: Any) -> wire.SharingReport:
    known: dict[str, Any] = {
        "now": NOW,
        "since": None,
        "remembered_since": at(100.0),
        "forgotten_jobs": 0,
        "held_device_s": 36_000.0,
        "sharing": SharingTotals(
            jobs=4, alone_device_s=7200.0, measured_device_s=5400.0, won_device_s=1800.0,
            unknown_device_s=360.0, cost_device_s=36.0, net_device_s=1764.0,
        ),
        "interruptions": (
            InterruptionView(
                cause="preempted", count=2, save_device_s=36.0, load_device_s=72.0, rework_device_s=18.0,
                futile_device_s=0.0, cost_device_s=126.0, rework_unknown_steps=0,
            ),
        ),
        "pairs": tuple(
            PairTotals(first=f"a{n}", second="b", alone_device_s=6.0, measured_device_s=9.0, won_device_s=-n)
            for n in range(12)
        ),
        "formulas": {"won_device_s": "steps x alone - taken"},
        "not_known": ("what preemption gained",),
    }  # fmt: skip
    return wire.SharingReport(request_id=0, report=ReportView(**{**known, **more}))


def use(name: str, held_h: float, **more: Any) -> wire.UsageView:
    known: dict[str, Any] = {
        "jobs": 3, "attempts": 4, "shared_device_s": 1800.0, "lost_device_s": 36.0, "wait_s": 90.0,
    }  # fmt: skip
    return wire.UsageView(name=name, held_device_s=held_h * 3600, **{**known, **more})


def usage(*rows: wire.UsageView, **more: Any) -> wire.UsageRows:
    known = {"now": NOW, "since": None, "forgotten_jobs": 0, **more}
    return wire.UsageRows(request_id=0, rows=rows, **known)
