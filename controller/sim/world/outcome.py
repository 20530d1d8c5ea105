"""The outcome of a simulated run: one row per job, a few numbers per run; and its columns while the run fills
them.

Rule: only what was observed; `sim/results/summary.py` makes means, percentiles and JSON from it. During the
run it is plain arrays of numbers, written once per job: objects would cost a gigabyte at 700,000 jobs.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cotenant.controller.domain import Job
from cotenant.controller.policies.base import Parameters
from cotenant.controller.sim.world.workload import Cluster, Seconds, Workload

IntColumn = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """Columns have shape (n,), in the workload's order; seconds are NaN for jobs that have not finished."""

    workload: Workload
    cluster: Cluster
    policy: str
    parameters: Parameters
    seed: int

    jct_s: Seconds
    wait_s: Seconds
    load_s: Seconds
    run_s: Seconds
    """Time on devices past loading, at whatever pace; work done again is in it."""
    pause_s: Seconds
    rework_s: Seconds
    """Part of `run_s` whose work was lost with a host and done again."""
    futile_s: Seconds
    """Part of `load_s` that ended in a preemption before the first step."""
    sharing_benefit: Seconds
    """A ratio, not seconds: the JCT had the job waited when it first became a co-tenant / its JCT; NaN for
    jobs that never had a co-tenant (see `world/devices.py`)."""
    preemptions: IntColumn
    futile_preemptions: IntColumn
    aborted_preemptions: IntColumn
    """How often it was chosen, and replaced while its victims still saved: their pause was for nothing."""
    early_preemptions: IntColumn
    """Those within the time that a run was promised, or the first hour where nothing was."""
    resizes: IntColumn
    shared: NDArray[np.bool_]
    finished: NDArray[np.bool_]

    makespan_s: float
    """First arrival to last end (or to where the run was interrupted)."""
    busy_gpu_s: float
    """Sum over devices of the time with at least one tenant."""
    arriving_s: float
    """First arrival to last."""
    arriving_gpu_s: float
    """The part of `busy_gpu_s` in that time."""
    events: int
    decision_ns: NDArray[np.int64]
    """What an event cost the engine, policy included, in processor time: of the first events all, then a
    fixed share."""
    wall_s: float
    cpu_s: float
    interrupted: bool = False
    thinking_s: float = 0.0
    """Processor time spent on slow computations (fits), not in `decision_ns`."""
    promises: dict[str, Any] | None = None
    """How many promises were asked for, given, kept and broken; None: nobody asked."""


NAN = float("nan")


def cells(column: NDArray[Any]) -> Sequence[Any]:
    """A column to be read cell by cell, as plain numbers: several times as fast as through numpy."""
    return cast(Sequence[Any], memoryview(cast(Any, column)))


class Columns:
    """Seconds are NaN until the job has finished; counts are 0 until it is counted."""

    def __init__(self, jobs: int) -> None:
        def seconds() -> array[float]:
            return array("d", [NAN]) * jobs

        def counts() -> array[int]:
            return array("i", [0]) * jobs

        self.jct_s, self.wait_s, self.load_s = seconds(), seconds(), seconds()
        self.run_s, self.pause_s, self.rework_s, self.futile_s = seconds(), seconds(), seconds(), seconds()
        self.sharing_benefit = seconds()
        """A ratio, not seconds; NaN for those that never had a co-tenant."""
        self.preemptions, self.futile, self.aborted, self.early = counts(), counts(), counts(), counts()
        self.resizes = counts()
        self.shared, self.finished = bytearray(jobs), bytearray(jobs)

    def put(self, row: int, jct_s: float, job: Job, rework_s: float) -> None:
        """A finished job, from the engine's record of it."""
        self.jct_s[row] = jct_s
        self.wait_s[row] = job.spent.wait_s
        self.load_s[row] = job.spent.load_s
        self.run_s[row] = job.spent.run_s
        self.pause_s[row] = job.spent.pause_s
        self.rework_s[row] = rework_s
        self.futile_s[row] = job.spent.futile_s
        self.finished[row] = 1
        if job.counts.preemptions or job.counts.aborted_preemptions or job.co_tenants or job.counts.resizes:
            self.count(row, job)

    def count(self, row: int, job: Job) -> None:
        """Takes in the counts that unfinished jobs have as well."""
        self.preemptions[row] = job.counts.preemptions
        self.futile[row] = job.counts.futile_preemptions
        self.aborted[row] = job.counts.aborted_preemptions
        self.early[row] = job.counts.early_preemptions
        self.resizes[row] = job.counts.resizes
        self.shared[row] = bool(job.co_tenants)

    def arrays(self) -> dict[str, Any]:
        """The columns as `RunResult` names them."""
        seconds = (
            "jct_s",
            "wait_s",
            "load_s",
            "run_s",
            "pause_s",
            "rework_s",
            "futile_s",
            "sharing_benefit",
        )
        counts = {
            "preemptions": self.preemptions,
            "futile_preemptions": self.futile,
            "aborted_preemptions": self.aborted,
            "early_preemptions": self.early,
            "resizes": self.resizes,
        }
        return {
            **{name: np.frombuffer(getattr(self, name), dtype=np.float64) for name in seconds},
            **{name: np.frombuffer(column, dtype=np.int32) for name, column in counts.items()},
            "shared": np.frombuffer(self.shared, dtype=np.bool_),
            "finished": np.frombuffer(self.finished, dtype=np.bool_),
        }
