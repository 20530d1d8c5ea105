"""The runs behind results/elastic.md: windows of three Philly VCs, each at the same load.

Rule: all policies of a window get the same jobs with the same curves. A job has one size if its policy is
rigid, that of the trace or one device, and 1 up to that of the trace if its policy resizes.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec
import numpy as np

from cotenant.controller.domain import AnyCommand, JobId
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine
from cotenant.controller.history import AttemptRecord, History
from cotenant.controller.policies.base import Parameters
from cotenant.controller.sim import (
    Cluster,
    Physics,
    RunResult,
    Scenario,
    Workload,
    elastic_workload,
    scenario,
    simulate,
)
from cotenant.controller.sim.results.summary import summarise
from experiments.pcs.fluid import simulate_fluid
from experiments.pcs.runs import config
from experiments.shared import kept_runs, paths

FOLDER: Final = paths.CACHE / "elastic"
VERSION: Final = 1
"""Of the result's form and of what a run means: raise it when a policy or the simulated world changes."""

VCS: Final = ("0e4a51", "b436b2", "6c71a0")
"""Those of PCS's figure 7 whose jobs are bundled."""
WINDOWS: Final = 5
WINDOW_JOBS: Final = 200
LOAD: Final = 1.0
HEAVIER: Final = (2.0, 4.0)
CLUSTER: Final = Cluster(hosts=8, gpus_per_host=8)
ONE_HOST: Final = Cluster(hosts=1, gpus_per_host=64)

ELASTIC: Final = ("afs-l", "max-min", "themis", "pcs")
"""`pcs` with PCS's published balanced configuration of the VC, and `elastic=true`."""
RIGID: Final = ("srsf", "srtf", "fifo")
ON_ONE: Final = ("srsf", "fifo")
"""Where all jobs have one GPU, `srtf` is `srsf`."""
LEASES_S: Final = (60.0, 300.0, 1800.0)
"""Flat ones. By default a lease is 300 s, or five times the load and the pause where that is longer."""
RESIZED: Final = "resized"
FREE: Final = 0.0
DEAR: Final = 4.0

Size = Literal["elastic", "traced", "one"]


