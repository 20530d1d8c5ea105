"""Clusters, jobs and engines for tests, in as few words as the test needs."""

from __future__ import annotations

from typing import Any

import msgspec

from cotenant.controller.domain import (
    AnyCommand,
    AttemptNo,
    Capabilities,
    ExitVerdict,
    HostId,
    HostReport,
    JobId,
    JobSpec,
    Launch,
    PolicySettings,
    StartAttempt,
    StopAttempt,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine, EngineConfig, MakePolicy, Snapshot
from cotenant.controller.performance import Profile, ProfilePoint
from cotenant.controller.policies import registry
from tests.building.hosts import report
from tests.building.results import take_verdict

__all__ = ["Desk", "engine", "profile", "report", "spec"]


def spec(job_id: str | int, **more: Any) -> JobSpec:
    """One GPU, and what the test says; `gpus` sets both ends of the range."""
    gpus = more.pop("gpus", None)
    if gpus is not None:
        more |= {"gpus_min": gpus, "gpus_max": gpus}
    uid = more.pop("uid", 1000)
    argv = more.pop("argv", ("python", f"train-{job_id}.py"))
    zero_code, mode = more.pop("zero_code", ()), more.pop("mode", "worker")
    more.setdefault("user", "ann")
    launch = Launch(argv=argv, uid=uid, zero_code=zero_code, mode=mode)
    return JobSpec(job_id=JobId(str(job_id)), launch=launch, **more)


def profile(
    batch: int, *points: tuple[int, float, float], duty: float | None = None, source: str = "test"
) -> Profile:
    """Points are (accumulation steps, seconds per step, MiB)."""
    return Profile(
        points=tuple(
            ProfilePoint(sub_batch=-(-batch // s), accumulation_steps=s, step_s=step_s, memory_mib=mib)
            for s, step_s, mib in points
        ),
        duty_cycle=duty,
        source=source,
    )


def engine(
    policy: str = "fifo",
    *,
    make: MakePolicy = registry.make,
    validate: bool = True,
    **settings: Any,
) -> Engine:
    """`settings`: fields of the engine's configuration, and of the policy's."""
    mine = {name: settings.pop(name) for name in EngineConfig.__struct_fields__ if name in settings}
    made = EngineConfig(policy=PolicySettings(**{"name": policy, "late_share": 0.0, **settings}), **mine)
    return Engine(make, made, validate=validate)


class Desk:
    """An engine, a clock, and short words for what happens to it."""

    def __init__(self, policy: str = "fifo", *hosts: HostReport, **settings: Any) -> None:
        self._make = settings.get("make", registry.make)
        self.engine = engine(policy, **settings)
        self.now_s = 0.0
        self.commands: list[AnyCommand] = []
        """Of the last event."""
        for each in hosts or (report(),):
            self.tell(ev.HostJoined(report=each))

    def restart(self) -> bytes:
        """A new engine goes on from what the old one would have kept, which is returned."""
        kept = msgspec.msgpack.encode(self.engine.snapshot())
        self.engine = Engine(self._make, self.engine.config, validate=True)
        self.engine.restore(msgspec.msgpack.decode(kept, type=Snapshot))
        return kept

    def tell(self, event: ev.AnyEvent, after_s: float = 0.0) -> list[AnyCommand]:
        self.now_s += after_s
        self.commands = self.engine.handle(event, self.now_s)
        return self.commands

    def wait(self, seconds: float) -> list[AnyCommand]:
        """Let time pass, with every alarm on its way."""
        until_s = self.now_s + seconds
        commands: list[AnyCommand] = []
        while (alarm_s := self.engine.next_alarm_s) is not None and alarm_s <= until_s:
            self.now_s = max(self.now_s, alarm_s)
            commands += self.tell(ev.AlarmRang())
        self.now_s = until_s
        self.commands = commands
        return commands

    def submit(self, job_id: str | int, **more: Any) -> JobId:
        self.tell(ev.JobArrived(spec=spec(job_id, **more)))
        return JobId(str(job_id))

    def job(self, job_id: str | int) -> Any:
        return self.engine.jobs[JobId(str(job_id))]

    def phase(self, job_id: str | int) -> str:
        return str(self.job(job_id).phase)

    def devices(self, job_id: str | int) -> tuple[str, ...]:
        placement = self.job(job_id).placement
        return placement.devices if placement else ()

    def hosts(self, job_id: str | int) -> tuple[HostId, ...]:
        return tuple(self.job(job_id).attempt.hosts_left)

    def why(self, job_id: str | int) -> str:
        """The first line of `explain`."""
        return str(self.engine.explain(JobId(str(job_id)), self.now_s)[0])

    def begin(self, job_id: str | int) -> None:
        """Its processes start, and say nothing for a while."""
        job = self.job(job_id)
        for host_id in self.hosts(job_id):
            of: dict[str, Any] = {"job_id": job.job_id, "attempt": job.attempt.number, "host_id": host_id}
            self.tell(ev.AttemptStarted(**of))
            self.wait(10.0)
            self.tell(ev.FirstStepDone(**of, step=0, assumed=True))

    def start(self, job_id: str | int, *, resumable: bool = True, accumulates: bool = True) -> None:
        """Its processes start, say hello and finish their first step."""
        job = self.job(job_id)
        for host_id in self.hosts(job_id):
            of: dict[str, Any] = {"job_id": job.job_id, "attempt": job.attempt.number, "host_id": host_id}
            self.tell(ev.AttemptStarted(**of))
            self.tell(
                ev.CapabilitiesSeen(
                    **of,
                    resumable=resumable,
                    capabilities=Capabilities(accumulates=accumulates),
                    step=job.durable_step,
                )
            )
        for host_id in self.hosts(job_id):
            self.tell(
                ev.FirstStepDone(
                    job_id=job.job_id, attempt=job.attempt.number, host_id=host_id, step=job.durable_step + 1
                )
            )

    def run(self, job_id: str | int, **more: Any) -> JobId:
        """Submit a job that is placed at once, and start it."""
        job = self.submit(job_id, **more)
        assert self.phase(job) == "loading", f"job {job} is {self.phase(job)}: {self.why(job)}"
        self.start(job)
        return job

    def progress(self, job_id: str | int, step: int, step_s: float | None = None) -> None:
        job = self.job(job_id)
        self.tell(ev.ProgressSeen(job_id=job.job_id, attempt=job.attempt.number, step=step, step_s=step_s))

    def durable(self, job_id: str | int, step: int, host: str | None = None) -> None:
        job = self.job(job_id)
        host_id = HostId(host) if host else self.hosts(job_id)[0]
        self.tell(
            ev.CheckpointDurable(job_id=job.job_id, attempt=job.attempt.number, host_id=host_id, step=step)
        )

    def end(self, job_id: str | int, outcome: str = "finished", host: str | None = None, **more: Any) -> None:
        """Its processes are gone, on one host or on all it is still on."""
        job = self.job(job_id)
        attempt, verdict = AttemptNo(job.attempt.number), take_verdict({"outcome": outcome} | more)
        more = {name: value for name, value in more.items() if name not in ExitVerdict.__struct_fields__}
        for host_id in (HostId(host),) if host else self.hosts(job_id):
            self.tell(
                ev.AttemptEnded(
                    job_id=job.job_id,
                    attempt=attempt,
                    host_id=host_id,
                    verdict=verdict,
                    **more,
                )
            )

    def starts(self) -> list[str]:
        """Jobs that the last event started, once per host."""
        return [c.job_id for c in self.commands if isinstance(c, StartAttempt)]

    def stops(self) -> list[str]:
        return [c.job_id for c in self.commands if isinstance(c, StopAttempt)]
