"""What a configuration is worth on a window of jobs: one run of the fluid world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cotenant.controller.policies.pcs import WfqConfig
from cotenant.controller.sim import Cluster, Outcome, Workload
from cotenant.controller.sim.fluid import simulate_fluid
from cotenant.controller.training.pcs.objectives import Objective


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

    def run(self, policy: str, config: WfqConfig | None = None) -> Outcome:
        parameters = None if config is None else config.as_parameters()
        asked = int(np.ceil(self.asked_ratio * len(self.workload)))
        return simulate_fluid(self.workload, self.cluster, policy, parameters, asked=asked)


def evaluated(window: JobWindow, config: WfqConfig, objectives: Sequence[Objective]) -> tuple[float, ...]:
    """The objectives of one configuration; a function of a module, for it goes to other processes."""
    outcome = window.run("pcs", config)
    return tuple(objective.of(outcome) for objective in objectives)
