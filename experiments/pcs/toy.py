"""Figure 1: four jobs, one GPU, three policies."""

from __future__ import annotations

from typing import Final, NamedTuple

from cotenant.controller.policies.base import Parameters
from cotenant.controller.policies.pcs import Speedup
from cotenant.controller.sim.fluid import NEVER, POLICIES, FluidJob, Play, predicted_end_s

ARRIVALS: Final = ((0.0, 10.0), (0.0, 8.0), (1.0, 1.0), (10.0, 8.0))
"""When, and how long."""
POLICIES_SHOWN: Final[dict[str, Parameters]] = {"srsf": {}, "themis": {"lease_s": 1.0}, "fifo": {}}
PAPERS: Final = {"srsf": "tiresias", "themis": "themis", "fifo": "yarn_fifo"}


class Toy(NamedTuple):
    """Units of time; error as a part."""

    mean_jct: float
    mean_error: float
    worst_late: float


def played(policy: str) -> Toy:
    one = Speedup((1.0,))
    jobs = [FluidJob(at, size, size, one) for at, size in ARRIVALS]
    play = Play(jobs, 1, POLICIES[policy].make(POLICIES_SHOWN[policy]))
    told: dict[int, float] = {}
    took: dict[int, float] = {}
    late: dict[int, float] = {}
    for number, until_s in enumerate([*(job.submit_s for job in jobs), NEVER]):
        while play.left_gpu_s and (ended := play.advance(until_s)) is not None:
            took[ended] = play.now_s - jobs[ended].submit_s
            late[ended] = max(0.0, took[ended] / (jobs[ended].work_gpu_s * play.contention(ended)) - 1.0)
        if number < len(jobs):
            play.now_s = until_s
            play.arrive(number)
            told[number] = predicted_end_s(play, number) - until_s
    errors = [abs(took[job] / told[job] - 1.0) for job in told]
    return Toy(sum(took.values()) / len(took), sum(errors) / len(errors), max(late.values()))
