"""The page: every number and every verdict is computed from the runs, but for `BY_HAND`, which says so.

Rule: a ratio is of the same jobs under two policies, below 1 the first is the faster one. A VC is the sum
over its windows; over VCs it is the geometric mean, with a paired bootstrap that draws VCs, then windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean
from typing import Any, Final, NamedTuple

from cotenant.controller.sim.results.paired import Ratio, ratio
from experiments.elastic.runs import (
    CLUSTER,
    DEAR,
    ELASTIC,
    FLUID,
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
    lot,
)
from experiments.pcs.runs import PAPER
from experiments.shared.tables import header, row_of, said

Number = Callable[[Result], float]
Kind = dict[str, Any]
"""All of a cell but its VC and window."""
BASE: Final = "srsf"
"""On the GPUs of the trace: what everything is set against."""
LEAST: Final = 0.01
"""A smaller difference is called none."""
HOUR_S: Final = 3600.0
DAY_S: Final = 86400.0


def mean_s(result: Result) -> float:
    return result.mean_s


def median_s(result: Result) -> float:
    return result.median_s


def p99_s(result: Result) -> float:
    return result.p99_s


def makespan_s(result: Result) -> float:
    return result.makespan_s


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
    *((f"`{policy}`, GPUs of the trace", traced(policy)) for policy in RIGID),
    *((f"`{policy}`, one GPU", on_one(policy)) for policy in ON_ONE),
)
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


def text(results: Sequence[Result], asked: Sequence[Cell], machine: str) -> str:
    runs = Runs(results)
    sections = (
        _answer, _claims, _world, _beside_rigid, _loads, _costs, _fairness, _leases, _pauses, _fluid, _losses,
    )  # fmt: skip
    parts = ["# Elastic jobs on whole devices", *(section(runs) for section in sections)]
    return "\n\n".join([*parts, BY_HAND, _method(results, asked, machine)]) + "\n"


# --- The answer ----------------------------------------------------------------------------------------


def _answer(runs: Runs) -> str:
    fastest = min(ELASTIC, key=lambda policy: _mean_of(runs, elastic(policy)))
    best = runs.ratio(elastic(fastest), traced())
    rigid = min(RIGID, key=lambda policy: _mean_of(runs, traced(policy)))
    spent = [_percent(runs, elastic(policy), _resized_gpu_s) for policy in ELASTIC]
    widest = max(ELASTIC, key=lambda policy: _part(runs, policy))
    return said(
        """**{verdict}** The fastest policy that resizes is `{fastest}`: {best} of the mean completion time of
        `{base}` on the GPUs of the trace at load {load:g}, {heavy}; the fastest rigid one is `{rigid}`. By VC
        `{fastest}` takes {by_vc}. It does the work in {busy} of the device time, and in {one} of the time
        that `{base}` takes where the same jobs, submitted with `--gpus 1-N`, get one GPU. Saves and loads for
        resizes are {least:.2f} to {most:.2f} % of the time that devices are busy. With changes for free
        `{fastest}` takes {host} of the time on eight hosts of eight that it takes on one of 64, `{widest}`
        {widest_host}: a job grows only where it is.""",
        verdict=_verdict(runs, fastest, best),
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
        rigid=rigid,
        by_vc=listed([f"{runs.told(elastic(fastest), traced(), vcs=[vc])} on {vc}" for vc in VCS]),
        least=min(spent, default=0.0),
        most=max(spent, default=0.0),
        busy=runs.told(elastic(fastest), traced(), busy_gpu_s),
        one=runs.told(elastic(fastest), on_one(BASE)),
        host=runs.told(elastic(fastest, **AT_ONCE), elastic(fastest, **AT_ONCE, on_one_host=True)),
        widest=widest,
        widest_host=runs.told(elastic(widest, **AT_ONCE), elastic(widest, **AT_ONCE, on_one_host=True)),
    )


def _verdict(runs: Runs, fastest: str, best: Ratio | None) -> str:
    lost = [policy for policy in ELASTIC if surely_above(runs.ratio(elastic(policy), traced()))]
    slower = f" Surely slower: {listed([f'`{policy}`' for policy in lost])}." if lost else ""
    if surely_below(best):
        return f"`{fastest}` is surely faster than rigid `{BASE}`.{slower}"
    return f"No policy that resizes is surely faster than rigid `{BASE}` at load {LOAD:g}.{slower}"


def _mean_of(runs: Runs, kind: Kind) -> float:
    found = runs.ratio(kind, traced())
    return float("inf") if found is None else found.mean


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
    return "met" if surely_below(found) else "**not met**" if surely_above(found) else "undecided"


def _claims(runs: Runs) -> str:
    claims = list(_all_claims(runs))
    return "\n".join(
        [
            "## What was to be met",
            "",
            *header(["source", "claim", "found", "verdict"]),
            *(row_of(claim) for claim in claims),
            "",
            said(
                CLAIMS_SAID,
                flows=runs.told(fluid("srsf"), fluid("afs-l")),
                waits=runs.told(fluid("fifo"), fluid("afs-l")),
                theirs=listed([f"{times:.0f}" for times in PAPER["figure_7"]["jct"]["FIFO"]]),
            ),
        ]
    )


def _all_claims(runs: Runs) -> Iterator[Claim]:
    for other, kind, times in (("SRTF", traced("srtf"), 2.7), ("Themis", elastic("themis"), 2.2)):
        found = runs.ratio(elastic("afs-l"), kind)
        best = max((1.0 / each.mean for each in _by_vc(runs, elastic("afs-l"), kind)), default=0.0)
        claim = f"lower mean than {other} (up to {times:g} times)"
        yield Claim("AFS", claim, f"{told(found)}, at best {best:.2f} times", _lower(found))
    paper = PAPER["figure_7"]
    for name, kind in (("Tiresias", traced()), ("Themis", elastic("themis"))):
        for vc in VCS:
            theirs = paper["jct"][name][paper["workloads"].index(vc)]
            found = runs.ratio(elastic("afs-l"), kind, vcs=[vc])
            yield Claim(
                "PCS, 7a",
                f"{vc}: AFS lower than {name} ({1.0 / theirs:.2f} of it)",
                told(found),
                _lower(found),
            )
    found = runs.ratio(elastic("pcs"), elastic("afs-l"))
    yield Claim(
        "PCS, 7", "the balanced configuration is slower than AFS", told(found), _lower(_turned(found))
    )
    for policy in ELASTIC:
        short = [one.shortest_s for one in runs.windows(elastic(policy)) if one.shortest_s is not None]
        if short:
            yield Claim(
                "[elastic.md](../../docs/elastic.md)",
                f"`{policy}`: nobody is resized within a lease of 300 s",
                f"the first after {min(short):.0f} s", "met" if min(short) >= 300.0 - 1e-6 else "**not met**",
            )  # fmt: skip


def _turned(found: Ratio | None) -> Ratio | None:
    if found is None or found.low is None or found.high is None:
        return found
    return Ratio(1.0 / found.mean, 1.0 / found.high, 1.0 / found.low)


def _by_vc(runs: Runs, one: Kind, other: Kind) -> list[Ratio]:
    return [found for vc in VCS if (found := runs.ratio(one, other, vcs=[vc])) is not None]


# --- Tables --------------------------------------------------------------------------------------------


def _world(runs: Runs) -> str:
    lines = [
        "## The world", "", said(WORLD, jobs=WINDOW_JOBS, windows=WINDOWS), "",
        *header(["VC", "jobs above one GPU", "their part of the work", "offered by rigid jobs"]),
    ]  # fmt: skip
    for vc in VCS:
        found = runs.windows(traced(), [vc])
        if found:
            lines.append(
                row_of(
                    [
                        vc,
                        f"{100.0 * fmean(one.wide_jobs / one.jobs for one in found):.0f} %",
                        f"{100.0 * fmean(one.wide_work for one in found):.0f} %",
                        f"{fmean(_offered(one) for one in found):.2f}",
                    ]
                )
            )
    return "\n".join(lines)


def _offered(result: Result) -> float:
    return lot(result.cell.vc, result.cell.window, LOAD, 1.0).traced.offered_load(CLUSTER.gpus)


def _beside_rigid(runs: Runs) -> str:
    lines = [f"## Beside rigid jobs, load {LOAD:g}", "", said(BESIDE_SAID, base=BASE), ""]
    lines += header(["VC", "policy", "mean, h", "median, h", "P99, d", "makespan, d", "mean to `srsf`"])
    for vc in VCS:
        for name, kind in ROWS:
            found = runs.windows(kind, [vc])
            if found:
                lines.append(
                    row_of(
                        [
                            vc, name, f"{fmean(map(mean_s, found)) / HOUR_S:.1f}",
                            f"{fmean(map(median_s, found)) / HOUR_S:.1f}",
                            f"{fmean(map(p99_s, found)) / DAY_S:.1f}",
                            f"{fmean(map(makespan_s, found)) / DAY_S:.1f}",
                            runs.told(kind, traced(), vcs=[vc]),
                        ]
                    )
                )  # fmt: skip
    lines += ["", "All three VCs, to `srsf` on the GPUs of the trace:", ""]
    lines += header(["policy", "mean", "median", "P99", "makespan", "device time"])
    for name, kind in ROWS:
        row = [runs.told(kind, traced(), of) for of in (mean_s, median_s, p99_s, makespan_s, busy_gpu_s)]
        lines.append(row_of([name, *row]))
    return "\n".join(lines)


def _loads(runs: Runs) -> str:
    lines = ["## Heavier loads", "", said(LOADS_SAID), ""]
    lines += header(
        ["VC", "policy", *(f"{what}, load {load:g}" for load in HEAVIER for what in ("mean", "P99"))]
    )
    for vcs in (*((vc,) for vc in VCS), VCS):
        for name, kind in ROWS[: len(ELASTIC) + len(RIGID)]:
            if kind == traced():
                continue
            row = [
                runs.told({**kind, "load": load}, traced(load=load), of, vcs)
                for load in HEAVIER
                for of in (mean_s, p99_s)
            ]
            lines.append(row_of([vcs[0] if len(vcs) == 1 else "all", name, *row]))
    return "\n".join(lines)


def _resized_gpu_s(result: Result) -> float:
    return result.resized.gpu_s


def _preempted_gpu_s(result: Result) -> float:
    return result.preempted.gpu_s


def _percent(runs: Runs, kind: Kind, of: Number) -> float:
    """Of the time that devices are busy."""
    found = runs.windows(kind)
    return 100.0 * sum(map(of, found)) / max(1.0, sum(one.busy_gpu_s for one in found))


def _costs(runs: Runs) -> str:
    titles = (
        "policy", "resizes per job", "per job above one GPU", "most of one", "GPU-h each", "% of busy",
        "preemptions per job", "% of busy", "ms per event",
    )  # fmt: skip
    lines = ["## What resizes cost", "", said(COSTS_SAID, load=LOAD), "", *header(titles)]
    for name, kind in ROWS[: len(ELASTIC) + len(RIGID)]:
        found = runs.windows(kind)
        if not found:
            continue
        jobs, resizes = sum(one.jobs for one in found), sum(one.resizes for one in found)
        gpu_h = sum(map(_resized_gpu_s, found)) / HOUR_S
        lines.append(
            row_of(
                [
                    name,
                    f"{resizes / jobs:.2f}",
                    f"{resizes / sum(one.wide_jobs for one in found):.2f}",
                    str(max(one.most_resizes for one in found)),
                    f"{gpu_h / resizes:.3f}" if resizes else "-",
                    f"{_percent(runs, kind, _resized_gpu_s):.2f}",
                    f"{sum(one.preemptions for one in found) / jobs:.2f}",
                    f"{_percent(runs, kind, _preempted_gpu_s):.2f}",
                    f"{fmean(one.decision_ms for one in found):.2f}",
                ]
            )
        )
    return "\n".join(lines)


def _fairness(runs: Runs) -> str:
    lines = ["## Fairness", "", said(FAIR_SAID), ""]
    lines += header(
        ["policy", "rho, median", "rho, P99", "later than fair", "Jain", "P99 in the fluid world"]
    )
    for name, kind in ROWS:
        found = runs.windows(kind)
        if not found:
            continue
        flows = runs.windows(fluid(kind["policy"])) if kind.get("size") != "one" else []
        lines.append(
            row_of(
                [
                    name,
                    f"{fmean(one.rho_p50 for one in found):.2f}",
                    f"{fmean(one.rho_p99 for one in found):.1f}",
                    f"{100.0 * fmean(one.late for one in found):.0f} %",
                    f"{fmean(one.jain for one in found):.2f}",
                    f"{fmean(one.rho_p99 for one in flows):.1f}" if flows else "-",
                ]
            )
        )
    return "\n".join(lines)


def _leases(runs: Runs) -> str:
    lines = ["## The lease", "", said(LEASE_SAID), ""]
    lines += header(["policy", *(f"{lease_s:,.0f} s" for lease_s in LEASES_S), "resizes per job", "default"])
    for policy in ELASTIC:
        kinds = [elastic(policy, lease_s=lease_s) for lease_s in LEASES_S]
        lines.append(
            row_of(
                [
                    f"`{policy}`",
                    *(runs.told(kind, elastic(policy)) for kind in kinds),
                    " / ".join(_resizes(runs, kind) for kind in kinds),
                    _resizes(runs, elastic(policy)),
                ]
            )
        )
    return "\n".join(lines)


def _resizes(runs: Runs, kind: Kind) -> str:
    found = runs.windows(kind)
    return f"{sum(one.resizes for one in found) / sum(one.jobs for one in found):.2f}" if found else "-"


def _pauses(runs: Runs) -> str:
    lines = ["## Dear loads and pauses", "", said(PAUSE_SAID, dear=DEAR, base=BASE), ""]
    titles = [
        "policy",
        "mean, to x 1",
        "resizes, % of busy",
        "preemptions, % of busy",
        "to `srsf` at the same",
    ]
    lines += header(titles)
    for name, kind in ROWS[: len(ELASTIC) + len(RIGID)]:
        dear = {**kind, "costs": DEAR}
        lines.append(
            row_of(
                [
                    name,
                    runs.told(dear, kind),
                    f"{_percent(runs, dear, _resized_gpu_s):.2f}",
                    f"{_percent(runs, dear, _preempted_gpu_s):.2f}",
                    runs.told(dear, traced(costs=DEAR)),
                ]
            )
        )
    return "\n".join(lines)


def _fluid(runs: Runs) -> str:
    lines = ["## What whole devices and pauses take away", "", said(FLUID_SAID), ""]
    steps = ["whole devices, one host of 64", "eight hosts of 8", "loads, pauses, leases", "all three"]
    lines += header(["policy", *steps])
    for policy in FLUID:
        if policy in ELASTIC:
            one_host, hosts = elastic(policy, **AT_ONCE, on_one_host=True), elastic(policy, **AT_ONCE)
            row = [
                runs.told(one_host, fluid(policy)),
                runs.told(hosts, one_host),
                runs.told(elastic(policy), hosts),
                runs.told(elastic(policy), fluid(policy)),
            ]
        else:
            row = ["-", "-", "-", runs.told(traced(policy), fluid(policy))]
        lines.append(row_of([f"`{policy}`", *row]))
    lines += ["", said(ORDER_SAID), ""]
    lines += header(
        ["VC", "policy", "whole VC, fluid (PCS's figure 7)", "windows, fluid", "windows, whole devices"]
    )
    names = {"srsf": "Tiresias", "themis": "Themis", "fifo": "FIFO"}
    for vc in VCS:
        for policy in FLUID:
            if policy == "afs-l":
                continue
            theirs = PAPER["figure_7"]["jct"].get(names.get(policy, ""))
            here = elastic(policy) if policy in ELASTIC else traced(policy)
            lines.append(
                row_of(
                    [
                        vc,
                        f"`{policy}`",
                        f"{theirs[PAPER['figure_7']['workloads'].index(vc)]:.2f}" if theirs else "-",
                        runs.told(fluid(policy), fluid("afs-l"), vcs=[vc]),
                        runs.told(here, elastic("afs-l"), vcs=[vc]),
                    ]
                )
            )
    return "\n".join(lines)


def _losses(runs: Runs) -> str:
    lost = []
    for load in (LOAD, *HEAVIER):
        for policy in ELASTIC:
            for vc in VCS:
                found = runs.ratio(elastic(policy, load=load), traced(load=load), vcs=[vc])
                if found is not None and surely_above(found):
                    lost.append((found.mean, f"`{policy}` on {vc} at load {load:g}: {told(found)}"))
    lines = ["## Where it loses, and why", ""]
    if not lost:
        lines += ["Nowhere surely to `srsf` on the GPUs of the trace.", ""]
    else:
        lines += ["Surely slower than `srsf` on the GPUs of the trace:", ""]
        lines += [f"* {line}" for _, line in sorted(lost, reverse=True)]
        lines += [""]
    widest = max(ELASTIC, key=lambda policy: _part(runs, policy))
    lines += [
        said(
            WHY,
            policy=widest,
            hosts=runs.told(elastic(widest, **AT_ONCE), elastic(widest, **AT_ONCE, on_one_host=True)),
            rigid=runs.told(on_one(BASE), traced()),
            late=100.0 * fmean([one.late for one in runs.windows(elastic("max-min"))] or [0.0]),
        )
    ]
    return "\n".join(lines)


def _part(runs: Runs, policy: str) -> float:
    found = runs.ratio(elastic(policy, **AT_ONCE), elastic(policy, **AT_ONCE, on_one_host=True))
    return 0.0 if found is None else found.mean


def _method(results: Sequence[Result], asked: Sequence[Cell], machine: str) -> str:
    missing = {*asked} - {one.cell for one in results}
    ran = said(
        """`make results-elastic` (`python experiments/elastic/results_elastic.py`) runs what is missing and
        writes this page: {there} of {asked} runs, {cpu:.0f} processor minutes, commits {commits}. {gone}
        {machine}""",
        there=len(asked) - len(missing),
        asked=len(asked),
        cpu=sum(one.cpu_s for one in results) / 60.0,
        commits=", ".join(sorted({one.commit for one in results})),
        gone=f"**Not run: {len(missing)}.**" if missing else "",
        machine=machine,
    )
    return f"## Method\n\n{ran}\n\n{METHOD}"


# --- Words ---------------------------------------------------------------------------------------------

WORLD: Final = """
    Eight hosts of eight devices, the engine and the policies of production: whole devices, every start
    loads, every stop saves, and both are charged (`sim compare --world elastic`). {windows} windows of
    {jobs} consecutive jobs of each of three Philly VCs, the first from its first job on, on a cluster that
    is empty at first. A job takes 1 up to the GPUs of the trace, at the pace of its model's measured curve
    (AFS, as published with PCS; the seed draws models), which policies know, as they do lengths. Arrivals
    are stretched so that the work, as one device alone does it, is what all devices could do meanwhile
    (load 1), or two and four times that. Rigid jobs on the GPUs of the trace offer more, for what does not
    scale is work as well:
