"""The page: every number and every verdict is computed from the runs.

Rule: a ratio is of the same jobs under two policies, below 1 the first is the faster one. A VC is the sum
over its windows; over VCs it is the geometric mean, with a paired bootstrap that draws VCs, then windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

from cotenant.controller.sim.results import plots
from cotenant.controller.sim.results.paired import Ratio, ratio
from experiments.elastic.runs import (
    DEAR,
    ELASTIC,
    FREE,
    HEAVIER,
    LEASES_S,
    LOAD,
    ON_ONE,
    RIGID,
    VCS,
    WINDOW_JOBS,
    WINDOWS,
    Cell,
    Result,
)
from experiments.pcs.runs import PAPER
from experiments.shared.tables import header, row_of, said, saved

Number = Callable[[Result], float]
Kind = dict[str, Any]
"""All of a cell but its VC and window."""
BASE: Final = "srsf"
"""On the GPUs of the trace: what everything is set against."""
LEAST: Final = 0.01
"""A smaller difference is called none."""


def mean_s(result: Result) -> float:
    return result.mean_s


def median_s(result: Result) -> float:
    return result.median_s


def p99_s(result: Result) -> float:
    return result.p99_s


def busy_gpu_s(result: Result) -> float:
    return result.busy_gpu_s


def elastic(policy: str, **more: Any) -> Kind:
    return {"policy": policy, **more}


def traced(policy: str = BASE, **more: Any) -> Kind:
    return {"policy": policy, "size": "traced", **more}


def on_one(policy: str, **more: Any) -> Kind:
    return {"policy": policy, "size": "one", **more}


def fluid(policy: str, **more: Any) -> Kind:
    return {"policy": policy, "is_fluid": True, **more}


ROWS: Final = (
    *((f"`{policy}`", elastic(policy)) for policy in ELASTIC),
    *((f"rigid `{policy}`", traced(policy)) for policy in RIGID),
    *((f"`{policy}`, one GPU", on_one(policy)) for policy in ON_ONE),
)
COMPARED: Final = tuple(row for row in ROWS[: len(ELASTIC) + len(RIGID)] if row[1] != traced())
AT_ONCE: Final[Kind] = {"lease_s": 1.0, "costs": FREE}
"""Whole devices, and changes that cost nothing."""


class Runs:
    """Results by cell."""

    def __init__(self, results: Iterable[Result]) -> None:
        self._known = {one.cell: one for one in results}

    def windows(self, kind: Kind, vcs: Sequence[str] = VCS) -> list[Result]:
        cells = [Cell(vc=vc, window=window, **kind) for vc in vcs for window in range(WINDOWS)]
        return [self._known[cell] for cell in cells if cell in self._known]

    def ratio(self, one: Kind, other: Kind, of: Number = mean_s, vcs: Sequence[str] = VCS) -> Ratio | None:
        groups = []
        for vc in vcs:
            pairs = []
            for window in range(WINDOWS):
                a, b = (self._known.get(Cell(vc=vc, window=window, **kind)) for kind in (one, other))
                if a is not None and b is not None:
                    pairs.append((of(a), of(b)))
            groups.append([pairs])
        return ratio([group for group in groups if any(group)])

    def told(self, one: Kind, other: Kind, of: Number = mean_s, vcs: Sequence[str] = VCS) -> str:
        return told(self.ratio(one, other, of, vcs))


def surely_below(found: Ratio | None) -> bool:
    return found is not None and found.high is not None and found.high < 1.0 - LEAST


def surely_above(found: Ratio | None) -> bool:
    return found is not None and found.low is not None and found.low > 1.0 + LEAST


def told(found: Ratio | None) -> str:
    if found is None:
        return "-"
    bounds = "" if found.low is None else f" ({found.low:.2f} to {found.high:.2f})"
    return f"{found.mean:.2f}{bounds}"


def listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def text(results: Sequence[Result], asked: Sequence[Cell], machine: str, folder: Path) -> str:
    runs = Runs(results)
    sections = (_claims, _beside_rigid, _costs, _fluid, _why)
    parts = ["# Elastic jobs on whole devices", _answer(runs), _picture(runs, folder)]
    parts += [section(runs) for section in sections]
    return "\n\n".join([*parts, _method(results, asked, machine)]) + "\n"


# --- The answer ----------------------------------------------------------------------------------------


def _answer(runs: Runs) -> str:
    fastest = min(ELASTIC, key=lambda policy: _mean_of(runs, elastic(policy)))
    best = runs.ratio(elastic(fastest), traced())
    spent = [_percent(runs, elastic(policy), _resized_gpu_s) for policy in ELASTIC]
    return said(
        """**{verdict}** The fastest policy that resizes jobs, `{fastest}`, takes {best} of `{base}`'s mean
        completion time at load {load:g}, {heavy}. It needs {busy} of the device time, and resizes cost
        only {least:.2f} to {most:.2f} % of the time that devices are busy.""",
        verdict=_verdict(runs, best),
        fastest=fastest,
        best=told(best),
        base=BASE,
        load=LOAD,
        heavy=listed(
            [
                f"{runs.told(elastic(fastest, load=load), traced(load=load))} at load {load:g}"
                for load in HEAVIER
            ]
        ),
        least=min(spent, default=0.0),
        most=max(spent, default=0.0),
        busy=runs.told(elastic(fastest), traced(), busy_gpu_s),
    )


def _verdict(runs: Runs, best: Ratio | None) -> str:
    lost = [policy for policy in ELASTIC if surely_above(runs.ratio(elastic(policy), traced()))]
    slower = f" {listed([f'`{policy}`' for policy in lost])} are certainly slower." if lost else ""
    if surely_below(best):
        return f"Resizing makes jobs faster than rigid `{BASE}`.{slower}"
    return f"No policy that resizes jobs is certainly faster than `{BASE}` with rigid jobs.{slower}"


def _mean_of(runs: Runs, kind: Kind) -> float:
    found = runs.ratio(kind, traced())
    return float("inf") if found is None else found.mean


def _picture(runs: Runs, folder: Path) -> str:
    sets = {}
    for load in (LOAD, *HEAVIER):
        found = {name: runs.ratio({**kind, "load": load}, traced(load=load)) for name, kind in COMPARED}
        sets[f"load {load:g}"] = [
            plots.Range(name.replace("`", ""), one.mean, one.low or one.mean, one.high or one.mean)
            for name, one in found.items()
            if one is not None
        ]
    title = f"Mean completion time against rigid {BASE} (below 1: faster)"
    figure = plots.ranges(sets, title, f"mean completion time / that of {BASE}, 95 %", synthetic=False)
    folder.mkdir(parents=True, exist_ok=True)
    return saved(figure, folder, "answer", title)


# --- What was said -------------------------------------------------------------------------------------


class Claim(NamedTuple):
    """One thing that a paper or our own pages say, and what came of it."""

    source: str
    claim: str
    found: str
    verdict: str


def _lower(found: Ratio | None) -> str:
    """Whether a ratio is surely below 1."""
    if found is None:
        return "not run"
    return "holds" if surely_below(found) else "**does not hold**" if surely_above(found) else "undecided"


def _claims(runs: Runs) -> str:
    lines = ["## The papers' claims", "", said(CLAIMS_SAID), ""]
    lines += header(["source", "claim", "here", "verdict"])
    return "\n".join([*lines, *(row_of(claim) for claim in _all_claims(runs))])


def _all_claims(runs: Runs) -> Iterator[Claim]:
    for other, kind, times in (("SRTF", traced("srtf"), 2.7), ("Themis", elastic("themis"), 2.2)):
        found = runs.ratio(elastic("afs-l"), kind)
        claim = f"AFS has a lower mean than {other} (up to {times:g} times)"
        yield Claim("AFS", claim, told(found), _lower(found))
    paper = PAPER["figure_7"]
    for name, kind in (("Tiresias", traced()), ("Themis", elastic("themis"))):
        theirs = listed([f"{1.0 / times:.2f}" for times in paper["jct"][name]])
        found = runs.ratio(elastic("afs-l"), kind)
        claim = f"AFS has a lower mean than {name} ({theirs} of it on the three VCs)"
        yield Claim("PCS, 7a", claim, told(found), _lower(found))
    found = runs.ratio(elastic("pcs"), elastic("afs-l"))
    yield Claim(
        "PCS, 7", "the balanced configuration is slower than AFS", told(found), _lower(_turned(found))
    )
    short = [
        one.shortest_s
        for policy in ELASTIC
        for one in runs.windows(elastic(policy))
        if one.shortest_s is not None
    ]
    if short:
        held = "holds" if min(short) >= 300.0 - 1e-6 else "**does not hold**"
        claim = "no policy resizes a job within a lease of 300 s"
        yield Claim("our policies", claim, f"the first after {min(short):.0f} s", held)


def _turned(found: Ratio | None) -> Ratio | None:
    if found is None or found.low is None or found.high is None:
        return found
    return Ratio(1.0 / found.mean, 1.0 / found.high, 1.0 / found.low)


# --- Tables --------------------------------------------------------------------------------------------


def _beside_rigid(runs: Runs) -> str:
    lines = [f"## Beside rigid jobs, load {LOAD:g}", "", said(BESIDE_SAID, base=BASE), ""]
    lines += header(["policy", "mean", *VCS, "median", "P99", "later than fair"])
    for name, kind in ROWS:
        found = runs.windows(kind)
        if found:
            by_vc = [one.mean for vc in VCS if (one := runs.ratio(kind, traced(), vcs=[vc])) is not None]
            row = [runs.told(kind, traced()), *(f"{mean:.2f}" for mean in by_vc)]
            row += [runs.told(kind, traced(), of) for of in (median_s, p99_s)]
            lines.append(row_of([name, *row, f"{100.0 * fmean(one.late for one in found):.0f} %"]))
    return "\n".join(lines)


def _resized_gpu_s(result: Result) -> float:
    return result.resized.gpu_s


def _percent(runs: Runs, kind: Kind, of: Number) -> float:
    """Of the time that devices are busy."""
    found = runs.windows(kind)
    return 100.0 * sum(map(of, found)) / max(1.0, sum(one.busy_gpu_s for one in found))


def _costs(runs: Runs) -> str:
    titles = (
        "policy", "resizes per job", "% of busy time", f"% at {DEAR:g} times the cost",
        *(f"mean, lease {lease_s:,.0f} s" for lease_s in LEASES_S),
    )  # fmt: skip
    lines = ["## What resizing costs, and the lease", "", said(COSTS_SAID), "", *header(titles)]
    for policy in ELASTIC:
        kind, dear = elastic(policy), elastic(policy, costs=DEAR)
        found = runs.windows(kind)
        if found:
            resizes = sum(one.resizes for one in found) / sum(one.jobs for one in found)
            shares = (_percent(runs, each, _resized_gpu_s) for each in (kind, dear))
            leases = (runs.told(elastic(policy, lease_s=lease_s), kind) for lease_s in LEASES_S)
            cells = (f"{resizes:.2f}", *(f"{share:.2f}" for share in shares), *leases)
            lines.append(row_of([f"`{policy}`", *cells]))
    return "\n".join(lines)


def _fluid(runs: Runs) -> str:
    lines = ["## What whole devices and pauses take away", "", said(FLUID_SAID), ""]
    steps = ["whole devices, one host of 64", "eight hosts of 8", "loads, pauses, leases", "all three"]
    lines += header(["policy", *steps])
    for policy in ELASTIC:
        one_host, hosts = elastic(policy, **AT_ONCE, on_one_host=True), elastic(policy, **AT_ONCE)
        row = [
            runs.told(one_host, fluid(policy)),
            runs.told(hosts, one_host),
            runs.told(elastic(policy), hosts),
            runs.told(elastic(policy), fluid(policy)),
        ]
        lines.append(row_of([f"`{policy}`", *row]))
    return "\n".join(lines)


def _why(runs: Runs) -> str:
    widest = max(ELASTIC, key=lambda policy: _part(runs, policy))
    text = said(
        WHY,
        policy=widest,
        hosts=runs.told(elastic(widest, **AT_ONCE), elastic(widest, **AT_ONCE, on_one_host=True)),
        rigid=runs.told(on_one(BASE), traced()),
    )
    return f"## What limits resizing\n\n{text}"


def _part(runs: Runs, policy: str) -> float:
    found = runs.ratio(elastic(policy, **AT_ONCE), elastic(policy, **AT_ONCE, on_one_host=True))
    return 0.0 if found is None else found.mean


def _method(results: Sequence[Result], asked: Sequence[Cell], machine: str) -> str:
    missing = {*asked} - {one.cell for one in results}
    ran = said(
        """`make results-elastic` runs what is missing and writes this page: {there} of {asked} runs,
        {cpu:.0f} processor minutes, commits {commits}.{gone} {machine}""",
        there=len(asked) - len(missing),
        asked=len(asked),
        cpu=sum(one.cpu_s for one in results) / 60.0,
        commits=", ".join(sorted({one.commit for one in results})),
        gone=f" **Not run: {len(missing)}.**" if missing else "",
        machine=machine,
    )
    return f"## How this page was made\n\n{said(METHOD, jobs=WINDOW_JOBS, windows=WINDOWS)}\n\n{ran}"


# --- Words ---------------------------------------------------------------------------------------------

BESIDE_SAID: Final = """
    Each number is a ratio to `{base}` with rigid jobs of the size in the trace; below 1 is better. The mean
    is also given for each VC, and brackets hold 95 % intervals over windows. *One GPU* is what a policy that
    does not resize makes of a job submitted with `--gpus 1-N`. *Later than fair* counts the jobs that ended
    later than with an equal share of the devices.
