"""The columns of an outcome while a run fills them, one row per job.

Rule: plain arrays of numbers, written once per job. Objects would cost a gigabyte at 700,000 jobs.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cotenant.controller.domain.job import Job

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
        """A ratio, not seconds; NaN for those that were nobody's co-tenant."""
        self.preemptions, self.futile, self.aborted = counts(), counts(), counts()
        self.shared, self.finished = bytearray(jobs), bytearray(jobs)

    def put(self, row: int, jct_s: float, job: Job, rework_s: float) -> None:
        """A finished job, from the engine's record of it."""
        self.jct_s[row] = jct_s
        self.wait_s[row] = job.wait_s
        self.load_s[row] = job.load_s
        self.run_s[row] = job.run_s
        self.pause_s[row] = job.pause_s
        self.rework_s[row] = rework_s
        self.futile_s[row] = job.futile_s
        self.finished[row] = 1
        if job.preemptions or job.aborted_preemptions or job.co_tenants:
            self.count(row, job)

    def count(self, row: int, job: Job) -> None:
        """What is counted of unfinished jobs as well."""
        self.preemptions[row] = job.preemptions
        self.futile[row] = job.futile_preemptions
        self.aborted[row] = job.aborted_preemptions
        self.shared[row] = bool(job.co_tenants)

    def arrays(self) -> dict[str, Any]:
        """The columns as `Outcome` names them."""
        seconds = (
            "jct_s", "wait_s", "load_s", "run_s", "pause_s", "rework_s", "futile_s", "sharing_benefit",
        )  # fmt: skip
        counts = {
            "preemptions": self.preemptions,
            "futile_preemptions": self.futile,
            "aborted_preemptions": self.aborted,
        }
        return {
            **{name: np.frombuffer(getattr(self, name), dtype=np.float64) for name in seconds},
            **{name: np.frombuffer(column, dtype=np.int32) for name, column in counts.items()},
            "shared": np.frombuffer(self.shared, dtype=np.bool_),
            "finished": np.frombuffer(self.finished, dtype=np.bool_),
        }