"""
BESIDE_SAID: Final = """
    The same jobs in each row. Below, and in the column of ratios, 1 is `{base}` with rigid jobs of the
    traced size; intervals are of windows, 95 %. `pcs` is PCS's published balanced configuration of the VC
    with `elastic=true`. Rigid on one GPU is what a policy that does not resize makes of a job with `--gpus
    1-N`; `srtf` is `srsf` there.
"""
LOADS_SAID: Final = """
    The same windows with arrivals closer together. To `srsf` on the GPUs of the trace at the same load.
"""
CLAIMS_SAID: Final = """
    AFS (NSDI '21) and PCS (NSDI '24) compare where every policy is elastic, PCS's figure in the fluid world
    and on whole VCs. Here Tiresias is `srsf` and SRTF `srtf`, rigid, on the GPUs of the trace. *Undecided*:
    the interval reaches to within one percent of 1. In the fluid world `srsf` takes {flows} of AFS's time on
    these windows. Whole VCs have another backlog: `fifo` takes {theirs} times as long as AFS there, {waits}
    here.
"""
COSTS_SAID: Final = """
    Load {load:g}, all windows. A resize is charged with the save, on the devices that the job leaves, and
    with the load that follows, on those it gets; a preemption likewise. The events are all of a run, idle
    ones too.
