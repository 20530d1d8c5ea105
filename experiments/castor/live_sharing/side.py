"""One live run beside what the simulator makes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final, NamedTuple

from experiments.castor.live_sharing import foretold, jobs
from experiments.castor.live_sharing.foretold import Foretold
from experiments.castor.live_sharing.run import CastorRun
from experiments.shared.live.errors import Told, told_live

AGAIN: Final = ", again"
BASE: Final = "fifo"
"""Its jobs train alone, which says how long each takes."""


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
    alone_s, seen, sides = foretold.alone_s(runs), Counter[str](), []
    for run in runs:
        seen[run.label] += 1
        others = [other for other in runs if other is not run]
        xi = foretold.known(run, others, measured)
        sides.append(
            Side(
                name=run.label if seen[run.label] == 1 else run.label + AGAIN,
                run=run,
                live=told_live(run.rows),
                told=foretold.foretell(run, measured, alone_s, xi),
                foreseen=foretold.foreseen(run, measured),
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
