"""Replies as a controller gives them, for the command lines' tests."""

from __future__ import annotations

from typing import Any

from cotenant.controller.domain.cluster import Device, HostReport, HostState
from cotenant.controller.domain.ids import DeviceId, HostId, JobId
from cotenant.controller.domain.indicators import DeviceReading
from cotenant.controller.domain.job import Phase
from cotenant.controller.wire import clients as wire

NOW_S = 1000.0
WALL_S = 1_763_629_200.0
"""2025-11-20T09:00:00Z"""


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
        "remaining_s": 15.0,
        "estimate_source": "iterations x measured step time",
        "durable_step": 30,
        "submitted_s": 100.0,
        "started_s": 110.0,
        "ended_s": None,
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
        "started_s": None, "step": 0, "run_s": 0.0, "load_s": 0.0, "loss": None, "step_s": None,
    }  # fmt: skip
    return job_view(job_id, **{**known, **more})


def done(job_id: str = "7", **more: Any) -> wire.JobView:
    known = {"phase": Phase.DONE, "ended_s": 900.0, "exit_code": 0, "devices": (), "reason": "finished"}
    return job_view(job_id, **{**known, **more})


def jobs(*views: wire.JobView) -> wire.Jobs:
    return wire.Jobs(request_id=0, jobs=views, now_s=NOW_S, wall_s=WALL_S)


def device(local: str = "cpu0", host: str = "laptop", **more: Any) -> Device:
    known: dict[str, Any] = {"kind": "cpu", "type": "cpu", "local": local, "memory_mib": 4096, "cores": (0,)}
    return Device(device_id=DeviceId(f"{host}/{local}"), host_id=HostId(host), **{**known, **more})


def reading(source: str, values: dict[str, float], **more: Any) -> DeviceReading:
    return DeviceReading(device_id=DeviceId("h/d"), source=source, values=values, lasted_s=1.0, **more)


def node(host: str = "laptop", *devices: Device, **more: Any) -> wire.NodeView:
    report = HostReport(host_id=HostId(host), devices=devices, cpus=2, memory_mib=8192, version="0.1.0")
    known: dict[str, Any] = {
        "state": HostState.OK, "reason": "", "tenants": {}, "planned_mib": {}, "heartbeat_age_s": 0.4,
    }  # fmt: skip
    return wire.NodeView(report=report, **{**known, **more})


def nodes(*views: wire.NodeView) -> wire.Nodes:
    return wire.Nodes(request_id=0, nodes=views, now_s=NOW_S, wall_s=WALL_S)


def status(**more: Any) -> wire.ControllerStatus:
    known: dict[str, Any] = {
        "version": "0.1.0", "pid": 1, "now_s": NOW_S, "wall_s": WALL_S, "uptime_s": 90.0, "policy": "castor",
        "jobs_by_phase": {"running": 2, "queued": 1}, "hosts": 1, "devices": 2, "counters": {},
        "journal": "journal.db", "endpoint": "ipc:///x",
    }  # fmt: skip
    return wire.ControllerStatus(request_id=0, **{**known, **more})


def pair(**more: Any) -> wire.PairView:
    known: dict[str, Any] = {
        "first": "python a.py, batch 8", "second": "python b.py x2", "first_xi": 1.25, "second_xi": 1.6,
        "first_count": 7, "second_count": 5, "benefit": 0.425, "verdict": "pays",
    }  # fmt: skip
    return wire.PairView(**{**known, **more})


def pairs(*views: wire.PairView, more: int = 0) -> wire.Pairs:
    return wire.Pairs(request_id=0, pairs=views, observations=3, now_s=NOW_S, wall_s=WALL_S, more=more)


def policy(**more: Any) -> wire.PolicyView:
    known: dict[str, Any] = {
        "name": "castor",
        "parameters": {"ageing_s": 3600.0},
        "available": {"castor": "shares when it pays", "fifo": "first come, first served"},
        "defaults": {"castor": {"ageing_s": 86400.0, "share": True, "pairs": 3}, "fifo": {}},
    }
    return wire.PolicyView(request_id=0, **{**known, **more})
