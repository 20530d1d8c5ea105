"""The suite's training jobs: the demo's scripts, in sizes that keep a GPU busy.

Rule: a job runs through a controller and an agent, or, where the suite looks below them, as one plain process
that knows nothing of either.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from cotenant.controller.cli.demo.measuring import job_environment
from cotenant.controller.cli.demo.plan import WORKLOADS
from cotenant.controller.domain import JobId, JobSpec, Launch
from cotenant.controller.performance import Profile
from hwtests.device import Device
from hwtests.plain import PlainRank

MANY_STEPS: Final = 1_000_000


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One of the demo's scripts, and how large."""

    name: str
    script: str
    batch_size: int
    scale: int = 1
    precision: str = "bf16"

    def argv(self, steps: int = MANY_STEPS, *more: str) -> tuple[str, ...]:
        words = ("--steps", str(steps), "--batch-size", str(self.batch_size), "--scale", str(self.scale))
        script = str(WORKLOADS / f"{self.script}.py")
        return (sys.executable, script, *words, "--precision", self.precision, *more)

    def spec(self, profile: Profile | None = None, *more: str) -> JobSpec:
        """As it is submitted, without an end; `more` are further words of its command."""
        launch = Launch(argv=self.argv(MANY_STEPS, *more), workdir=os.getcwd(), env=job_environment())
        return JobSpec(
            share="max=none",  # What pairs do to each other is measured, not held.
            job_id=JobId("new-0"),
            name=self.name,
            batch_size=self.batch_size,
            profile=profile,
            resumable=True,
            launch=launch,
        )

    def plain(
        self, device: Device, folder: Path, *more: str, env: Mapping[str, str] | None = None
    ) -> PlainRank:
        """One process on the device, without a scheduler; `env` on top of everything else."""
        folder.mkdir(parents=True, exist_ok=True)
        argv = self.argv(MANY_STEPS, *more)
        # Port 0: a group of one is met by nobody.
        return PlainRank(
            argv, 0, [device.cores], folder, {**device.environment(), "MASTER_PORT": "0", **(env or {})}
        )


JOBS: Final = (
    Job(name="convolution", script="compute_bound", batch_size=256, scale=8),
    Job(name="language", script="language_model", batch_size=64, scale=4),
    Job(name="activations", script="memory_heavy", batch_size=512, scale=4),
    Job(name="launches", script="language_model", batch_size=8),
    Job(name="input", script="loader_bound", batch_size=32),
)
PAIRS: Final = (
    ("convolution", "language"),
    ("convolution", "input"),
    ("language", "activations"),
    ("language", "launches"),
    ("activations", "launches"),
    ("input", "launches"),
)


def jobs(device: Device) -> dict[str, Job]:
    """By name; small ones for a CPU."""
    if device.kind == "cuda":
        return {job.name: job for job in JOBS}
    return {job.name: msgspec.structs.replace(job, batch_size=8, scale=1, precision="fp32") for job in JOBS}
