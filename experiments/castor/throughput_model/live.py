"""Real jobs on CPU slots: each profiled alone at several s, each inner s predicted from the others.

Rule: a CPU slot is a core, which time-slices; the numbers say that the law fits such jobs, not how GPUs do.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from cotenant.controller.cli.demo.cluster import PrivateCluster
from cotenant.controller.cli.demo.measuring import job_environment, measure_profiles
from cotenant.controller.cli.demo.plan import WORKLOADS
from cotenant.controller.domain import JobId, JobSpec, Launch, Reason
from cotenant.controller.performance import Gang, Profile, fit_step_model, measured_steps
from cotenant.profiler.throughput import fit, hold_out

PROFILE_S: Final = 20.0
"""T_prof of each, in which it visits s = 1, 2, 4, 8 and 16."""
JOBS: Final = (
    ("language_model", 32, 1),
    ("compute_bound", 64, 1),
    ("memory_heavy", 128, 1),
    ("language_model", 32, 2),
)
"""Script, samples per worker and step, workers."""


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """One s that the fit had not seen."""

    accumulation_steps: int
    measured_s: float
    law_s: float
    line_s: float
    """By the small model, the line through the first and the last of the other points."""


class LiveJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job's points and what the others make of each inner one."""

    script: str
    batch_size: int
    workers: int
    points_s: dict[int, float]
    steps: int
    left_out: tuple[Left, ...]
    claimed: float | None
    """The error that the model of all points says of itself; None: it was refused."""
    refused: str

    def error(self, line: bool = False) -> float:
        """Mean |predicted - measured| / measured over the inner s."""
        guesses = [(one.line_s if line else one.law_s, one.measured_s) for one in self.left_out]
        return sum(abs(guess / measured - 1.0) for guess, measured in guesses) / max(1, len(guesses))


def measure(profile_s: float = PROFILE_S) -> list[LiveJob]:
    """All jobs, one after the other; those for which there are not enough cores are left out."""
    cores = len(os.sched_getaffinity(0))
    with (
        tempfile.TemporaryDirectory(prefix="cotenant-live-") as name,
        PrivateCluster(Path(name), f"cpu:{cores}", profile_s=profile_s) as cluster,
    ):
        return [_job(cluster, *job) for job in JOBS if job[2] <= cores]


def _job(cluster: PrivateCluster, script: str, batch_size: int, workers: int) -> LiveJob:
    options = ("--steps", "1000000", "--batch-size", str(batch_size))
    argv = (sys.executable, str(WORKLOADS / f"{script}.py"), *options)
    launch = Launch(argv=argv, workdir=os.getcwd(), env=job_environment())
    spec = JobSpec(
        job_id=JobId("new-0"),
        name=script,
        gpus_min=workers,
        gpus_max=workers,
        batch_size=batch_size,
        launch=launch,
    )
    profile, gang = measure_profiles(cluster, [spec])[script], Gang(devices=workers)
    model = fit(measured_steps(profile, batch_size, gang))
    refused = isinstance(model, Reason)
    return LiveJob(
        script=script,
        batch_size=batch_size,
        workers=workers,
        points_s={point.accumulation_steps: point.step_s for point in profile.points},
        steps=profile.steps,
        left_out=_left_out(profile, batch_size, gang),
        claimed=None if isinstance(model, Reason) else model.error_ratio,
        refused=str(model) if refused else "",
    )


def _left_out(profile: Profile, batch_size: int, gang: Gang) -> tuple[Left, ...]:
    found = []
    seen = sorted(point.accumulation_steps for point in profile.points)
    for one in hold_out(measured_steps(profile, batch_size, gang)):
        s = one.step.accumulation_steps
        if s in (seen[0], seen[-1]):
            continue
        rest = msgspec.structs.replace(
            profile, points=tuple(point for point in profile.points if point.accumulation_steps != s)
        )
        line = fit_step_model(rest, batch_size)
        assert line is not None
        found.append(
            Left(
                accumulation_steps=s,
                measured_s=one.step.step_s,
                law_s=one.predicted_s,
                line_s=line.step_s(s),
            )
        )
    return tuple(found)
