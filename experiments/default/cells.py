"""The runs behind results/default.md: windows of Philly's VCs and generated jobs of small hosts, where some
jobs resume, and some tell their length while they run. Some of the generated ones have commands and arrays.

Rule: the policies of a window get the same jobs, with the same draws. Where a policy never looks at what was
drawn (fifo at nothing, tiresias at no length), one run stands for several draws; where it does not look at
commands, for the same jobs without.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from cotenant.controller import sim
from cotenant.controller.domain import LATE_SHARE
from experiments.default import arrays, families, small_hosts
from experiments.shared import kept_runs, paths

FOLDER: Final = paths.CACHE / "default"
VERSION: Final = 3
"""Of the result's form and of what a run means: raise it when a policy or the simulated world changes."""

VCS: Final = ("0e4a51", "b436b2", "ee9e8c", "6c71a0", "103959")
PHILLY: Final = sim.Cluster(hosts=8, gpus_per_host=8)
LOADS: Final = (0.7, 1.0, 2.0)
WINDOWS: Final = 2
"""Of each VC where all resume and most tell; one where not: there the small hosts have more draws."""
WINDOW_JOBS: Final = 1000
SMALL: Final = {
    "one host of four": sim.Cluster(hosts=1, gpus_per_host=4),
    "two of eight": sim.Cluster(hosts=2, gpus_per_host=8),
}
HOST: Final = next(iter(SMALL))
ARRAYS: Final = {
    "arrays on three": sim.Cluster(hosts=1, gpus_per_host=3),
    "arrays on eight": sim.Cluster(hosts=1, gpus_per_host=8),
}
COMMANDS, FOUR = f"{HOST}, commands", "families on four"
FAMILIES: Final = {
    COMMANDS: SMALL[HOST],
    FOUR: sim.Cluster(hosts=1, gpus_per_host=4),
    "families on sixteen": sim.Cluster(hosts=2, gpus_per_host=8),
}
GENERATED: Final = {**SMALL, **ARRAYS, **FAMILIES}
LOAD_TIMES_S: Final = (1.0, 20.0, 60.0)
"""Of every job, on `ARRAYS` and one small host."""
USUAL_S: Final = 20.0
SEEDS: Final = range(1, 7)
RESUMABLE: Final = (1.0, 0.5, 0.0)
TELLS: Final = (0.8, 0.0)
TELL_AFTER_S: Final = 60.0
OVER: Final = 0.1
"""Of its training: more than that no job should lose to preemptions."""
TRY_S: Final = 600.0
"""A shorter job is a try."""


class Contestant(NamedTuple):
    """A policy, and what of the draws it looks at."""

    policy: str
    preempts: bool = True
    reads_lengths: bool = True
    is_told: bool = False
    """Exact lengths, as jobs arrive: then who tells does not matter."""
    sees_commands: bool = True


MINE: Final = "cotenant"
"""The policy of the default."""
FIFO, EASY, TIRESIAS, EXACT, DEFAULT = "fifo", "EASY", "tiresias", "exact lengths", "default"
PATIENT, BLIND = "patient", "default, no commands"
CONTESTANTS: Final = {
    FIFO: Contestant("fifo", preempts=False, reads_lengths=False),
    EASY: Contestant("fifo:backfill=easy", preempts=False),
    TIRESIAS: Contestant("tiresias", reads_lengths=False),
    PATIENT: Contestant("patient"),
    EXACT: Contestant(MINE, is_told=True),
    BLIND: Contestant(MINE, sees_commands=False),
    DEFAULT: Contestant(MINE),
}


