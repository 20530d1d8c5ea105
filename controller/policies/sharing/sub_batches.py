"""Ways to split a batch (Castor's Algorithm 2, line 2), with what each needs and costs.

Rule: only those count of which memory and step time are known, measured or modelled; a job whose whole batch
is not known is not split.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cotenant.controller import planning
from cotenant.controller.domain import Job
from cotenant.controller.performance import modelled_from, step_s

Floats = NDArray[np.float64]

Batches = dict[tuple[object, ...], "tuple[SubBatch, ...]"]
"""What `known_batches` has found within one decision."""


def accumulation_choices(job: Job) -> Iterator[int]:
    """s = 1, 2, 4, ... down to a sub-batch of 1; only 1 for a job that cannot accumulate."""
    yield 1
    if job.batch_size is None or not job.can_accumulate:
        return
    s = 2
    while s < job.batch_size:
        yield s
        s *= 2
    if job.batch_size > 1:
        yield job.batch_size


def slowdown(job: Job, accumulation_steps: int) -> float | None:
    """Step time at s / step time at the whole batch; None beyond the greatest s of which it is known."""
    if accumulation_steps == 1:
        return 1.0
    if (
        job.measured.profile is None
        or job.batch_size is None
        or accumulation_steps > job.measured.profile.s_max
    ):
        return None
    whole = step_s(job.measured.profile, job.batch_size, 1, job.gang)
    part = step_s(job.measured.profile, job.batch_size, accumulation_steps, job.gang)
    return max(1.0, part / whole) if whole and part else None


class SubBatch(NamedTuple):
    """A way to split a job's batch over accumulation steps."""

    accumulation_steps: int
    size: int
    """0 if the batch is not known, and so not split."""
    needed_mib: int
    slowdown: float
    source: str = ""
    """Of the two, where they were not measured."""

    @property
    def told(self) -> int | str:
        """Its size, as a reason says it."""
        return f"{self.size} as {self.source}" if self.source else self.size or "all"


def sub_batches(job: Job) -> tuple[SubBatch, ...]:
    """The candidates of Algorithm 2 of which memory and time are known, the whole batch first."""
    batch = job.batch_size
    found = []
    for s in accumulation_choices(job):
        needed, slower = planning.peak_mib(job, s), slowdown(job, s)
        if needed is not None and slower is not None:
            source = modelled_from(job.measured.profile, s)
            found.append(SubBatch(s, -(-batch // s) if batch else 0, needed, slower, source))
    return tuple(found)


def known_batches(job: Job, known: Batches) -> tuple[SubBatch, ...]:
    """The ways to split a waiting job's batch; none unless the memory of the whole batch is known. Worked out
    once for all jobs that cannot differ in it."""
    spec = job.spec
    split = None if job.batch_size is None else (job.batch_size, job.can_accumulate, job.gang)
    key = (id(job.measured.profile), spec.memory_mib, split)
    if key not in known:
        choices = sub_batches(job)
        known[key] = choices if choices and choices[0].accumulation_steps == 1 else ()
    return known[key]


def least_slowdown(choices: tuple[SubBatch, ...], left_mib: Floats) -> Floats:
    """The least slowdown among the sub-batches that fit, by memory left; NaN where none does."""
    by_need = sorted(choices, key=lambda choice: choice.needed_mib)
    needs = np.array([choice.needed_mib for choice in by_need], dtype=np.float64)
    best = np.minimum.accumulate([choice.slowdown for choice in by_need])
    return np.concatenate(([np.nan], best))[np.searchsorted(needs, left_mib, side="right")]
