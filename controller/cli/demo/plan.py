"""The demo's jobs, and how long each should train. Pure.

Rule: what a job is stands here; how fast it is, how much memory it needs and how many steps make up its
training time is measured on the machine the demo runs on (see `measuring.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import msgspec

from cotenant.controller.performance import Profile

WORKLOADS = Path(str(resources.files("cotenant.examples")))
"""`examples/demo` of the source tree."""
CHECKPOINT_SLACK_MIB = 32
"""Measured peaks vary a little from run to run."""


class DemoJob(msgspec.Struct, frozen=True):
    """A submission of the demo: a training script, its workers, and the training time aimed at."""

    name: str
    script: str
    batch_size: int
    """Twice an odd number: such a batch splits in two and no further, and measuring it ends with that."""
    train_s: float
    about: str
    workers: int = 1
    seed: int = 0
    options: tuple[str, ...] = ()
    """Further options of the script."""

    def argv(self, python: str, steps: int, result: Path | None) -> tuple[str, ...]:
        """The command of one worker."""
        command = (
            python,
            str(WORKLOADS / f"{self.script}.py"),
            *("--steps", str(steps)),
            *("--batch-size", str(self.batch_size)),
            *("--seed", str(self.seed)),
            *self.options,
        )
        return command if result is None else (*command, "--result", str(result))

    @property
    def measure_key(self) -> tuple[str, int, int]:
        """Jobs that differ only in length and seed behave alike: one measurement serves them."""
        return (self.script, self.workers, self.batch_size)


class MeasuredJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job with what was measured of it."""

    job: DemoJob
    profile: Profile

    @property
    def step_s(self) -> float:
        point = self.profile.point_at(1)
        assert point is not None, f"{self.job.name} was not measured at its whole batch"
        return point.step_s

    @property
    def steps(self) -> int:
        """Optimizer steps that take about `train_s` alone."""
        return max(6, math.ceil(self.job.train_s / self.step_s))

    def memory_mib(self, accumulation_steps: int) -> float:
        """That of the whole batch where the split was not measured."""
        point = self.profile.point_at(accumulation_steps) or self.profile.point_at(1)
        assert point is not None, f"{self.job.name} was not measured at its whole batch"
        return point.memory_mib


SONNETS = DemoJob("sonnets", "language_model", 30, 20.0, "a language model on Shakespeare's sonnets")
DIGITS = DemoJob(
    "digits", "compute_bound", 62, 20.0, "compute-bound: a convolutional network on handwritten digits"
)
LOADER = DemoJob(
    "slow-loader", "loader_bound", 30, 6.0, "bound by its data loader, which waits for slow storage"
)
MEMORY = DemoJob(
    "big-batch",
    "memory_heavy",
    254,
    4.0,
    "memory-heavy: large activations, and samples from slow storage",
    options=("--slow-disk",),
)
LONG_GANG = DemoJob(
    "long-gang", "language_model", 30, 7.0, "the same language model on two devices", workers=2, seed=1
)
URGENT = DemoJob("urgent", "compute_bound", 62, 3.0, "a short job that cannot wait", seed=2)
BRIEF = DemoJob("brief", "loader_bound", 30, 2.5, "another short one, for the device next to it", seed=3)
"""The first four are act 1, where jobs share; the others act 2, where one is preempted."""

WARM_UP = msgspec.structs.replace(LONG_GANG, name="warm-up", about="before the acts")
WARM_UP_STEPS = 8
"""What it imports is kept ready for the jobs that follow: they start warm."""

JOBS = (SONNETS, DIGITS, LOADER, MEMORY, LONG_GANG, URGENT, BRIEF)


class DeclaredMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The slot memory to declare, which stands in for the fixed memory of a GPU."""

    memory_mib: int
    lacks: str | None = None
    """Why no batch has to be split in it; None: the memory-heavy job fits beside others with half its batch
    only."""


def declare_memory(measured: Mapping[str, MeasuredJob]) -> DeclaredMemory:
    """Room for the memory-heavy job's half batch beside either long job and not for its whole batch, and for
    the loader-bound one whole: chosen between the two measured sums. Where this machine has nothing in
    between, room for all of them whole."""
    partners = [measured[name].memory_mib(1) for name in (SONNETS.name, DIGITS.name)]
    heavy, light = measured[MEMORY.name], measured[LOADER.name].memory_mib(1)
    whole_mib, half_mib = heavy.memory_mib(1), heavy.memory_mib(2)
    least_mib = max(max(partners) + max(half_mib, light), whole_mib)
    most_mib = min(partners) + whole_mib
    if most_mib - least_mib >= 2 * CHECKPOINT_SLACK_MIB:
        return DeclaredMemory(memory_mib=round((least_mib + most_mib) / 2))
    return DeclaredMemory(
        memory_mib=math.ceil(max(partners) + max(whole_mib, light)) + 2 * CHECKPOINT_SLACK_MIB,
        lacks=(
            f"no batch is split: {MEMORY.name} needs {whole_mib:.0f} MiB with its whole batch and "
            f"{half_mib:.0f} MiB with half of it, too little less to tell them apart on this machine"
        ),
    )
