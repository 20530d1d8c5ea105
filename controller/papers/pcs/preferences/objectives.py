"""What an operator can ask for: a metric and how it is measured over the jobs (PCS, section 3.2); and what a
configuration is worth by it on a window of jobs: one run of the fluid world.

Rule: all are better when smaller. An objective is written `METRIC:MEASURE`, as `jct:mean` or `error:p99`; the
same metric may be asked for twice with two measures.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cotenant.controller.papers.pcs import WfqConfig
from cotenant.controller.papers.pcs.fluid import simulate_fluid
from cotenant.controller.sim import Cluster, RunResult, Workload

METRICS: Final[dict[str, str]] = {
    "jct": "completion time in seconds",
    "error": "|JCT - told| / told",
    "unfairness": "how much later than with its equal share, as a part of that",
}


class Objective(NamedTuple):
    """An objective among several that are traded against each other."""

    metric: str
    measure: str = "mean"

    @classmethod
    def parse(cls, text: str) -> Objective:
        """Reads an objective from `text`. Raises ValueError."""
        metric, _, measure = text.partition(":")
        found = cls(metric, measure or "mean")
        if metric not in METRICS:
            raise ValueError(f"there is no metric {metric!r}: there are {', '.join(METRICS)}")
        if found.measure != "mean" and not (
            re.fullmatch(r"p\d{1,2}(\.\d+)?", found.measure) and float(found.measure[1:]) < 100.0
        ):
            raise ValueError(f"{text!r} is measured by mean or a percentile such as p99, got {measure!r}")
        return found

    def __str__(self) -> str:
        return f"{self.metric}:{self.measure}"

    def value_of(self, outcome: RunResult) -> float:
        values = _values(outcome, self.metric)
        if not len(values):
            return float("inf")
        if self.measure == "mean":
            return float(values.mean())
        return float(np.percentile(values, float(self.measure[1:])))


def _values(outcome: RunResult, metric: str) -> NDArray[np.float64]:
    done = outcome.finished
    if metric == "jct":
        return outcome.jct_s[done]
    if metric == "unfairness":
        assert outcome.fair_s is not None, "only the fluid world knows fair times"
        return np.maximum(outcome.jct_s[done] / outcome.fair_s[done] - 1.0, 0.0)
    assert outcome.predicted_s is not None, "nobody was asked"
    asked = done & np.isfinite(outcome.predicted_s)
    return np.abs(outcome.jct_s[asked] / outcome.predicted_s[asked] - 1.0)


@dataclass(frozen=True, slots=True)
class JobWindow:
    """Consecutive jobs of a workload that `as_fluid` made, on a cluster that is empty before them."""

    workload: Workload
    cluster: Cluster
    asked_ratio: float = 0.25
    """How many jobs ask for their end; each question costs a run of its own."""

    @classmethod
    def part(
        cls, workload: Workload, cluster: Cluster, first: int, last: int, asked_ratio: float = 0.25
    ) -> JobWindow:
        rows = slice(first, last)
        submit_s = workload.submit_s[rows]
        cut = {
            name: getattr(workload, name)[rows]
            for name in (
                "duration_s",
                "expected_s",
                "gpus",
                "load_s",
                "pause_s",
                "model",
                "hp",
                "organisation",
            )
        }
        ids = workload.job_ids[rows]
        return cls(
            replace(workload, submit_s=submit_s - submit_s[0], job_ids=ids, **cut), cluster, asked_ratio
        )

    def run(self, policy: str, config: WfqConfig | None = None) -> RunResult:
        parameters = None if config is None else config.as_parameters()
        asked = int(np.ceil(self.asked_ratio * len(self.workload)))
        return simulate_fluid(self.workload, self.cluster, policy, parameters, asked=asked)


def evaluate_config(
    window: JobWindow, config: WfqConfig, objectives: Sequence[Objective]
) -> tuple[float, ...]:
    """The objectives of one configuration; a function of a module, for it goes to other processes."""
    outcome = window.run("pcs", config)
    return tuple(objective.value_of(outcome) for objective in objectives)
