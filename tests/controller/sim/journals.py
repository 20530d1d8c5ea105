"""Journals of controllers that a test tells what happened: real engine, real file, no processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cotenant.controller.domain import (
    NO_BOUNDS,
    AttemptNo,
    ExitVerdict,
    HostId,
    JobId,
    JobSpec,
    Launch,
    PolicySettings,
    SharingSettings,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine, EngineConfig
from cotenant.controller.performance import Indicators, IndicatorStats, Profile
from cotenant.controller.policies import registry
from cotenant.controller.store import digest
from cotenant.controller.wire import pack
from tests.building import hosts
from tests.building.journals import a_journal

WALL_S = 1_763_000_000.0
HOST = HostId("h")


def joined(gpus: int = 1, host: str = HOST) -> ev.HostJoined:
    devices = (hosts.cpu(f"{host}/{number}", memory_mib=8_000) for number in range(gpus))
    return ev.HostJoined(report=hosts.host(host, *devices))


def arrived(job: str, **spec: Any) -> ev.JobArrived:
    return ev.JobArrived(spec=JobSpec(job_id=JobId(job), user="ada", **spec))


def first_step(job: str, attempt: int = 1, step: int = 1) -> ev.FirstStepDone:
    return ev.FirstStepDone(job_id=JobId(job), attempt=AttemptNo(attempt), host_id=HOST, step=step)


def durable(job: str, step: int, attempt: int = 1) -> ev.CheckpointDurable:
    return ev.CheckpointDurable(job_id=JobId(job), attempt=AttemptNo(attempt), host_id=HOST, step=step)


def ended(job: str, outcome: Any = "finished", attempt: int = 1, step: int = 0) -> ev.AttemptEnded:
    return ev.AttemptEnded(
        job_id=JobId(job),
        attempt=AttemptNo(attempt),
        host_id=HOST,
        verdict=ExitVerdict(outcome=outcome),
        step=step,
    )


def write_journal(
    folder: Path,
    story: Sequence[tuple[float, ev.AnyEvent]],
    policy: str = "fifo",
    sharing: SharingSettings = NO_BOUNDS,
) -> Path:
    """The journal of a controller to which this happened."""
    config = EngineConfig(policy=PolicySettings(name=policy), sharing=sharing)
    engine, journal = Engine(registry.make, config), a_journal(folder)
    try:
        journal.begin_run(pack(config), "0", WALL_S)
        for now_s, event in story:
            commands = engine.handle(event, now_s)
            journal.append(now_s, WALL_S + now_s, pack(event), pack(engine.decision), digest(commands))
    finally:
        journal.close()
    return folder


TWO_IN_TURN = (
    (0.0, joined()),
    (10.0, arrived("a", expected_s=100.0)),
    (20.0, arrived("b", expected_s=30.0)),
    (40.0, first_step("a")),
    (140.0, ended("a")),
    (160.0, first_step("b")),
    (190.0, ended("b")),
)
"""Under fifo: a loads 30 s and trains 100 s, b waits 120 s, loads 20 s and trains 30 s."""


def write_measured_pairs(folder: Path) -> Path:
    """The journal of a cluster on which a ran beside b and beside c, and c was never profiled."""

    def profile(mean: float) -> Profile:
        fp32 = IndicatorStats(mean=mean, variance=0.01, source="gpm")
        return Profile(duty_cycle=mean, indicators=Indicators(FP32A=fp32))

    def job(name: str) -> ev.JobArrived:
        launch = Launch(argv=("python", f"/x/{name}.py", "--lr", "0.1"))
        return arrived(name, expected_s=100.0, launch=launch)

    story: list[tuple[float, ev.AnyEvent]] = [
        (0.0, joined(3)),
        *((1.0, job(name)) for name in ("a", "b", "c")),
        (2.0, ev.ProfileLearned(job_id=JobId("a"), profile=profile(0.3))),
        (3.0, ev.ProfileLearned(job_id=JobId("b"), profile=profile(0.6))),
        (4.0, ev.PairObserved(first=JobId("a"), second=JobId("b"), first_xi=1.25, second_xi=1.5)),
        (5.0, ev.PairObserved(first=JobId("a"), second=JobId("c"), first_xi=1.2, second_xi=1.1)),
    ]
    return write_journal(folder, story)