class Cell(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One run."""

    vc: str
    window: int
    policy: str
    size: Size = "elastic"
    load: float = LOAD
    lease_s: float | None = None
    """Flat; None: as the policy has it by default."""
    costs: float = 1.0
    """Load and pause times are multiplied by it."""
    is_fluid: bool = False
    on_one_host: bool = False
    """All GPUs are on one host, which no job can outgrow."""

    @property
    def file(self) -> Path:
        key = hashlib.blake2b(msgspec.json.encode([VERSION, self]), digest_size=12).hexdigest()
        return FOLDER / f"{VERSION}-{key}.json"


class Charged(msgspec.Struct, frozen=True, kw_only=True):
    """What it took that jobs left their devices for one cause: saves, and the loads that followed."""

    count: int = 0
    gpu_s: float = 0.0


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a run. Seconds."""

    cell: Cell
    commit: str
    jobs: int
    mean_s: float
    median_s: float
    p99_s: float
    busy_gpu_s: float
    late: float
    """The part of the jobs that ended later than with an equal share."""
    resizes: int = 0
    resized: Charged = Charged()
    shortest_s: float | None = None
    """The least that a job had trained when it was resized; None: nobody was."""
    cpu_s: float


class Lot(NamedTuple):
    """The jobs of a window, once as rigid ones of the traced size, once as elastic ones."""

    traced: Workload
    elastic: Workload

    def of(self, size: Size) -> Workload:
        # A policy that does not resize runs an elastic job on the fewest devices that it takes: on one.
        return self.traced if size == "traced" else self.elastic


def cells() -> Iterator[Cell]:
    """All of them, what the page needs most first."""
    for vc, window in places():
        at: Mapping[str, Any] = {"vc": vc, "window": window}
        yield from (Cell(**at, policy=policy) for policy in ELASTIC)
        yield from (Cell(**at, policy=policy, size="traced") for policy in RIGID)
        yield from (Cell(**at, policy=policy, size="one") for policy in ON_ONE)
        yield from (Cell(**at, policy=policy, is_fluid=True) for policy in ELASTIC)
    for load in HEAVIER:
        for vc, window in places():
            at = {"vc": vc, "window": window, "load": load}
            yield from (Cell(**at, policy=policy) for policy in ELASTIC)
            yield from (Cell(**at, policy=policy, size="traced") for policy in RIGID)
    for vc, window in places():
        free: Mapping[str, Any] = {"vc": vc, "window": window, "lease_s": 1.0, "costs": FREE}
        yield from (Cell(**free, policy=policy) for policy in ELASTIC)
        yield from (Cell(**free, policy=policy, on_one_host=True) for policy in ELASTIC)
    for vc, window in places():
        at = {"vc": vc, "window": window, "costs": DEAR}
        yield from (Cell(**at, policy=policy) for policy in ELASTIC)
    for vc, window in places():
        at = {"vc": vc, "window": window}
        yield from (Cell(**at, policy=policy, lease_s=lease_s) for policy in ELASTIC for lease_s in LEASES_S)


def places() -> list[tuple[str, int]]:
    return [(vc, window) for window in range(WINDOWS) for vc in VCS]


@cache
def lot(vc: str, window: int, load: float, costs: float) -> Lot:
    """A window's jobs. Load: the work that arrives, as one device alone does it, over what all could do
    meanwhile."""
    trace = f"philly/{vc}"
    opened = scenario.open_trace(trace)
    part = len(opened) // WINDOWS
    asked = Scenario(
        trace=trace,
        from_s=float(opened.submit_s[window * part]) if window else None,
        jobs=min(WINDOW_JOBS, part),
        hosts=CLUSTER.hosts,
        gpus_per_host=CLUSTER.gpus_per_host,
        pairs="none",
        world="elastic",
    )
    found = scenario.workload_of(asked, opened, None, 0)
    work_gpu_s = float(elastic_workload(found).time_on_fewest_s(found.duration_s).sum())
    offered = work_gpu_s / (float(found.submit_s[-1]) * CLUSTER.gpus)
    traced = replace(
        found,
        submit_s=found.submit_s * (offered / load),
        load_s=found.load_s * costs,
        pause_s=found.pause_s * costs,
    )
    return Lot(traced, elastic_workload(traced))


def load(cell: Cell) -> Result | None:
    return kept_runs.read_kept(cell.file, Result)


def run(cell: Cell, commit: str) -> None:
    """In a process of its own."""
    kept_runs.keep(found(cell, commit), cell.file)


def found(cell: Cell, commit: str) -> Result:
    jobs, began_s = lot(cell.vc, cell.window, cell.load, cell.costs), time.process_time()
    seen = Seen()
    if cell.is_fluid:
        nothing = np.zeros(len(jobs.traced))
        jobs = Lot(replace(jobs.traced, load_s=nothing, pause_s=nothing), jobs.elastic)
        outcome: RunResult = simulate_fluid(jobs.traced, CLUSTER, cell.policy, parameters(cell))
    else:
        physics = Physics(pairs="none")
        cluster = ONE_HOST if cell.on_one_host else CLUSTER
        outcome = simulate(
            jobs.of(cell.size), cluster, cell.policy, parameters(cell), physics=physics, look=seen
        )
    assert outcome.finished.all(), cell
    return Result(
        cell=cell,
        commit=commit,
        jobs=len(jobs.traced),
        **_of_times(outcome, jobs.traced),
        **seen.counted(outcome),
        cpu_s=time.process_time() - began_s,
    )


def parameters(cell: Cell) -> Parameters:
    given: dict[str, Any] = dict(config(cell.vc, "bal").as_parameters()) if cell.policy == "pcs" else {}
    if cell.policy == "pcs" and not cell.is_fluid:
        given |= {"elastic": True, "min_lease_s": 300.0}  # As the others have it.
    if cell.lease_s is not None:
        given |= {"min_lease_s": cell.lease_s, "lease_factor": 0.0}
    return given


def _of_times(outcome: RunResult, traced: Workload) -> dict[str, Any]:
    """Fair is the same under each policy: alone on all of its devices, times the contention for those."""
    median_s, p99_s = np.quantile(outcome.jct_s, (0.5, 0.99)).tolist()
    fair = summarise(replace(outcome, workload=traced))["fairness"]
    return {
        "mean_s": float(outcome.jct_s.mean()),
        "median_s": median_s,
        "p99_s": p99_s,
        "busy_gpu_s": outcome.busy_gpu_s,
        "late": fair["rho"]["above_1_ratio"],
    }


class Seen:
    """What the engine's own history says of a run, counted as `cotenant report` counts it: a save belongs to
    what it was for, and so does the load that follows it."""

    def __init__(self) -> None:
        self._history = History()
        self._counted: dict[JobId, AttemptRecord | None] = {}
        """Of each job the last attempt that is over and counted."""
        self._counts: Counter[str] = Counter()
        self._gpu_s: defaultdict[str, float] = defaultdict(float)
        self._shortest_s: float | None = None

    def __call__(self, engine: Engine, event: ev.AnyEvent, commands: Sequence[AnyCommand]) -> None:
        self._history.observe(engine, event, commands)
        if isinstance(event, ev.AttemptEnded):
            before = self._counted.get(event.job_id)
            for attempt in self._history.attempts(event.job_id)[-2:]:
                is_new = before is None or attempt.attempt > before.attempt
                if is_new and attempt.ended_s is not None:
                    self._count(attempt, before)
                    self._counted[event.job_id] = before = attempt

    def _count(self, attempt: AttemptRecord, before: AttemptRecord | None) -> None:
        account, first_step_s = attempt.account, attempt.first_step_s
        assert account is not None
        if before is not None and before.cause and first_step_s is not None:
            self._gpu_s[before.cause] += account.load_device_s
        if not attempt.cause or attempt.outcome == "finished":
            return
        self._counts[attempt.cause] += 1
        self._gpu_s[attempt.cause] += account.leave_device_s
        if first_step_s is None:
            self._gpu_s[attempt.cause] += account.load_device_s  # For nothing.
        elif attempt.cause == RESIZED and attempt.stop_requested_s is not None:
            trained_s = attempt.stop_requested_s - first_step_s
            self._shortest_s = min(trained_s, self._shortest_s or trained_s)

    def counted(self, outcome: RunResult) -> dict[str, Any]:
        if not self._counted:
            return {}
        assert self._counts[RESIZED] == outcome.resizes.sum(), (self._counts, outcome.resizes.sum())
        return {
            "resizes": self._counts[RESIZED],
            "resized": Charged(count=self._counts[RESIZED], gpu_s=self._gpu_s[RESIZED]),
            "shortest_s": self._shortest_s,
        }
