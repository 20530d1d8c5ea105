"""A workload under one policy of the fluid world, with what each asked job was told at its arrival; which
policies there are, and how one is made by its name.

Rule: arrivals and nothing else come from outside; what is recorded was seen, not derived from the policy.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from typing import Final

import numpy as np

from cotenant.controller.papers.pcs import WfqConfig
from cotenant.controller.papers.pcs.fluid.curves import fluid_jobs, fluid_workload
from cotenant.controller.papers.pcs.fluid.play import NEVER, Play
from cotenant.controller.papers.pcs.fluid.promised import PromiseShares, StretchShares
from cotenant.controller.papers.pcs.fluid.rules import (
    AfsL,
    FifoShares,
    MaxMin,
    PolluxLike,
    SiaLike,
    SrsfShares,
    Themis,
    WfqShares,
)
from cotenant.controller.policies.base import Parameters
from cotenant.controller.sim import NAN, Cluster, Columns, OtherWorld, RunResult, Workload, WorldPolicy

POLICIES: dict[str, WorldPolicy] = {
    "fifo": WorldPolicy("first come, first served", lambda given: FifoShares(), {}),
    "srsf": WorldPolicy(
        "least remaining service first (PCS calls it Tiresias)", lambda given: SrsfShares(), {}
    ),
    "stretch": WorldPolicy(
        "srsf, and jobs are told of the smaller ones still to come",
        lambda given: StretchShares(float(given.get("stretch", 1.0))),
        {"stretch": 1.0},
    ),
    "promise": WorldPolicy(
        "told as under stretch; jobs whose promise has no slack go first",
        lambda given: PromiseShares(float(given.get("stretch", 1.0)), float(given.get("epsilon", 0.0))),
        {"stretch": 1.0, "epsilon": 0.0},
    ),
    "pcs": WorldPolicy(
        "weighted fair queueing by size",
        lambda given: WfqShares(WfqConfig.parse(given)),
        WfqConfig().as_parameters(),
    ),
    "max-min": WorldPolicy("equal shares", lambda given: MaxMin(), {}),
    "afs-l": WorldPolicy("AFS-L: each device to whom it helps more", lambda given: AfsL(), {}),
    "themis": WorldPolicy(
        "furthest behind its fair finish time first",
        lambda given: Themis(float(given.get("lease_s", 600.0))),
        {"lease_s": 600.0},
    ),
    "pollux": WorldPolicy("as Pollux: the greatest fitness", lambda given: PolluxLike(), {}),
    "sia": WorldPolicy("as Sia: its integer program, on one type", lambda given: SiaLike(), {}),
}


Watch = Callable[[int, int, float], None]
WATCH_EVERY = 64
"""Arrivals."""


def simulate_fluid(
    workload: Workload,
    cluster: Cluster,
    policy: str,
    parameters: Parameters | None = None,
    *,
    seed: int = 0,
    asked: int = 0,
    watch: Watch | None = None,
) -> RunResult:
    """Run a workload that `as_fluid` made, to the end or until `watch` (or Ctrl-C) interrupts it.

    Args:
        asked: so many jobs, evenly among all, ask at their arrival when they will have ended.
        watch: called now and then with (jobs finished, jobs in all, virtual seconds).

    Raises:
        ValueError: a parameter of the policy.
    """
    run = _Run(
        workload, cluster, Play(fluid_jobs(workload), cluster.gpus, POLICIES[policy].make(parameters or {}))
    )
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    interrupted = False
    try:
        run.play_out(asked, watch)
    except KeyboardInterrupt:
        interrupted = True
    return RunResult(
        workload=workload,
        cluster=cluster,
        policy=policy,
        parameters=dict(parameters or {}),
        seed=seed,
        **run.columns.arrays(),
        makespan_s=run.play.now_s,
        busy_gpu_s=run.busy_gpu_s,
        arriving_s=run.arriving_s,
        arriving_gpu_s=run.arriving_gpu_s,
        events=run.play.events,
        decision_ns=np.empty(0, np.int64),
        wall_s=time.perf_counter() - wall_s,
        cpu_s=time.process_time() - cpu_s,
        interrupted=interrupted,
        predicted_s=np.frombuffer(run.predicted_s, np.float64),
        fair_s=np.frombuffer(run.fair_s, np.float64),
    )


FLUID: Final = OtherWorld(POLICIES, fluid_workload, simulate_fluid)


class _Run:
    """A run of the fluid world: the play, and the columns that are filled as jobs end."""

    def __init__(self, workload: Workload, cluster: Cluster, play: Play) -> None:
        self.play = play
        self.columns = Columns(len(workload))
        self.predicted_s = array("d", [NAN]) * len(workload)
        self.fair_s = array("d", [NAN]) * len(workload)
        self.busy_gpu_s = self.arriving_s = self.arriving_gpu_s = 0.0
        self._gpus = cluster.gpus
        self._submit_s = workload.submit_s.tolist()
        self._ran_s: dict[int, float] = {}
        self._since_s = 0.0
        self._before: dict[int, float] = {}

    def play_out(self, asked: int, watch: Watch | None) -> None:
        play, jobs, finished = self.play, len(self._submit_s), 0
        for number, submit_s in enumerate([*self._submit_s, NEVER]):
            while play.left_gpu_s and (ended := play.advance(submit_s)) is not None:
                self._count(ended)
                self._end(ended)
                finished += 1
            if number == jobs:
                break
            play.now_s = submit_s
            play.arrive(number)
            self._ran_s[number] = 0.0
            self._count(None)
            self.arriving_s, self.arriving_gpu_s = submit_s - self._submit_s[0], self.busy_gpu_s
            if (number + 1) * asked // jobs > number * asked // jobs:
                self.predicted_s[number] = play.rule.told_end_s(number, play) - submit_s
            if watch is not None and not number % WATCH_EVERY:
                watch(finished, jobs, play.now_s)

    def _count(self, ended: int | None) -> None:
        """Counts who ran on how many devices since the last event, and who has just lost all."""
        seconds = self.play.now_s - self._since_s
        for job, gpus in self._before.items():
            self._ran_s[job] += seconds
            self.busy_gpu_s += gpus * seconds
        running = dict(self.play.running)
        for job in self._before.keys() - running.keys():
            if job != ended:
                self.columns.lost_all(job)
        self._since_s, self._before = self.play.now_s, running

    def _end(self, job: int) -> None:
        self.columns.put_fluid(job, self.play.now_s - self._submit_s[job], self._ran_s.pop(job))
        known = self.play.jobs[job]
        fair_gpus = min(self._gpus / self.play.contention(job), known.speedup.gpus_max)
        self.fair_s[job] = known.work_gpu_s / fair_gpus
        self.play.forget(job)