"""
FAIR_SAID: Final = """
    Finish-time fairness as in [the simulator](../../docs/simulator.md): rho is JCT / (time alone on the
    GPUs of the trace x contention), the same reference in each row; above 1 a job ended later than
    with its equal share. Means over windows. A P99 of two hundred jobs is two of them: short ones, that
    waited.
"""
LEASE_SAID: Final = """
    Flat leases in place of the default, 300 s or five times a job's load and pause (about 500 s with
    these): mean completion time over that with the default, and resizes per job. The world charges loads
    and pauses as before.
"""
PAUSE_SAID: Final = """
    All load and pause times x {dear:g} (loads of 400 s, pauses of 31 s on average, and so default leases of
    36 min): over the same policy at x 1, and over `{base}` at the same prices.
"""
FLUID_SAID: Final = """
    The same windows in [the fluid world](../../docs/simulator.md#the-fluid-world), where shares flow and
    nothing costs anything (there `srsf` and `fifo` are elastic too), then step by step towards whole
    devices: mean completion time over that of the step before. The first two steps have no loads, no pauses
    and leases of a second.
"""
ORDER_SAID: Final = """
    Mean completion time over that of `afs-l` in the same world. PCS's own figures, reproduced in
    [pcs.md](pcs.md), are of whole VCs at their own load.
"""
WHY: Final = """
    **The host.** A job is placed on one host and grows only there, so that one of 16 GPUs never has more
    than eight, and one that began on two devices keeps two while others stand free elsewhere: `{policy}`
    takes {hosts} of its time on one large host, with changes for free. Rigid gangs are spread over hosts at
    no loss of pace in this world, which flatters them. **A range that the policy does not use**: a job with
    `--gpus 1-N` under a rigid policy runs on one device, and `srsf` then takes {rigid} of its time. **Whole
    devices** cannot be divided among more jobs than there are: `max-min` admits in order of arrival, so
    short jobs wait behind a full cluster ({late:.0f} % end later than fair), where in the fluid world each
    has its part at once.
"""
BY_HAND: Final = """\
Run by hand, once: `themis` counts what a job has done as seconds of training, on however many devices, so
one that runs looks further behind than it is, and it looks at the first 64 that wait. Counted exactly, and of
all that wait, jobs changed places at the end of every lease: on the first 300 jobs of 0e4a51 15,304
preemptions in place of 22, and a mean of 107.8 h in place of 102.2; on those of b436b2 200 h in place of 237.
It stays as it is; `themis` in `controller/papers/literature/elastic/division.py` says so."""
METHOD: Final = """\
* Exact estimates, seed 0, nothing fails and nothing is shared. MAX is what the trace says: nobody grows
  beyond what was asked for. Networks cost what the curves say, whichever hosts the devices are on.
* Intervals are paired bootstraps; five windows of a VC make a rough one. *Sure* means that all of it is more
  than one percent off.
* By hand: `cotenant sim compare philly/b436b2 --world elastic --policies afs-l,srsf --jobs 200`."""
