"""The windows of a trace that an order is trained, chosen and judged on.

Rule: this module never reads the last tenth of a trace: the results come from it. The tenth before it chooses
among models and decides whether one is used; everything before that is for training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cotenant.controller.sim import (
    Outcome,
    Scenario,
    Task,
    TraceProblem,
    Workload,
    run_all,
    scenario,
    windows,
)
from cotenant.controller.training.rltune.options import Metric, TrainingOptions

TRAINED_TO: Final = 0.8
CHOSEN_TO: Final = 0.9


class Part(NamedTuple):
    """A workload whose first `warm` jobs do not count."""

    task: Task
    warm: int


class TraceParts:
    """One trace, with what sjf had running and waiting at any moment of it. An order is judged on windows of
    any; `to_train_on` asks for a longer one."""

    def __init__(self, trace: str, options: TrainingOptions) -> None:
        self.trace = trace
        asked = Scenario(
            trace=trace, noise=options.noise, limits=options.limits, hosts=options.hosts,
            gpus_per_host=options.gpus_per_host, pairs="none",
        )  # fmt: skip
        (whole,) = scenario.tasks(asked, [windows.REFERENCE], [options.seed])
        if options.load is not None:
            times = options.load / whole.workload.offered_load(whole.cluster.gpus)
            whole = replace(whole, workload=replace(whole.workload, submit_s=whole.workload.submit_s / times))
        self.whole = whole
        (run,) = run_all([windows.reference(whole)], workers=1, keep=True)
        assert run.outcome is not None
        self._reference: Outcome = run.outcome
        self._jobs = options.window_jobs

    @classmethod
    def to_train_on(cls, trace: str, options: TrainingOptions) -> TraceParts:
        """One that is long enough to draw windows of, and to choose a model by others.

        Raises:
            TraceProblem: the trace has too few jobs for both.
        """
        parts = cls(trace, options)
        jobs = len(parts.whole.workload)
        if (
            jobs * TRAINED_TO < 2 * options.window_jobs
            or jobs * (CHOSEN_TO - TRAINED_TO) < options.window_jobs
        ):
            raise TraceProblem(
                f"{trace}: {jobs:,} jobs are too few to train on windows of {options.window_jobs}",
                hint=f"it takes {10 * options.window_jobs:,}; name a longer trace",
            )
        return parts

    def drawn(self, generator: np.random.Generator) -> Part:
        """A window of the training part."""
        last = int(len(self.whole.workload) * TRAINED_TO) - self._jobs
        return self.at(int(generator.integers(last + 1)))

    def chosen(self, count: int) -> list[Part]:
        """Windows of the part that models are chosen by, evenly spaced; they may overlap."""
        jobs = len(self.whole.workload)
        first, last = int(jobs * TRAINED_TO), int(jobs * CHOSEN_TO) - self._jobs
        return [self.at(int(begin)) for begin in np.linspace(first, last, count)]

    def at(self, begin: int) -> Part:
        """The window that begins with this job, with the jobs that were there before it."""
        window = windows.TraceWindow(0, begin, begin, begin + self._jobs)
        workload = windows.cut(self.whole.workload, self._reference, window)
        warm = len(workload) - self._jobs
        return Part(replace(self.whole, workload=workload, warm=warm), warm)


def weights_of(workload: Workload, metric: Metric) -> NDArray[np.float64]:
    """What a second of waiting costs, of each job."""
    if metric == "bsld":
        return 1.0 / np.maximum(workload.duration_s, 10.0)
    return np.ones(len(workload))


def total(outcome: Outcome, metric: Metric, warm: int = 0) -> float:
    """The metric, summed over the jobs that count."""
    wait_s = outcome.jct_s if metric == "jct" else outcome.wait_s
    if metric == "bsld":
        slowdown = outcome.jct_s / np.maximum(outcome.workload.duration_s, 10.0)
        return float(np.maximum(slowdown, 1.0)[warm:].sum())
    return float(wait_s[warm:].sum())


def ratio(own: Sequence[float], base: Sequence[float]) -> float:
    """Of totals over windows."""
    return sum(own) / max(sum(base), 1e-9)
