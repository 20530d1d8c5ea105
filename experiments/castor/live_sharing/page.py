"""The page and the pictures about live runs in which devices are shared; and what makes the difference: the
same jobs in the simulator, in worlds that differ in one thing.

Rule: a sentence that depends on a result is chosen by the result; nothing here was written after the fact.
The worlds explain a result after it was measured; nothing of what ran was chosen by them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean, median
from typing import Final

from cotenant.controller.policies.base import Parameters
from cotenant.controller.timeline import render
from experiments.castor.live_sharing import foretold, jobs, pairs, texts
from experiments.castor.live_sharing.counted import beside_loads_s, busy_s
from experiments.castor.live_sharing.foretold import BASE, Side, beside, by_policy, found, mean_jct_s, named
from experiments.castor.live_sharing.run import CastorRun
from experiments.shared.live.errors import compare
from experiments.shared.live.run import DEVICES
from experiments.shared.tables import said

CASTOR: Final = "castor:part=false"
HEADS: Final = (
    "| | mean JCT: live | told | foreseen | makespan: live | told | foreseen "
    "| error, told: median, P90 | foreseen |"
)
RESULTS: Final = (
    "| live, s | mean JCT | median | mean, 1 device | 2 devices | makespan | mean wait | load | run "
    "| shared | yield |"
)
OTHERS: Final = ("sjf-ffs:part=false", "sjf", "fifo")

POLICIES: Final[Mapping[str, tuple[str, Parameters]]] = {
    "fifo": ("fifo", {}),
    "sjf": ("sjf", {}),
    "srtf": ("srtf", {}),
    "sjf-ffs:part=false": ("sjf-ffs", {"part": False}),
    "castor:part=false": ("castor", {"part": False}),
    "castor": ("castor", {}),
    "castor-cost": ("castor-cost", {}),
}

BUSY: Final = 1.5
"""Pairs of which the duty-cycle rule says more than this are two busy kinds."""


def write(runs: Sequence[CastorRun], planned: jobs.Planned, page: Path, pictures: Path) -> list[Path]:
    """What was written."""
    sides = beside(runs, planned.measured)
    drawn = _draw(sides, pictures)
    page.parent.mkdir(parents=True, exist_ok=True)
    links = {name: os.path.relpath(path.resolve(), page.parent.resolve()) for name, path in drawn.items()}
    page.write_text(text_of(sides, planned, links), encoding="utf-8")
    return [page, *drawn.values()]


def text_of(sides: Sequence[Side], planned: jobs.Planned, links: Mapping[str, str]) -> str:
    parts = [
        "# castor, live: real jobs that share CPU slots",
        "\n".join(_what(sides, planned)),
        "## Side by side",
        "\n".join(_results(sides)),
        "\n\n".join(verdicts(sides)),
        "\n\n".join([said(texts.SLOT), said(texts.SHOWS)]),
        "## The simulator's prediction",
        "\n".join(_predicted(sides)),
        said(texts.TOLD),
        said(texts.DIFFERENCES),
        _loads(sides),
        "## Pairs",
        "\n".join(pairs.tables(sides, planned.measured)),
        "## Where it comes from",
        "\n".join(why(sides, planned.measured)),
        "## Who was on which device",
        "\n\n".join(
            f"![{name}: who held which slot when, and who waited]({link})" for name, link in links.items()
        ),
        "## Every job",
        "\n".join(_every_job(sides)),
        "## How",
        "\n".join(_how(sides, planned)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _what(sides: Sequence[Side], planned: jobs.Planned) -> list[str]:
    rows, base = sides[0].run.rows, named(sides, BASE)
    names = ", ".join(f"`{side.name}`" for side in sides)
    span_s = planned.schedule[-1].at_s
    alone_s = foretold.alone_s(side.run for side in sides)
    trained = sum(alone_s[row.name] * row.gpus for row in rows)
    loaded = trained + sum(row.load_s * row.gpus for row in base.run.rows)
    lines = [
        said(
            texts.WHAT,
            jobs=len(rows),
            singles=sum(row.gpus == 1 for row in rows),
            gangs=sum(row.gpus > 1 for row in rows),
            seed=planned.seed,
            policies=names,
        ),
        "",
        said(texts.OFFERED, span_s=span_s, load=trained / span_s / DEVICES, loaded=loaded / span_s / DEVICES),
        "",
        "| kind | jobs | | devices | step alone, ms | busy | memory, MiB (half its batch) |",
        "| --- | --: | --- | --: | --: | --: | --: |",
    ]
    counts = Counter(arrival.kind for arrival in planned.schedule)
    for kind, one in planned.measured.items():
        memory = f"{one.memory_mib(1):.0f} ({one.memory_mib(2):.0f})"
        lines.append(
            f"| {kind} | {counts[kind]} | {jobs.ABOUT[kind]} | {jobs.KINDS[kind].gpus} | "
            f"{one.pace.step_s * 1e3:.1f} | {one.duty_cycle:.0%} | {memory} |"
        )
    return lines


# --- Side by side ------------------------------------------------------------------------------------


def _results(sides: Sequence[Side]) -> list[str]:
    lines = [
        RESULTS,
        "| --- |" + " --: |" * 10,
    ]
    alone_s = foretold.alone_s(side.run for side in sides)
    work_s = sum(alone_s[row.name] * row.gpus for row in sides[0].run.rows)
    for name, same in rows(sides):
        *cells, shared, done = means([measured(side, work_s) for side in same])
        lines.append(
            f"| {name} | {' | '.join(f'{cell:.1f}' for cell in cells)} | {shared:.0f} | {done:.2f} |"
        )
    return [*lines, "", said(texts.YIELD)]


def rows(sides: Sequence[Side]) -> list[tuple[str, Sequence[Side]]]:
    """A policy each; of several runs first their mean, then each of them."""
    found: list[tuple[str, Sequence[Side]]] = []
    for name, same in by_policy(sides).items():
        if len(same) == 1:
            found.append((name, same))
        else:
            found.append((f"{name}, mean of {len(same)} runs", same))
            found += [(f"run {number} of it", [side]) for number, side in enumerate(same, 1)]
    return found


def means(columns: Sequence[Sequence[float]]) -> list[float]:
    return [fmean(values) for values in zip(*columns, strict=True)]


def measured(side: Side, work_s: float) -> list[float]:
    """The cells of a run."""
    live = side.live
    return [
        mean_jct_s(side),
        median(job.jct_s for job in live),
        *(fmean(job.jct_s for job in live if (job.gpus > 1) == is_gang) for is_gang in (False, True)),
        side.makespan_s,
        *(fmean(getattr(job, part) for job in live) for part in ("wait_s", "load_s", "run_s")),
        sum(any(a.co_tenants for a in row.attempts) for row in side.run.rows),
        work_s / busy_s(side.run.rows),
    ]


def verdicts(sides: Sequence[Side]) -> list[str]:
    """Who is first, by how much, and whether that is more than two runs of one policy differ by."""
    castors = [side for side in sides if side.run.label == CASTOR]
    if not castors:
        return []
    told, floor = [], noise_of(castors)
    if len(castors) > 1:
        one, again = castors[:2]
        noise = compare("again", one.live, again.live)
        told.append(
            said(
                texts.NOISE,
                policy=CASTOR,
                mean=floor,
                makespan=_apart(one.makespan_s, again.makespan_s),
                median=noise.median,
                p90=noise.p90,
            )
        )
    others = (other for name in OTHERS if (other := found(sides, name)) is not None)
    return [*told, *(_against(castors, other, floor) for other in others)]


def _against(castors: Sequence[Side], other: Side, noise: float) -> str:
    """All runs of castor, job by job their mean: no run is chosen."""
    mine = [fmean(job.jct_s for job in same) for same in zip(*(side.live for side in castors), strict=True)]
    theirs = [job.jct_s for job in other.live]
    change = fmean(mine) / fmean(theirs) - 1.0
    if abs(change) <= max(noise, 0.01):
        word = "no different (within the noise) from"
    else:
        word = "below" if change < 0.0 else "ABOVE"
    worst = max((a - b, job.name) for a, b, job in zip(mine, theirs, other.live, strict=True))
    makespan_s = fmean(side.makespan_s for side in castors)
    return said(
        texts.AGAINST,
        runs=f"{len(castors)} runs" if len(castors) > 1 else "run",
        word=word,
        other=other.name,
        mine_s=fmean(mine),
        theirs_s=fmean(theirs),
        change=change,
        sooner=sum(a < b for a, b in zip(mine, theirs, strict=True)),
        jobs=len(mine),
        worst=worst[1],
        worst_s=worst[0],
        makespan_s=makespan_s,
        their_makespan_s=other.makespan_s,
        later=makespan_s / other.makespan_s - 1.0,
    )


def noise_of(same: Sequence[Side]) -> float:
    """How far mean JCTs of two runs of one policy are apart; a guess where there is one run."""
    return _apart(mean_jct_s(same[0]), mean_jct_s(same[1])) if len(same) > 1 else 0.01


def _apart(one: float, other: float) -> float:
    return abs(other / one - 1.0)


# --- The simulator -----------------------------------------------------------------------------------


def _predicted(sides: Sequence[Side]) -> list[str]:
    lines = [
        HEADS,
        "| --- | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for name, same in rows(sides):
        *cells, told, told_p90, foreseen, foreseen_p90 = means([_foretold(side) for side in same])
        jct_s, makespan_s = (
            " | ".join(f"{cell:{form}}" for cell in part)
            for part, form in ((cells[:3], ".1f"), (cells[3:], ".0f"))
        )
        errors = f"{told:.1%}, {told_p90:.1%} | {foreseen:.1%}, {foreseen_p90:.1%}"
        lines.append(f"| {name} | {jct_s} | {makespan_s} | {errors} |")
    return [*lines, "", *_order(sides)]


def _foretold(side: Side) -> list[float]:
    predicted = (side.told, side.foreseen)
    errors = [compare(side.name, side.live, p.jobs) for p in predicted]
    return [
        mean_jct_s(side),
        *(p.mean_jct_s for p in predicted),
        side.makespan_s,
        *(p.makespan_s for p in predicted),
        *(value for e in errors for value in (e.median, e.p90)),
    ]


def _loads(sides: Sequence[Side]) -> str:
    """Of those runs in which anybody shared."""
    shared = [side for side in sides if foretold.shares(side.run)]
    if not shared:
        return ""
    spent_s = [beside_loads_s(side.run.rows) for side in shared]
    return said(
        texts.LOADS,
        seconds=", ".join(f"{seconds:.0f} s" for seconds in spent_s),
        means=", ".join(f"{s / len(side.live):.1f} s" for s, side in zip(spent_s, shared, strict=True)),
        runs=", ".join(f"`{side.name}`" for side in shared),
    )


def _order(sides: Sequence[Side]) -> list[str]:
    """Whether the simulator would have chosen the same policy: by means over all runs of each, and only
    where policies differ by more than two runs of one do."""
    each = by_policy(sides)
    if len(each) < 2:
        return []
    live = {name: fmean(map(mean_jct_s, same)) for name, same in each.items()}
    noise = noise_of([side for side in sides if side.run.label == CASTOR])
    sure = [
        (a, b)
        for a, b in combinations(sorted(live, key=live.__getitem__), 2)
        if live[b] > live[a] * (1 + noise)
    ]
    lines = [
        said(
            texts.ORDER,
            live=_ordered(live),
            noise=noise,
            sure=len(sure),
            pairs=len(each) * (len(each) - 1) // 2,
        ),
        "",
    ]
    for what in ("told", "foreseen"):
        means_s = {name: fmean(s.predicted(what).mean_jct_s for s in same) for name, same in each.items()}
        kept = sum(means_s[a] < means_s[b] for a, b in sure)
        lines += [f"Simulated, {what}: {_ordered(means_s)}; {kept} of these {len(sure)} as live.", ""]
    return lines[:-1]


def _ordered(values_s: Mapping[str, float]) -> str:
    return " < ".join(f"{name} ({values_s[name]:.1f})" for name in sorted(values_s, key=values_s.__getitem__))


# --- Every job, and how ------------------------------------------------------------------------------


def _every_job(sides: Sequence[Side]) -> list[str]:
    heads = " | ".join(f"{side.name}: live (told)" for side in sides)
    lines = [f"| job | devices | arrives, s | alone, s | {heads} |", "| --- |" + " --: |" * (3 + len(sides))]
    alone_s = foretold.alone_s(side.run for side in sides)
    for number, job in enumerate(sides[0].live):
        cells = " | ".join(
            f"{side.live[number].jct_s:.1f} ({side.told.jobs[number].jct_s:.1f})" for side in sides
        )
        lines.append(f"| {job.name} | {job.gpus} | {job.arrived_s:.1f} | {alone_s[job.name]:.1f} | {cells} |")
    return [*lines, "", "JCT in seconds; alone: the shortest training time without a co-tenant."]


def _how(sides: Sequence[Side], planned: jobs.Planned) -> list[str]:
    machine = sides[0].run.machine
    facts = ", ".join(f"{key} {value}" for key, value in machine.items() if key != "commit")
    others = ", ".join(f"{side.run.others_ratio:.1%}" for side in sides)
    commits = ", ".join(dict.fromkeys(str(side.run.machine["commit"]) for side in sides))
    lines = [
        said(texts.HOW, plan_s=jobs.EACH_S, memory_mib=sides[0].run.slot_memory_mib),
        "",
        said(texts.BUSY, others=others),
    ]
    lines += [
        f"While {kind} was measured alone: {note}."
        for kind, one in planned.measured.items()
        for note in one.notes
    ]
    return [*lines, "", f"Machine: {facts}. Commit: {commits}."]


def _draw(sides: Sequence[Side], folder: Path) -> dict[str, Path]:
    """One picture per policy, of its first run."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {}
    for side in sides:
        if side.run.timeline is not None and not side.is_again:
            plain = side.name.replace(":part=false", "-as-published")
            path = folder / f"live-castor-{plain}.svg"
            path.write_text(render(side.run.timeline), encoding="utf-8")
            drawn[side.name] = path
    return drawn