"""
CLAIMS_SAID: Final = """
    Both papers compare policies that are all elastic, PCS in its fluid world. Here Tiresias is `srsf` and
    SRTF is `srtf`, both with rigid jobs. A verdict is *undecided* where the interval comes within one
    percent of 1.
"""
COSTS_SAID: Final = """
    A resize is charged with a save on the devices that the job leaves and a load on those it gets. The
    default lease is 300 s, or five times a job's load and pause where that is longer. Means are ratios to the
    same policy with the default lease.
"""
FLUID_SAID: Final = """
    In [the fluid world](../pcs/fluid/__init__.py) a job may hold a part of a device, and changes
    cost nothing. The table goes from there to whole devices step by step; each number is the mean completion
    time divided by that of the step before, and the last column has all steps together.
"""
WHY: Final = """
    A job is placed on one host and grows only there: on eight hosts of eight, `{policy}` takes {hosts} of
    the time that it takes on one large host. A rigid gang may span hosts, and loses no pace by that in
    this world, which flatters rigid jobs. A policy that never resizes runs a job with `--gpus 1-N` on one
    device: `srsf` then takes {rigid} of its time.
"""
METHOD: Final = """
    Eight hosts of eight devices, the engine and the policies of production, whole devices, and a charge for
    each load and save (`sim compare --world elastic`). The jobs are {windows} windows of {jobs} consecutive
    jobs of each of three Philly VCs, on a cluster that is empty at first. A job takes from 1 GPU up to the
    GPUs of the trace, at the pace of its model's measured curve (AFS, as published with PCS), which policies
    know, as they know lengths. Arrivals are stretched so that the work is what all devices could do meanwhile
    (load 1), or two and four times that. Nothing fails and nothing is shared.
"""
