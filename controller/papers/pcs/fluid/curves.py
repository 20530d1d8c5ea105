"""A workload as the fluid world sees it: each job as an amount of work and a speedup curve."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cotenant.controller.papers.pcs.fluid.play import FluidJob
from cotenant.controller.sim import Workload, curve_scaled_workload, speedups_of


def fluid_workload(workload: Workload) -> Workload:
    """Returns the jobs of `workload` as the fluid world sees them: durations are times alone on all of their
    devices, and nothing loads or pauses."""
    nothing = np.zeros(len(workload))
    return replace(curve_scaled_workload(workload), load_s=nothing, pause_s=nothing)


def fluid_jobs(workload: Workload) -> list[FluidJob]:
    """The fluid jobs of a workload that `fluid_workload` made."""
    return [
        FluidJob(submit_s, duration_s * curve.values[-1], expected_s * curve.values[-1], curve)
        for submit_s, duration_s, expected_s, curve in zip(
            workload.submit_s.tolist(),
            workload.duration_s.tolist(),
            workload.expected_s.tolist(),
            speedups_of(workload),
            strict=True,
        )
    ]
