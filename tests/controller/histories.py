"""Random histories: whatever users, hosts, jobs and the network might say, in any order.

Rule: a step is four small numbers and means something only beside the engine's present state, so that most
steps hit jobs and hosts that exist; one in ten is about something stale, repeated or unheard of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

from cotenant.controller.domain import (
    ON_DEVICES,
    AttemptNo,
    Capabilities,
    Dependency,
    ExitVerdict,
    HostId,
    HostReport,
    IdleStage,
    Job,
    JobId,
    JobSpec,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine
from cotenant.controller.wire import pack, unpack
from tests.controller.building import profile, report, spec

Step = tuple[int, int, int, int]

STEPS = st.lists(
    st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99)),
    min_size=5,
    max_size=80,
)


def with_main_memory(report: HostReport, memory_mib: int) -> HostReport:
    return msgspec.structs.replace(report, memory_mib=memory_mib)


HOSTS: Sequence[HostReport] = (
    report("a", 2, memory_mib=1000),
    with_main_memory(
        report(
            "b", 4, memory_mib=1000, checkpoint_domain="nfs", device={"divides": True, "cores": (0, 1, 2, 3)}
        ),
        10_000,
    ),
    report("c", 4, memory_mib=1000, checkpoint_domain="nfs"),
    report(
        "d",
        2,
        type="NVIDIA-T4",
        kind="cuda",
        memory_mib=4000,
        features=("ib",),
        device={"sharing": "mps", "divides": True},
    ),
)
SMALLER = msgspec.structs.replace(HOSTS[1], devices=HOSTS[1].devices[:2])
WAITS_S = (0, 0, 0, 1, 1, 5, 5, 30, 30, 200, 4000)


def event_of(engine: Engine, step: Step, parameters: Sequence[str]) -> ev.AnyEvent:
    """What a step means now. The event has been over the wire, as all events have."""
    kind, x, y, z = step
    event = _MEANINGS[kind % len(_MEANINGS)](engine, x, y, z, parameters)
    decoded: ev.AnyEvent = unpack(pack(event), ev.AnyEvent)
    return decoded


def _arrived(engine: Engine, x: int, y: int, z: int, _: Sequence[str]) -> ev.AnyEvent:
    number = engine.ledger.next_number if x % 10 else max(1, engine.ledger.next_number - 1)
    return ev.JobArrived(spec=_spec(number, x, y, z))


def _spec(number: int, x: int, y: int, z: int) -> JobSpec:
    gpus = (1, 1, 1, 1, 2, 2, 2, 4, 4, 5, 8)[x % 11]
    batch = (None, 8, 32)[y % 3]
    more: dict[str, Any] = {
        "gpus_min": gpus,
        "gpus_max": gpus * 2 if z % 8 == 3 else gpus,
        "gpu_fraction": (1.0, 1.0, 0.5, 0.25, 0.3)[y % 5] if gpus == 1 and z % 8 != 3 else 1.0,
        "nodes": 2 if gpus in (2, 4, 8) and y % 7 == 0 else 0,
        "expected_s": (None, 10.0, 40.0, 100.0, 1000.0)[z % 5],
        "batch_size": batch,
        "memory_mib": (None, 100, 400, 700)[(x + z) % 4],
        "job_class": "hp" if z % 7 == 0 else "spot",
        "share": "never" if y % 11 == 0 else "auto",
        "resumable": (None, True, True, False)[(y + z) % 4],
        "gpu_type": (*[""] * 6, "cpu", "NVIDIA-T4")[(x + y) % 8],
        "features": ("ib",) if z % 19 == 0 else (),
        "time_limit_s": 300.0 if y % 9 == 0 else None,
        "iterations": 200 if x % 3 == 0 else None,
        "retries": z % 2,
        "uid": 1000 + x % 2,
        "user": ("ann", "bob")[x % 2],
        "priority": (0, 0, 0, 5, -5)[(x + y + z) % 5],
        "organisation": ("", "vision", "speech")[(x + 2 * z) % 3],
        "hold": y % 17 == 0,
        "code_sha256": ("", "c0de", "beef")[z % 3],
        "argv": ("python", f"train-{x % 3}.py"),
        "cpus": (0, 0, 0, 0, 3, 6)[(2 * x + z) % 6],
        "host_memory_mib": (0, 0, 0, 4000)[(x + 3 * y) % 4],
        "profiling": "only" if (x + y) % 13 == 0 else "auto",
    }
    if batch and y % 2:
        points = [(s, 1.0 + 0.05 * s, 700.0 / s) for s in (1, 2, batch)]
        more["profile"] = profile(batch, *points, duty=(0.3, 0.6, 1.0)[z % 3])
    if number > 1 and x % 6 == 0:
        need = "any" if z % 2 else "ok"
        more["after"] = (Dependency(job_id=JobId(str(1 + y % (number - 1))), need=need),)  # type: ignore[arg-type]
    return spec(number, **more)


def _job(engine: Engine, x: int, *, on_devices: bool = False) -> Job | None:
    jobs = [j for j in engine.jobs.values() if not on_devices or j.phase in ON_DEVICES]
    return jobs[x % len(jobs)] if jobs else None


def _named(engine: Engine, x: int) -> JobId:
    job = _job(engine, x)
    return job.job_id if job is not None and x % 10 else JobId(str(x))


def _user(engine: Engine, x: int, y: int, z: int, _: Sequence[str]) -> ev.AnyEvent:
    kinds = (
        ev.CancelRequested,
        ev.HoldRequested,
        ev.ReleaseRequested,
        ev.ReleaseRequested,
        ev.PreemptRequested,
        ev.CheckpointRequested,
        ev.RequeueRequested,
        ev.RequeueRequested,
    )
    if y % (len(kinds) + 1) == len(kinds):
        return ev.SpecChanged(job_id=_named(engine, x), changes=_changes(z), by="ann")
    return kinds[y % (len(kinds) + 1)](job_id=_named(engine, x), by="ann")


def _changes(z: int) -> dict[str, str | int | float | None]:
    found: tuple[dict[str, str | int | float | None], ...] = (
        {"priority": z % 7 - 3},
        {"gpus_min": 1 + z % 4, "gpus_max": 1 + z % 4, "nodes": 0, "gpu_fraction": 1.0},
        {"gpus_min": 1, "gpus_max": 1, "nodes": 0, "gpu_fraction": (0.5, 0.25, 0.75)[z % 3]},
        {"organisation": ("", "vision", "speech")[z % 3]},
        {"job_class": ("hp", "spot")[z % 2], "memory_mib": (None, 100, 400)[z % 3]},
        {"expected_s": (None, 5.0, 500.0)[z % 3], "iterations": (None, 50)[z % 2]},
        {"time_limit_s": (None, 100.0)[z % 2], "gpu_type": ("", "cpu")[z % 2]},
        {"time_limit_s": (None, 60.0, 2000.0)[z % 3], "idle": ("none", "warn:30m", "share:1h")[z % 3]},
    )
    return found[z % len(found)]


def _policy(engine: Engine, x: int, y: int, z: int, names: Sequence[str]) -> ev.AnyEvent:
    return ev.PolicyChanged(name=names[x % len(names)], by="root")


def _host(engine: Engine, x: int, y: int, z: int, _: Sequence[str]) -> ev.AnyEvent:
    host_id = HOSTS[x % len(HOSTS)].host_id
    kind = y % 12
    if kind < 3:
        return ev.HostLost(host_id=host_id, by="root" if z % 3 == 0 else "lease")
    if kind < 5:
        return ev.HostSilent(host_id=host_id)
    if kind < 7:
        return ev.HostBack(host_id=host_id)
    if kind == 7:
        return ev.HostDrained(host_id=host_id, by="root")
    if kind == 8:
        return ev.HostResumed(host_id=host_id, by="root")
    return _joined(engine, x, y, z, _)


def _joined(engine: Engine, x: int, y: int, z: int, _: Sequence[str]) -> ev.AnyEvent:
    host = HOSTS[x % len(HOSTS)]
    if host.host_id == SMALLER.host_id and z % 4 == 0:
        host = SMALLER
    here = [j for j in engine.jobs.values() if host.host_id in j.attempt.hosts_left]
    known = [j for i, j in enumerate(here) if (z >> i) % 4]  # Some are missing from the inventory.
    seen = [
        ev.AttemptSeen(
            job_id=j.job_id, attempt=AttemptNo(max(1, j.attempt.number - (z % 7 == 0))), running=z % 5 > 0
        )
        for j in known
    ]
    return ev.HostJoined(report=host, attempts=tuple(seen))


def _attempt(engine: Engine, x: int, y: int, z: int, _: Sequence[str]) -> ev.AnyEvent:
    job = _job(engine, x, on_devices=z % 10 != 0)
    if job is None:
        return ev.AlarmRang()
    attempt = AttemptNo(max(1, job.attempt.number - (z % 9 == 0)))
    hosts = job.attempt.hosts_left or (HostId("a"),)
    of: dict[str, Any] = {
        "job_id": job.job_id,
        "attempt": attempt,
        "host_id": hosts[z % len(hosts)] if z % 11 else HostId("b"),
    }
    step = job.progress.step + z % 50
    match y % 10:
        case 0:
            return ev.AttemptStarted(**of)
        case 1 | 2:
            return ev.CapabilitiesSeen(
                **of,
                resumable=z % 4 > 0,
                capabilities=Capabilities(accumulates=z % 3 > 0, proven=z % 5),
                step=job.durable_step,
            )
        case 3 | 4:
            return ev.FirstStepDone(**of, step=step)
        case 5:
            return ev.ProgressSeen(
                job_id=job.job_id, attempt=attempt, step=step, step_s=(None, 0.5, 1.0, 2.0)[z % 4]
            )
        case 6:
            return ev.CheckpointDurable(**of, step=step, exact=z % 2 > 0)
        case _:
            return _ended(of, step, y, z)


def _ended(of: dict[str, Any], step: int, y: int, z: int) -> ev.AnyEvent:
    outcome: Any = ("finished", "user-failed", "infra-failed", "stopped", "stopped", "never-started")[z % 6]
    return ev.AttemptEnded(
        **of,
        verdict=ExitVerdict(
            outcome=outcome,
            exit_code=y % 3 or None,
            detail="boom: it broke" if z % 2 else "",
            workdir_missing=outcome == "infra-failed" and y == 7,
            out_of_memory=outcome == "user-failed" and y % 2 == 0,
            went_otherwise=outcome == "user-failed" and y % 2 > 0,
        ),
        step=step,
        gpu_fault=("", "culprit", "suspect", "hit", "device")[y % 5] if outcome == "infra-failed" else "",
    )


def _learned(engine: Engine, x: int, y: int, z: int, _: Sequence[str]) -> ev.AnyEvent:
    one, two = _job(engine, x), _job(engine, y)
    if one is None or two is None:
        return ev.Computed(request_id=x, model_sha256="", values=())
    if z % 2:
        points = [(s, 0.5 + 0.1 * s, 600.0 / s) for s in (1, 4)]
        if x % 7 == 0:
            return ev.ProfilesForgotten(keys=tuple(engine.ledger.profiles.known)[: y % 3], by="ann")
        return ev.ProfileLearned(
            job_id=one.job_id,
            profile=msgspec.structs.replace(
                profile(8, *points, duty=0.4), accumulates=False if x % 5 == 0 else None
            ),
            attempt=one.attempt.number if y % 5 else None,
            device_type="cpu" if y % 2 else "",
            is_complete=y % 4 > 0,
        )
    return ev.PairObserved(first=one.job_id, second=two.job_id, first_xi=0.9 + z / 50, second_xi=1.1)


def _idle(engine: Engine, x: int, y: int, z: int, _: Sequence[str]) -> ev.AnyEvent:
    job = _job(engine, x, on_devices=True)
    if job is None:
        return ev.AlarmRang()
    stages: tuple[IdleStage, ...] = ("warn", "share", "share", "share", "word", "stop")
    return ev.IdleSeen(
        job_id=job.job_id,
        attempt=AttemptNo(max(1, job.attempt.number - (z % 9 == 0))),
        since_s=None if z % 3 == 0 else max(0.0, engine.now_s - z),
        stage=stages[y % len(stages)],
    )


def _alarm(*_: object) -> ev.AnyEvent:
    return ev.AlarmRang()


_MEANINGS = (
    _arrived, _arrived, _arrived, _user, _attempt, _attempt, _attempt, _attempt, _attempt, _attempt, _host,
    _joined, _alarm, _learned, _policy, _idle,
)  # fmt: skip
