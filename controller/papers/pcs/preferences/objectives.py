"""What an operator can ask for: a metric and how it is measured over the jobs (PCS, section 3.2); and what a
configuration is worth by it on a window of jobs: one run of the simulator.

Rule: all are better when smaller. An objective is written `METRIC:MEASURE`, as `jct:mean` or `error:p99`; the
same metric may be asked for twice with two measures.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from cotenant.controller.papers.pcs import WfqConfig
from cotenant.controller.policies import registry
from cotenant.controller.sim import Cluster, Physics, Workload, simulate
from cotenant.controller.sim.eta import AskedEnds
from cotenant.controller.sim.results.summary import fairness

METRICS: Final[dict[str, str]] = {
    "jct": "completion time in seconds",
    "error": "|JCT - told| / told",
    "unfairness": "how much later than with its equal share, as a part of that",
}

MeasuredRun = Mapping[str, NDArray[np.float64]]
"""What a run gave for each of `METRICS`: one number for each job of which it is known."""


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

    def value_of(self, measured: MeasuredRun) -> float:
        values = measured[self.metric]
        if not len(values):
            return float("inf")
        if self.measure == "mean":
            return float(values.mean())
        return float(np.percentile(values, float(self.measure[1:])))


def parse_objectives(text: str) -> tuple[Objective, ...]:
    """Those of a comma-separated list. Raises ValueError."""
    objectives = tuple(Objective.parse(word.strip()) for word in text.split(",") if word.strip())
    if len(objectives) < 2 or len(set(objectives)) < len(objectives):
        raise ValueError("name two objectives or more, each once: one alone is traded against nothing")
    return objectives


class TriedWindow(Protocol):
    """Jobs on a cluster that is empty before them, on which configurations are tried."""

    @property
    def sizes_gpu_s(self) -> Sequence[float]:
        """The size of each job, as it is told."""

    def measure(self, policy: str, config: WfqConfig | None = None) -> MeasuredRun:
        """Runs the jobs under a policy."""


@dataclass(frozen=True, slots=True)
class JobWindow:
    """Consecutive jobs of a workload in the simulator."""

    workload: Workload
    cluster: Cluster
    asked_ratio: float = 0.1
    """How many jobs ask for their end; each question costs a run of its own."""

    @property
    def sizes_gpu_s(self) -> Sequence[float]:
        sizes: list[float] = (self.workload.expected_s * self.workload.gpus).tolist()
        return sizes

    def measure(self, policy: str, config: WfqConfig | None = None) -> MeasuredRun:
        parameters = {} if config is None else config.as_parameters()
        asked = AskedEnds(len(self.workload), self.asked_ratio, registry.make_for_roll_outs)
        outcome = simulate(
            self.workload, self.cluster, policy, parameters, physics=Physics(pairs="none"), look=asked
        )
        done = outcome.finished
        error = np.abs(outcome.jct_s / np.array(asked.told_s) - 1.0)
        return {
            "jct": outcome.jct_s[done],
            "error": error[done & np.isfinite(error)],
            "unfairness": np.maximum(fairness(outcome).rho[done] - 1.0, 0.0),
        }


def evaluate_config(
    window: TriedWindow, config: WfqConfig, objectives: Sequence[Objective]
) -> tuple[float, ...]:
    """The objectives of one configuration; a function of a module, for it goes to other processes."""
    measured = window.measure("pcs", config)
    return tuple(objective.value_of(measured) for objective in objectives)
