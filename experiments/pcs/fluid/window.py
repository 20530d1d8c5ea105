"""A window of jobs in the fluid world, for the search for PCS's trade-offs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cotenant.controller.papers.pcs import WfqConfig
from cotenant.controller.papers.pcs.preferences import MeasuredRun
from cotenant.controller.sim import Cluster, Workload
from experiments.pcs.fluid.curves import fluid_jobs
from experiments.pcs.fluid.simulate import simulate_fluid


@dataclass(frozen=True, slots=True)
class FluidWindow:
    """Consecutive jobs of a workload that `fluid_workload` made, on a cluster that is empty before them."""

    workload: Workload
    cluster: Cluster
    asked_ratio: float = 0.25
    """How many jobs ask for their end; each question costs a run of its own."""

    @property
    def sizes_gpu_s(self) -> Sequence[float]:
        return [job.told_gpu_s for job in fluid_jobs(self.workload)]

    def measure(self, policy: str, config: WfqConfig | None = None) -> MeasuredRun:
        parameters = None if config is None else config.as_parameters()
        asked = math.ceil(self.asked_ratio * len(self.workload))
        outcome = simulate_fluid(self.workload, self.cluster, policy, parameters, asked=asked)
        done = outcome.finished
        told = done & np.isfinite(outcome.predicted_s)
        return {
            "jct": outcome.jct_s[done],
            "error": np.abs(outcome.jct_s[told] / outcome.predicted_s[told] - 1.0),
            "unfairness": np.maximum(outcome.jct_s[done] / outcome.fair_s[done] - 1.0, 0.0),
        }
