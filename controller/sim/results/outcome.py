"""What came of a simulated run: one row per job, a few numbers per run.

Rule: only what was observed; means, percentiles and JSON are made from it in `summary.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cotenant.controller.policies.base import Parameters
from cotenant.controller.sim.world.workload import Cluster, Seconds, Workload

Counts = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
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
    """No seconds but a ratio: the JCT it would have had, had it waited when it first became a co-tenant, over
    the JCT it had; NaN for jobs that were nobody's co-tenant (see `world/devices.py`)."""
    preemptions: Counts
    futile_preemptions: Counts
    aborted_preemptions: Counts
    """How often it was chosen, and replaced while its victims still saved: their pause was for nothing."""
    shared: NDArray[np.bool_]
    finished: NDArray[np.bool_]

    makespan_s: float
    """First arrival to last end (or to where the run was interrupted)."""
    busy_gpu_s: float
    """Sum over devices of the time with at least one tenant."""
    events: int
    decision_ns: NDArray[np.int64]
    """What an event cost the engine, policy included, in processor time: of the first events all, then a
    fixed share."""
    wall_s: float
    cpu_s: float
    interrupted: bool = False
    thinking_s: float = 0.0
    """Processor time spent on slow computations (fits), not in `decision_ns`."""
