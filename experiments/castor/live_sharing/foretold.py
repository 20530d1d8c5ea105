"""The simulator's account of a live run in which devices are shared: same arrivals, same policy, told times;
and the run beside it.

Rule: the simulator is told what jobs are and what pairs do to each other, and nothing of what was decided.

*Told* is what was measured while the jobs ran: how long each trains alone (in the runs in which nobody shared
a device), its load time in the run in question, and xi of each kind of pair: as that run measured it, else
the other runs, else the duty-cycle rule. *Foreseen* is what was known before the first job arrived: step
times, load times and duty cycles of kinds alone, and nothing of pairs but the rule.
"""

from __future__ import annotations

import csv
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Final, NamedTuple

import msgspec
import numpy as np

from cotenant.controller.policies.base import Parameters
from cotenant.controller.sim import COLUMNS, Cluster, Physics, RunResult, Workload, simulate
from experiments.castor.live_sharing import jobs
from experiments.castor.live_sharing.counted import alone_step_s, counted
from experiments.castor.live_sharing.run import CastorRun
from experiments.shared.live.errors import Told, simulated_job, told_live
from experiments.shared.live.run import DEVICES

OBSERVE_S: Final = 4.0
"""A job's pace is known so long after a change of tenants: its reports are medians over some seconds."""
Xi = Mapping[tuple[str, str], float]
"""(kind, beside kind) -> iteration time beside it / alone."""
Measured = Mapping[str, jobs.Measured]

AGAIN: Final = ", again"
BASE: Final = "fifo"
"""Its jobs train alone, which says how long each takes."""


class Foretold(msgspec.Struct, frozen=True, kw_only=True):
    """One run in the simulator."""

    jobs: tuple[Told, ...]
    makespan_s: float
    shared: int
    benefit: tuple[float, ...]
    """Castor eq. 24, of each job that was ever a guest."""

    @property
    def mean_jct_s(self) -> float:
        return fmean(job.jct_s for job in self.jobs)


def alone_s(runs: Iterable[CastorRun]) -> dict[str, float]:
    """How long each job trains alone, by name: the shortest of its times in runs in which nobody shared (what
    else ran on the machine can only have made it longer)."""
    found: dict[str, float] = {}
    for run in runs:
        if not shares(run):
            for row in run.rows:
                found[row.name] = min(row.run_s, found.get(row.name, row.run_s))
    return found


def foretell(
    run: CastorRun,
    measured: Measured,
    trained_s: Mapping[str, float],
    xi: Xi,
    *,
    label: tuple[str, Parameters] | None = None,
    load_s: Mapping[str, float] | None = None,
    load_duty: float = 0.0,
    share_max: float = 0.0,
) -> Foretold:
    """A run's arrivals under its own policy, or another.

    Args:
        trained_s: job name -> training time alone.
        load_s: job name -> load time; None: as that run measured it.
        load_duty, share_max: of the world's physics.
    """
    loads = load_s if load_s is not None else {row.name: row.one_load_s for row in run.rows}
    policy, parameters = label if label is not None else (run.policy, run.parameters)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pairs.csv"
        _write_pairs(path, list(measured), xi)
        outcome = simulate(
            _workload(run, measured, trained_s, loads),
            Cluster(hosts=1, gpus_per_host=DEVICES),
            policy,
            parameters,
            physics=Physics(pairs=str(path), observe_s=OBSERVE_S, load_duty=load_duty, share_max=share_max),
        )
    return _told(outcome, run)


def foreseen(run: CastorRun, measured: Measured) -> Foretold:
    """From what was known before the first job arrived."""
    trained_s = {row.name: row.expected_s for row in run.rows}
    loads = {row.name: row.foreseen.load_s for row in run.rows}
    return foretell(run, measured, trained_s, rule(measured), load_s=loads)


def _told(outcome: RunResult, run: CastorRun) -> Foretold:
    assert bool(np.all(outcome.finished)), "a simulated job did not finish"
    return Foretold(
        jobs=tuple(simulated_job(outcome, i, row) for i, row in enumerate(run.rows)),
        makespan_s=outcome.makespan_s,
        shared=int(np.sum(outcome.shared)),
        benefit=tuple(outcome.sharing_benefit[~np.isnan(outcome.sharing_benefit)].tolist()),
    )


def _workload(
    run: CastorRun, measured: Measured, trained_s: Mapping[str, float], loads: Mapping[str, float]
) -> Workload:
    rows, kinds = run.rows, list(measured)
    first_s, none = rows[0].arrived_s, np.full(len(rows), -1, np.int16)
    return Workload(
        name="a live run",
        synthetic=False,
        submit_s=np.array([row.arrived_s - first_s for row in rows]),
        duration_s=np.array([trained_s[row.name] for row in rows]),
        expected_s=np.array([row.expected_s for row in rows]),
        gpus=np.array([row.gpus for row in rows], np.int32),
        load_s=np.array([loads[row.name] for row in rows]),
        pause_s=np.array([row.one_pause_s for row in rows]),
        model=np.array([kinds.index(run.kinds[row.name]) for row in rows], np.int16),
        models=tuple(kinds),
        hp=np.zeros(len(rows), np.bool_),
        organisation=none,
        organisations=(),
        job_ids=tuple(row.name for row in rows),
        excluded={},
        duty_cycles=tuple(min(1.0, measured[kind].duty_cycle) for kind in kinds),
    )