def why(sides: Sequence[Side], measured: foretold.Measured) -> list[str]:
    """A table: mean JCT and makespan of each policy in each world."""
    base = named(sides, BASE)
    alone_s = foretold.alone_s(side.run for side in sides)
    known = foretold.known(base.run, [side.run for side in sides], measured)
    worlds = worlds_of(measured, known)
    lines = [said(texts.WHY), "", f"| mean JCT, s (makespan) | {' | '.join(worlds)} |"]
    lines.append("| --- |" + " --: |" * len(worlds))
    for name, label in POLICIES.items():
        cells = []
        for xi in worlds.values():
            found = foretold.foretell(base.run, measured, alone_s, xi, label=label)
            cells.append(f"{found.mean_jct_s:.1f} ({found.makespan_s:.0f})")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def worlds_of(measured: Mapping[str, jobs.Measured], known: foretold.Xi) -> dict[str, foretold.Xi]:
    """xi of every pair of kinds, world by world."""
    by_rule = foretold.rule(measured)
    pairs = [(one, other) for one in measured for other in measured]
    return {
        "xi as measured": known,
        "by the duty-cycle rule": by_rule,
        "2: taking turns": dict.fromkeys(pairs, 2.0),
        "1: nothing lost": dict.fromkeys(pairs, 1.0),
        "3 for two busy kinds": {p: 3.0 if by_rule[p] > BUSY else by_rule[p] for p in pairs},
    }