class Cell(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A window under one policy."""

    ground: str
    """A VC, or a name of `GENERATED`."""
    window: int
    """Its number in a VC; the seed of generated jobs."""
    load: float
    resumable: float
    tells: float
    load_time_s: float = 0.0
    """From launch to first step, of every job; 0: as modelled."""
    by: str = DEFAULT
    """A name of `CONTESTANTS`."""

    @property
    def contestants(self) -> list[str]:
        """Names of those that run here."""
        missing = {BLIND} if self.ground not in FAMILIES else set[str]()
        if self.load_time_s or self.ground in FAMILIES:
            missing.add(PATIENT)
        return [by for by in CONTESTANTS if by not in missing]

    def under(self, by: str) -> Cell:
        """The cell whose run stands for this window under that policy."""
        one = CONTESTANTS[by]
        needs_commands = one.sees_commands and one.reads_lengths and not one.is_told
        is_of_host = self.ground == COMMANDS and not needs_commands
        return msgspec.structs.replace(
            self,
            by=DEFAULT if is_of_host and by == BLIND else by,
            ground=HOST if is_of_host else self.ground,
            resumable=self.resumable if one.preempts else RESUMABLE[0],
            tells=self.tells if one.reads_lengths and not one.is_told else TELLS[0],
        )

    @property
    def file(self) -> Path:
        key = hashlib.blake2b(msgspec.json.encode([VERSION, MINE, self]), digest_size=12).hexdigest()
        return FOLDER / f"{VERSION}-{key}.json"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a run."""

    cell: Cell
    commit: str
    jct_s: list[float]
    """Of each job."""
    longest_wait_s: float
    tries_median_s: float
    lost_share: float
    """Device time that preemptions cost / device time held."""
    preemptions_max: int
    """Of one job."""
    over_tenth_share: float
    """Jobs that preemptions cost over a tenth of their training / all jobs."""
    cpu_s: float


def windows() -> Iterator[Cell]:
    """Under the default. What the targets are about first, then a window of each VC after the other."""
    philly = [
        (number, vc, load)
        for number, vc, load in product(range(WINDOWS), VCS, LOADS)
        if len(sim.open_trace(f"philly/{vc}")) >= (number + 1) * WINDOW_JOBS
    ]
    small = [(seed, name, small_hosts.LOAD) for seed, name in product(SEEDS, SMALL)]
    for tells, resumable in product(TELLS, RESUMABLE):
        is_first = (tells, resumable) == (TELLS[0], RESUMABLE[0])
        for window, ground, load in sorted([*philly, *small], key=lambda each: each[0]):
            if ground in SMALL or window == 0 or is_first:
                yield Cell(ground=ground, window=window, load=load, resumable=resumable, tells=tells)
    yield from _with_commands()


def _with_commands() -> Iterator[Cell]:
    """And the small host with other load times."""
    told, untold = TELLS
    timed = [(ground, 1.0, told, time_s) for ground, time_s in product((*ARRAYS, HOST), LOAD_TIMES_S)]
    rarer = [(share, told) for share in RESUMABLE[1:]] + [(1.0, untold)]
    timed += [(ground, *each, USUAL_S) for ground, each in product(ARRAYS, rarer)]
    usual = [(ground, share, told, 0.0) for ground, share in product(FAMILIES, RESUMABLE)]
    usual += [(FOUR, share, untold, 0.0) for share in RESUMABLE]
    for seed, (ground, resumable, tells, load_time_s) in product(SEEDS, [*timed, *usual]):
        yield Cell(
            ground=ground,
            window=seed,
            load=small_hosts.LOAD,
            resumable=resumable,
            tells=tells,
            load_time_s=load_time_s,
        )


def runs() -> list[Cell]:
    """Each once."""
    return list(dict.fromkeys(window.under(by) for window in windows() for by in window.contestants))


def cluster(ground: str) -> sim.Cluster:
    return GENERATED.get(ground, PHILLY)


def _generator(ground: str) -> Callable[[sim.Cluster, int], sim.Trace]:
    if ground == COMMANDS:
        return small_hosts.with_commands
    if ground in SMALL:
        return small_hosts.generated
    return arrays.generated if ground in ARRAYS else families.generated


def trace_of(cell: Cell) -> sim.Trace:
    """The window's jobs as they were recorded, or generated."""
    if cell.ground in GENERATED:
        return _generator(cell.ground)(GENERATED[cell.ground], cell.window)
    first = cell.window * WINDOW_JOBS
    return sim.open_trace(f"philly/{cell.ground}").take(np.arange(first, first + WINDOW_JOBS))


def workload(cell: Cell, trace: sim.Trace) -> sim.Workload:
    """With arrivals stretched until they offer the load that the cell names."""
    on = cluster(cell.ground)
    progress = sim.Knowledge(
        known="progress", after_s=TELL_AFTER_S, tells=cell.tells, resumable=cell.resumable
    )
    exact = sim.Knowledge(known="exact", resumable=cell.resumable)
    asked = sim.Scenario(
        trace=trace.name,
        hosts=on.hosts,
        gpus_per_host=on.gpus_per_host,
        launch="warm",
        knowledge=exact if CONTESTANTS[cell.by].is_told else progress,
    )
    found = sim.workload_of(asked, trace, None, cell.window)
    found = replace(found, submit_s=found.submit_s * (found.offered_load(on.gpus) / cell.load))
    if cell.load_time_s:
        found = replace(found, load_s=np.full(len(found), cell.load_time_s))
    return found if CONTESTANTS[cell.by].sees_commands else replace(found, submissions=())


def load(cell: Cell) -> Result | None:
    return kept_runs.read_kept(cell.file, Result)


def run(cell: Cell, commit: str) -> None:
    """In a process of its own; the result appears whole or not at all."""
    kept_runs.keep(ran(cell, trace_of(cell), commit), cell.file)


def ran(cell: Cell, trace: sim.Trace, commit: str = "") -> Result:
    """Late jobs go first under the default only: the others run as in their papers."""
    jobs = workload(cell, trace)
    (choice,) = sim.policies_named(CONTESTANTS[cell.by].policy)
    found = sim.simulate(
        jobs,
        cluster(cell.ground),
        choice.name,
        choice.parameters,
        physics=sim.Physics(pairs="none"),
        late_share=LATE_SHARE if cell.by in (DEFAULT, BLIND) else 0.0,
    )
    assert found.finished.all(), cell
    lost_s = preemption_costs_s(found)
    held_s = found.load_s + found.run_s + found.pause_s
    return Result(
        cell=cell,
        commit=commit,
        jct_s=np.round(found.jct_s, 3).tolist(),
        longest_wait_s=float(found.wait_s.max()),
        tries_median_s=float(np.median(found.jct_s[jobs.duration_s < TRY_S])),
        lost_share=float(np.round(np.dot(lost_s, jobs.sizes) / np.dot(held_s, jobs.sizes), 9)),
        preemptions_max=int(found.preemptions.max()),
        over_tenth_share=float(np.mean(lost_s > OVER * (found.run_s - found.rework_s))),
        cpu_s=found.cpu_s,
    )


def preemption_costs_s(found: sim.RunResult) -> NDArray[np.float64]:
    """Seconds that preemptions cost each job, shape (n,): its pauses, every load but one, and training that
    it did twice. Nothing fails here and nothing is shared, so that each job needs exactly one load."""
    return found.pause_s + np.maximum(0.0, found.load_s - found.workload.load_s) + found.rework_s
