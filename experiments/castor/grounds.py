"""The samples on which policies are compared for results/castor.md, and what the paper says of them.

Rule: a ground counts only with the seeds for which every one of its runs is there.
"""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from experiments.castor import cells
from experiments.castor.cells import (
    CASTOR,
    JCT_MEAN,
    JCT_P50,
    LARGE_JOBS,
    POLICIES,
    SMALL_JOBS,
    VENUS,
    WAIT_MEAN,
    Cell,
    Number,
    Ratio,
    Result,
    Runs,
    at,
)

PAPER: Final[dict[str, Any]] = msgspec.json.decode(Path(__file__).with_name("paper.json").read_bytes())
MAKESPAN, BUSY = at("makespan_s"), at("gpu_busy_ratio")
BENEFIT, SHARED = at("sharing_benefit", "p50"), at("shared_jobs")


@cache
def facts(trace: str, jobs: int, seed: int) -> tuple[float, float]:
    """Of a sample: its work in GPU-seconds; and when its last job would end if none ever waited (s)."""
    work = cells.workload_of(cells.cell_of(trace, CASTOR, jobs, seed))
    return float(work.duration_s @ work.gpus), float((work.submit_s + work.duration_s).max())


def work_yield(result: Result) -> float:
    """Work done / GPU time with a tenant: above 1 where tenants together get more done than one alone."""
    cell = result.cell
    on = cells.ground(cell.trace)
    busy_gpu_s = BUSY(result) * MAKESPAN(result) * on.gpus
    return facts(cell.trace, cell.jobs, cell.seed)[0] / busy_gpu_s


YIELD: Final[Number] = work_yield


def last_end(result: Result) -> float:
    """When the last job would end if none ever waited / when it ended."""
    cell = result.cell
    return facts(cell.trace, cell.jobs, cell.seed)[1] / MAKESPAN(result)


OTHERS: Final = tuple(policy for policy in POLICIES if policy not in (*cells.OURS, CASTOR))
"""Published policies that Castor is held against."""
ALIKE: Final = 0.01
"""Relative: less is a tie."""
MEASURES: Final[dict[str, Number]] = {
    "mean JCT": JCT_MEAN,
    "median JCT": JCT_P50,
    "makespan": MAKESPAN,
    "mean waiting": WAIT_MEAN,
}


class Where(NamedTuple):
    """A set of traces at one size, with the seeds that are whole."""

    name: str
    paper: str
    """Its key in the paper's tables."""
    traces: tuple[str, ...]
    jobs: int
    seeds: list[int]

    def templates(self, xi: str = "measured", policy: str = CASTOR) -> list[Cell]:
        return [cells.cell_of(trace, policy, self.jobs, xi=xi) for trace in self.traces]


def grounds(book: Runs) -> list[Where]:
    found = []
    for paper, title, traces in sets():
        for count in (SMALL_JOBS, LARGE_JOBS):
            seeds = book.seeds(partial(of_seed, traces, count))
            if traces and seeds:
                found.append(Where(f"{title}, {count} jobs", paper, traces, count, seeds))
    return found


def sets() -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """(key of the paper's tables, title, traces)."""
    here = cells.traces()
    philly = tuple(trace for trace in here if trace != VENUS)
    return ("philly", "Philly", philly), ("venus", "Venus", tuple(trace for trace in here if trace == VENUS))


def of_seed(traces: tuple[str, ...], jobs: int, seed: int) -> list[Cell]:
    both = (cells.compared, cells.learning)
    return [cell for trace in traces for which in both for cell in which(trace, jobs, seed)]


def scaled_seeds(book: Runs, traces: tuple[str, ...]) -> list[int]:
    """Those for which every load was run."""
    counts = [round(scale * SMALL_JOBS) for scale in cells.SCALES]
    return book.seeds(lambda seed: [c for t in traces for n in counts for c in cells.compared(t, n, seed)])


def ratio(book: Runs, where: Where, policy: str, base: str, number: Number) -> Ratio:
    """Of known pairs: the policy's number / the base's."""
    return book.ratio(where.templates(), policy, base, where.seeds, number)


def learned_ratio(book: Runs, where: Where, policy: str, number: Number) -> Ratio:
    """The policy's number with pairs learned / with pairs known: geometric mean over traces, then seeds."""
    both = Runs(
        (
            msgspec.structs.replace(
                book.results[msgspec.structs.replace(template, seed=seed)],
                cell=msgspec.structs.replace(template, seed=seed, policy=xi, xi="measured"),
            )
            for seed in where.seeds
            for xi in ("learned", "measured")
            for template in where.templates(xi, policy)
        ),
        book.seeds_max,
    )
    return both.ratio(where.templates(), "learned", "measured", where.seeds, number)


def mean_over(book: Runs, where: Where, policy: str, number: Number, xi: str = "measured") -> float:
    """Mean over traces and seeds."""
    templates = where.templates(xi, policy)
    return book.total(templates, policy, where.seeds, number).mean / len(templates)


def benefit(book: Runs, where: Where, policy: str) -> float:
    """Median sharing benefit, mean over the runs in which anybody was a guest; 0 where nobody ever was."""
    found = [
        value
        for template in where.templates(policy=policy)
        for result in book.of(template, where.seeds)
        if (value := BENEFIT(result))
    ]
    return sum(found) / len(found) if found else 0.0


def paper_ratio(metric: str, key: str, policy: str) -> float:
    """The paper's number of a policy / that of its Castor."""
    row = PAPER[metric][key]
    return float(row[policy]) / float(row[CASTOR])


def counts(book: Runs, where: Where, number: Number) -> dict[str, tuple[int, int]]:
    """Other published policy -> (traces on which Castor's number is lower, on which it is higher)."""
    found = {}
    for policy in OTHERS:
        means = [
            book.ratio([template], policy, CASTOR, where.seeds, number).mean for template in where.templates()
        ]
        found[policy] = (sum(m > 1.0 + ALIKE for m in means), sum(m < 1.0 - ALIKE for m in means))
    return found
