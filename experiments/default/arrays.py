"""Generated jobs of one host: long jobs, arrays with a limit on tasks at once, and grids of short tasks.
SYNTHETIC.

So somebody lost a third of a long job's device time live: two long jobs, an array with `%2` and a grid of
ten-second tasks. Lengths within an array or a grid spread as published (`families.py`); all else is chosen.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cotenant.controller.sim import Cluster, SimulatedSubmission, Trace
from experiments.default.families import FAMILY_JOBS, WITHIN_SIGMAS, Program, draw_quantile
from experiments.default.small_hosts import LOAD, Job, as_trace, upto

DAYS: Final = {3: 2.0, 8: 1.0}
"""That are generated, by slots."""
LONG_OF_WORK: Final = 0.85
"""The share of all GPU time that long jobs ask for; arrays and grids share the rest."""
LONG_S_MEDIAN, LONG_SIGMA = 5400.0, 0.6
TASK_S: Final = (10.0, 600.0)
"""The median of a family of tasks, evenly on a log scale."""
TASK_S_LIMITS: Final = (5.0, 1800.0)
AT_ONCE: Final = {3: (1, 2), 8: (2, 4)}
"""By slots: the limit of an array, each as likely."""
USERS, PROGRAMS = 3, 2


def generated(cluster: Cluster, seed: int) -> Trace:
    """Jobs of one GPU whose work fills `LOAD` of the host for `DAYS`."""
    slots = cluster.gpus
    draw = np.random.default_rng([seed, slots, 2])
    horizon_s = DAYS[slots] * 86_400.0
    work_gpu_s = LOAD * slots * horizon_s
    arrays = _programs(draw, "evaluate")
    grids = _programs(draw, "tune")
    long = [Program(f"user{user}", "pretrain.py", LONG_S_MEDIAN, LONG_SIGMA) for user in range(USERS)]

    def long_job() -> list[Job]:
        program = long[draw.integers(USERS)]
        return [Job(draw.uniform(0.0, horizon_s), program.length_s(draw), 1, program.submission(draw))]

    def tasks() -> list[Job]:
        """An array, whose tasks have one command, or a grid."""
        at_s, number, is_array = (
            draw.uniform(0.0, horizon_s),
            int(draw.integers(len(grids))),
            draw.random() < 0.5,
        )
        program = (arrays if is_array else grids)[number]
        argv, limit, array = ("python", program.script), int(draw.choice(AT_ONCE[slots])), f"{at_s:.6f}"
        return [
            Job(
                at_s,
                float(np.clip(program.length_s(draw), *TASK_S_LIMITS)),
                1,
                SimulatedSubmission(argv, program.user, array, limit)
                if is_array
                else program.submission(draw),
            )
            for _ in range(round(draw_quantile(draw, FAMILY_JOBS)))
        ]

    jobs = upto(LONG_OF_WORK * work_gpu_s, long_job)
    jobs += upto((1.0 - LONG_OF_WORK) * work_gpu_s, tasks)
    return as_trace(
        f"synthetic-arrays-{seed}", f"generated (seed {seed}): arrays and grids beside long jobs", jobs
    )


def _programs(draw: np.random.Generator, name: str) -> list[Program]:
    low, high = np.log(TASK_S)
    return [
        Program(
            f"user{user}",
            f"{name}{number}.py",
            float(np.exp(draw.uniform(low, high))),
            draw_quantile(draw, WITHIN_SIGMAS),
        )
        for user in range(USERS)
        for number in range(PROGRAMS)
    ]
