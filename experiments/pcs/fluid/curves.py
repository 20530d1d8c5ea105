"""A workload as the fluid world sees it: each job as an amount of work and a speedup curve."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cotenant.controller.sim import Scenario, Trace, Workload, speedups_of, workload_of
from experiments.pcs.fluid.play import FluidJob
from experiments.pcs.fluid.speedup import Speedup


def fluid_workload(asked: Scenario, trace: Trace, seed: int = 0) -> Workload:
    """Returns the jobs of a trace as the fluid world sees them: durations are times alone on all of their
    devices, as their curves say, and nothing loads or pauses.

    Raises:
        TraceProblem: what was asked of the trace.
    """
    workload = workload_of(replace(asked, world="elastic"), trace, None, seed)
    nothing = np.zeros(len(workload))
    return replace(workload, load_s=nothing, pause_s=nothing)


def fluid_jobs(workload: Workload) -> list[FluidJob]:
    """The fluid jobs of a workload that `fluid_workload` made."""
    return [
        FluidJob(submit_s, duration_s * curve[-1], expected_s * curve[-1], Speedup(curve))
        for submit_s, duration_s, expected_s, curve in zip(
            workload.submit_s.tolist(),
            workload.duration_s.tolist(),
            workload.expected_s.tolist(),
            speedups_of(workload),
            strict=True,
        )
    ]
