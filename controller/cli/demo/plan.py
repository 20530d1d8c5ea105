"""The demo's jobs, and how long each should train. Pure.

Rule: what a job is stands here; how fast it is, how much memory it needs and how many steps make up its
training time is measured on the machine the demo runs on (see `measuring.py`).
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from cotenant.controller.performance import Profile

WORKLOADS = Path(__file__).parent / "workloads"
CHECKPOINT_SLACK_MIB = 32
"""Measured peaks vary a little from run to run."""


class DemoJob(msgspec.Struct, frozen=True, kw_only=True):
    """A submission of the demo: a training script, its workers, and the training time aimed at."""

    name: str
    script: str
    workers: int
    batch_size: int
    """Twice an odd number: such a batch splits in two and no further, and measuring it ends with that."""
    train_s: float
    about: str
    act: int
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
        return max(8, math.ceil(self.job.train_s / self.step_s))

    def memory_mib(self, accumulation_steps: int) -> float:
        point = self.profile.point_at(accumulation_steps)
        assert point is not None, f"{self.job.name} was not measured with s = {accumulation_steps}"
        return point.memory_mib


SONNETS = DemoJob(
    name="sonnets",
    script="language_model",
    workers=1,
    batch_size=30,
    train_s=21.0,
    about="a language model on Shakespeare's sonnets",
    act=1,
)
DIGITS = DemoJob(
    name="digits",
    script="compute_bound",
    workers=1,
    batch_size=62,
    train_s=21.0,
    about="compute-bound: a convolutional network on handwritten digits",
    act=1,
)
LOADER = DemoJob(
    name="slow-loader",
    script="loader_bound",
    workers=1,
    batch_size=30,
    train_s=6.0,
    about="bound by its data loader, which waits for slow storage",
    act=1,
)
MEMORY = DemoJob(
    name="big-batch",
    script="memory_heavy",
    workers=1,
    batch_size=254,
    train_s=4.0,
    about="memory-heavy: large activations, and samples from slow storage",
    act=1,
    options=("--slow-disk",),
)
LONG_GANG = DemoJob(
    name="long-gang",
    script="language_model",
    workers=2,
    batch_size=30,
    train_s=8.0,
    about="the same language model on two devices",
    act=2,
    seed=1,
)
URGENT = DemoJob(
    name="urgent",
    script="compute_bound",
    workers=1,
    batch_size=62,
    train_s=3.0,
    about="a short job that cannot wait",
    act=2,
    seed=2,
)
BRIEF = DemoJob(
    name="brief",
    script="loader_bound",
    workers=1,
    batch_size=30,
    train_s=2.5,
    about="another short one, for the device next to it",
    act=2,
    seed=3,
)

WARM_UP = msgspec.structs.replace(LONG_GANG, name="warm-up", about="before the acts", act=0)
WARM_UP_STEPS = 8
"""What it imports is kept ready for the jobs that follow: they start warm."""

JOBS = (SONNETS, DIGITS, LOADER, MEMORY, LONG_GANG, URGENT, BRIEF)


class MemoryTooClose(Exception):
    """No declared memory makes the point on this machine; the text has the numbers."""


def declared_memory_mib(measured: dict[str, MeasuredJob]) -> int:
    """The slot memory to declare: room for the memory-heavy job's half batch beside either long job,
    not for its whole batch; and for the loader-bound one whole.

    It stands in for the fixed memory of a GPU, which a CPU slot has not: it is chosen between the two
    measured sums, and shown.

    Raises:
        MemoryTooClose: half a batch does not save enough memory to tell the two apart.
    """
    partners = [measured[SONNETS.name].memory_mib(1), measured[DIGITS.name].memory_mib(1)]
    heavy, light = measured[MEMORY.name], measured[LOADER.name]
    least = max(max(partners) + heavy.memory_mib(2), max(partners) + light.memory_mib(1), heavy.memory_mib(1))
    most = min(partners) + heavy.memory_mib(1)
    if most - least < 2 * CHECKPOINT_SLACK_MIB:
        raise MemoryTooClose(
            f"{MEMORY.name} needs {heavy.memory_mib(1):.0f} MiB with its whole batch and "
            f"{heavy.memory_mib(2):.0f} MiB with half of it, beside {max(partners):.0f} MiB: "
            "too close to show accumulation on this machine"
        )
    return round((least + most) / 2)