def _write_pairs(path: Path, kinds: Sequence[str], xi: Xi) -> None:
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        for i, one in enumerate(kinds):
            for other in kinds[i:]:
                table.writerow((one, "", other, "", xi[one, other], xi[other, one]))


# --- Pairs -------------------------------------------------------------------------------------------


def rule(measured: Measured) -> dict[tuple[str, str], float]:
    """What the duty-cycle rule says of every pair of kinds."""
    return {
        (one, other): jobs.rule_xi(measured[one], measured[other]) for one in measured for other in measured
    }


def observed(run: CastorRun) -> dict[tuple[str, str], float]:
    """What the controller learned in one run."""
    names = {_said(kind): kind for kind in jobs.KINDS}
    found: dict[tuple[str, str], float] = {}
    for pair in run.pairs:
        first, second = names.get(pair.first), names.get(pair.second)
        if first is None or second is None:
            continue
        if pair.first_xi is not None:
            found[first, second] = pair.first_xi
        if pair.second_xi is not None:
            found[second, first] = pair.second_xi
    return found


def _said(kind: str) -> str:
    """As the controller names a kind to people."""
    one = jobs.KINDS[kind]
    gpus = f" x{one.gpus}" if one.gpus > 1 else ""
    return f"{' '.join(jobs.argv_of(kind))}{gpus}, batch {one.batch_size}"


def known(run: CastorRun, others: Sequence[CastorRun], measured: Measured) -> dict[tuple[str, str], float]:
    """xi of every pair of kinds: this run's, else the mean of the others', else the rule's."""
    alone = steps_alone([run, *others])
    elsewhere: dict[tuple[str, str], list[float]] = {}
    for other in others:
        for pair, value in truest(other, alone).items():
            elsewhere.setdefault(pair, []).append(value)
    mean = {pair: fmean(values) for pair, values in elsewhere.items()}
    return {**rule(measured), **mean, **truest(run, alone)}


def truest(run: CastorRun, alone: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """By steps counted, else as the controller learned it; below 1 is noise."""
    found = {**observed(run), **by_steps(run, alone)}
    return {pair: max(1.0, value) for pair, value in found.items()}


def by_steps(run: CastorRun, alone: Mapping[str, float]) -> dict[tuple[str, str], float]:
    return counted(run.rows, run.marks, run.kinds, alone)


def steps_alone(runs: Iterable[CastorRun]) -> dict[str, float]:
    """Seconds of a step of each kind in runs in which nobody shared: the median over its jobs."""
    found: dict[str, list[float]] = {}
    for run in runs:
        if not shares(run):
            for kind, values in alone_step_s(run.rows, run.marks, run.kinds).items():
                found.setdefault(kind, []).extend(values)
    return {kind: median(values) for kind, values in found.items()}


def shares(run: CastorRun) -> bool:
    return any(attempt.co_tenants for row in run.rows for attempt in row.attempts)


class Side(NamedTuple):
    """One live run beside its two simulations."""

    name: str
    run: CastorRun
    live: list[Told]
    told: Foretold
    foreseen: Foretold

    @property
    def is_again(self) -> bool:
        """Not the first run of its policy."""
        return self.name.endswith(AGAIN)

    def predicted(self, how: str) -> Foretold:
        return self.told if how == "told" else self.foreseen

    @property
    def makespan_s(self) -> float:
        return makespan_s(self.live)


def beside(runs: Sequence[CastorRun], measured: Mapping[str, jobs.Measured]) -> list[Side]:
    """Every run with what the simulator makes of it; runs of one policy are numbered."""
    if not any(run.label == BASE for run in runs):
        raise SystemExit(f"a run under {BASE} is needed: it says how long each job trains alone")
    alone, seen, sides = alone_s(runs), Counter[str](), []
    for run in runs:
        seen[run.label] += 1
        others = [other for other in runs if other is not run]
        xi = known(run, others, measured)
        sides.append(
            Side(
                name=run.label if seen[run.label] == 1 else run.label + AGAIN,
                run=run,
                live=told_live(run.rows),
                told=foretell(run, measured, alone, xi),
                foreseen=foreseen(run, measured),
            )
        )
    return sides


def by_policy(sides: Sequence[Side]) -> dict[str, list[Side]]:
    """All runs of each policy, by the name of the first: means are over all of them, none is chosen."""
    found: dict[str, list[Side]] = {}
    for side in sides:
        found.setdefault(side.run.label, []).append(side)
    return {same[0].name: same for same in found.values()}


def makespan_s(told: Sequence[Told]) -> float:
    """First arrival to last end."""
    return max(job.arrived_s + job.jct_s for job in told)


def mean_jct_s(side: Side) -> float:
    return fmean(job.jct_s for job in side.live)


def named(sides: Sequence[Side], name: str) -> Side:
    return next(side for side in sides if side.name == name)


def found(sides: Sequence[Side], name: str) -> Side | None:
    return next((side for side in sides if side.name == name), None)
