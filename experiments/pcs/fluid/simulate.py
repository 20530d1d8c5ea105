"""A workload under one policy of the fluid world, with what each asked job was told at its arrival; which
policies there are, and how one is made by its name.

Rule: arrivals and nothing else come from outside; what is recorded was seen, not derived from the policy.
"""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cotenant.controller.papers.pcs import WfqConfig, published_named
from cotenant.controller.policies.base import Parameters
from cotenant.controller.sim import NAN, Cluster, Columns, RunResult, Workload
from experiments.pcs.fluid.curves import fluid_jobs
from experiments.pcs.fluid.play import NEVER, Play, Rule
from experiments.pcs.fluid.promised import PromiseShares, StretchShares
from experiments.pcs.fluid.rules import (
    AfsL,
    FifoShares,
    MaxMin,
    PolluxLike,
    SiaLike,
    SrsfShares,
    Themis,
    WfqShares,
)


class FluidPolicy(NamedTuple):
    """A policy of the fluid world, with its defaults."""

    about: str
    make: Callable[[Parameters], Rule]
    """Raises ValueError for a value out of range."""
    defaults: Parameters


POLICIES: dict[str, FluidPolicy] = {
    "fifo": FluidPolicy("first come, first served", lambda given: FifoShares(), {}),
    "srsf": FluidPolicy(
        "least remaining service first (PCS calls it Tiresias)", lambda given: SrsfShares(), {}
    ),
    "stretch": FluidPolicy(
        "srsf, and jobs are told of the smaller ones still to come",
        lambda given: StretchShares(float(given.get("stretch", 1.0))),
        {"stretch": 1.0},
    ),
    "promise": FluidPolicy(
        "told as under stretch; jobs whose promise has no slack go first",
        lambda given: PromiseShares(float(given.get("stretch", 1.0)), float(given.get("epsilon", 0.0))),
        {"stretch": 1.0, "epsilon": 0.0},
    ),
    "pcs": FluidPolicy(
        "weighted fair queueing by size",
        lambda given: WfqShares(WfqConfig.parse(given)),
        WfqConfig().as_parameters(),
    ),
    "max-min": FluidPolicy("equal shares", lambda given: MaxMin(), {}),
    "afs-l": FluidPolicy("AFS-L: each device to whom it helps more", lambda given: AfsL(), {}),
    "themis": FluidPolicy(
        "furthest behind its fair finish time first",
        lambda given: Themis(float(given.get("lease_s", 600.0))),
        {"lease_s": 600.0},
    ),
    "pollux": FluidPolicy("as Pollux: the greatest fitness", lambda given: PolluxLike(), {}),
    "sia": FluidPolicy("as Sia: its integer program, on one type", lambda given: SiaLike(), {}),
}


def policy_named(text: str) -> tuple[str, Parameters]:
    """Reads `NAME[:KEY=VALUE,...]`; `pcs:config=FILE[#NAME]` takes a configuration from a file.

    Raises:
        ValueError: there is no such policy or parameter, or its value is out of range.
    """
    name, _, given = text.partition(":")
    if (policy := POLICIES.get(name)) is None:
        raise ValueError(f"there is no policy {name!r} in the fluid world: there are {', '.join(POLICIES)}")
    parameters: Parameters = {}
    for word in filter(None, given.split(",")):
        key, _, value = word.partition("=")
        if key == "config" and name == "pcs":
            path, _, one = value.partition("#")
            parameters |= published_named(json.loads(Path(path).read_text()), one).as_parameters()
        elif key in policy.defaults:
            parameters[key] = type(policy.defaults[key])(value)
        else:
            raise ValueError(f"policy {name} has no parameter {key!r}: it has {', '.join(policy.defaults)}")
    policy.make(parameters)
    return name, parameters


@dataclass(frozen=True, kw_only=True, slots=True)
class FluidResult(RunResult):
    """The outcome of a run; each column has shape (n,), in the workload's order."""

    predicted_s: NDArray[np.float64]
    """The JCT that each job was told at its arrival, NaN for those that did not ask."""
    fair_s: NDArray[np.float64]
    """What each job would have taken with its equal share of the devices."""


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
) -> FluidResult:
    """Run a workload that `fluid_workload` made, to the end or until `watch` (or Ctrl-C) interrupts it.

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
    return FluidResult(
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
        """Counts who ran on how many devices since the last event, and as preempted who has just lost all."""
        seconds = self.play.now_s - self._since_s
        for job, gpus in self._before.items():
            self._ran_s[job] += seconds
            self.busy_gpu_s += gpus * seconds
        running = dict(self.play.running)
        for job in self._before.keys() - running.keys():
            if job != ended:
                self.columns.preemptions[job] += 1
        self._since_s, self._before = self.play.now_s, running

    def _end(self, job: int) -> None:
        columns, jct_s = self.columns, self.play.now_s - self._submit_s[job]
        columns.jct_s[job] = jct_s
        columns.run_s[job] = min(self._ran_s.pop(job), jct_s)
        columns.wait_s[job] = jct_s - columns.run_s[job]  # A job waits or runs, and nothing else.
        columns.load_s[job] = columns.pause_s[job] = columns.rework_s[job] = columns.futile_s[job] = 0.0
        columns.finished[job] = 1
        known = self.play.jobs[job]
        fair_gpus = min(self._gpus / self.play.contention(job), known.speedup.gpus_max)
        self.fair_s[job] = known.work_gpu_s / fair_gpus
        self.play.forget(job)
