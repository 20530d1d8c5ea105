"""A real job alone, then with a guest beside it, in one run: when its steps ended, by its own clock.

Rule: nothing that is judged comes from the agent. A guest's loading, and the time in which its pace is found,
are left out: neither is what a bound on sharing promises.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from cotenant.controller.cli.demo.measuring import job_environment
from cotenant.controller.client.connection import Client
from cotenant.controller.domain import JobId, JobSpec, Launch
from cotenant.controller.wire import clients as wire
from experiments.shared.live.run import WentWrong

TRAINING: Final = Path(__file__).with_name("training.py")
SETTINGS: Final = {"COTENANT_SHARING__GUEST_MIN": "0.05"}
"""Of a controller's environment. Nothing is known of these jobs: let every pair be tried."""
STEPS_WITHIN_S: Final = 120.0
ALONE_AFTER: Final = 3
"""Steps of the job before those alone count."""
LOOK_S: Final = 0.1


class Lengths(NamedTuple):
    """How long each stretch of a run is."""

    alone_s: float
    settle_s: float
    together_s: float


class Step(NamedTuple):
    ended_s: float
    busy_s: float
    """Processor time of the job by then."""


class Stretch(NamedTuple):
    began_s: float
    ended_s: float

    @property
    def length_s(self) -> float:
        return self.ended_s - self.began_s

    def steps(self, steps: Sequence[Step]) -> list[Step]:
        """Those that ended in it."""
        return [step for step in steps if self.began_s <= step.ended_s <= self.ended_s]

    def step_times(self, steps: Sequence[Step]) -> list[float]:
        """The times of the steps that began and ended in it, shortest first."""
        inside = self.steps(steps)
        return sorted(after.ended_s - before.ended_s for before, after in pairwise(inside))


class Beside(NamedTuple):
    """What one run showed. Times are those of the monotonic clock."""

    mine: list[Step]
    """Of the job that was there first."""
    guest: list[Step]
    alone: Stretch
    together: Stretch
    bound: wire.ShareBoundView | None
    """How the job's bound stood at the end, as the controller tells it."""

    @property
    def guest_steps_per_s(self) -> float:
        return len(self.together.steps(self.guest)) / self.together.length_s


def run_beside(
    client: Client, kinds: tuple[str, str], folder: Path, bound: float, memory_mib: int, lengths: Lengths
) -> Beside:
    """A job of the first kind alone and then beside one of the second, on a cluster of the caller's with a
    device for one of them; both are ended.

    Args:
        bound: of the first job; 0: none.
        memory_mib: what each is said to need.

    Raises:
        WentWrong: one of them made no steps.
    """
    client.ask(wire.SetPolicy(name="sjf-ffs", parameters={"part": False}))
    logs = [folder / f"steps-{number}" for number in (1, 2)]
    shares = (f"max={bound:g}" if bound else "max=none", "max=none")
    specs = [_spec(*each, memory_mib) for each in zip(kinds, logs, shares, strict=True)]
    first = client.ask(wire.Submit(specs=(specs[0],))).job_ids[0]
    alone = Stretch(await_steps(client, first, logs[0], ALONE_AFTER), wait_for(lengths.alone_s))
    second = client.ask(wire.Submit(specs=(specs[1],))).job_ids[0]
    await_steps(client, second, logs[1], 1)
    together = Stretch(wait_for(lengths.settle_s), wait_for(lengths.together_s))
    stands = client.ask(wire.ShowJob(job_id=first)).job.bound
    mine, guest = (read_steps(log) for log in logs)
    client.ask(wire.ChangeJobs(verb="cancel", job_ids=(second, first)))
    client.ask(wire.WaitJobs(job_ids=(first, second), timeout_s=STEPS_WITHIN_S))
    return Beside(mine, guest, alone, together, stands)


def read_steps(log: Path) -> list[Step]:
    """Reads the steps of a log; a line that is being written is left out."""
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return [Step(*map(float, line.split())) for line in lines if line.endswith("\n")]


def quantile(ordered: Sequence[float], part: float) -> float:
    return ordered[int(part * len(ordered))]


def _spec(kind: str, log: Path, share: str, memory_mib: int) -> JobSpec:
    gpus = len(os.sched_getaffinity(0)) if kind == "gang" else 1
    launch = Launch(
        argv=(sys.executable, str(TRAINING), kind, log.name[-1], str(log)),
        workdir=str(log.parent),
        env=job_environment(),
        zero_code=("progress",),
        warm=False,
        uid=os.getuid(),
        gid=os.getgid(),
    )
    return JobSpec(
        job_id=JobId("new-0"),
        name=f"{kind}-{log.name[-1]}",
        gpus_min=gpus,
        gpus_max=gpus,
        memory_mib=memory_mib,
        batch_size=64,
        iterations=1_000_000,
        expected_s=3600.0,
        share=share,
        launch=launch,
    )


def await_steps(client: Client, job_id: JobId, log: Path, count: int) -> float:
    """Returns when the job has done so many steps, on the clock of its log."""
    deadline_s = time.monotonic() + STEPS_WITHIN_S
    while len(read_steps(log)) < count:
        if time.monotonic() > deadline_s:
            job = client.ask(wire.ShowJob(job_id=job_id)).job
            raise WentWrong(
                f"{job.name}: no {count} steps in {STEPS_WITHIN_S:.0f} s: {job.phase}, {job.reason}"
            )
        time.sleep(LOOK_S)
    return time.monotonic()


def wait_for(length_s: float) -> float:
    """Lets a stretch pass and returns when it ended."""
    time.sleep(length_s)
    return time.monotonic()
