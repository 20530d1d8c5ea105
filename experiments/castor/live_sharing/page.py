"""The page and the picture about live runs in which devices are shared.

Rule: a sentence that depends on a result is chosen by the result; nothing here was written after the fact.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean, median
from typing import Final

from cotenant.controller.timeline import render
from experiments.castor.live_sharing import foretold, jobs, pairs, texts
from experiments.castor.live_sharing.counted import beside_loads_s, busy_s
from experiments.castor.live_sharing.foretold import BASE, Side, beside, by_policy, found, mean_jct_s, named
from experiments.castor.live_sharing.run import CastorRun
from experiments.shared.live.errors import compare
from experiments.shared.live.run import DEVICES
from experiments.shared.tables import header, row_of, said

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
        "# Castor live: real jobs that share CPU slots",
        _answer(sides),
        *(f"![{name}: which job held which slot, and which waited]({link})" for name, link in links.items()),
        "## Side by side",
        "\n".join(_results(sides)),
        said(texts.SLOT),
        "## The simulator's prediction",
        "\n".join(_predicted(sides)),
        _told(sides),
        "## What sharing was worth",
        said(texts.PAIRS),
        "\n".join(pairs.table(sides)),
        "## How this page was made",
        "\n".join(_what(sides, planned)),
        "\n".join(_how(sides, planned)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _what(sides: Sequence[Side], planned: jobs.Planned) -> list[str]:
    job_rows, base = sides[0].run.rows, named(sides, BASE)
    span_s = planned.schedule[-1].at_s
    alone_s = foretold.alone_s(side.run for side in sides)
    trained = sum(alone_s[row.name] * row.gpus for row in job_rows)
    loaded = trained + sum(row.load_s * row.gpus for row in base.run.rows)
    lines = [
        said(
            texts.WHAT,
            singles=sum(row.gpus == 1 for row in job_rows),
            gangs=sum(row.gpus > 1 for row in job_rows),
            seed=planned.seed,
            span_s=span_s,
            load=trained / span_s / DEVICES,
            loaded=loaded / span_s / DEVICES,
        ),
        "",
        *header(["kind", "jobs", "", "devices", "step alone, ms", "busy"]),
    ]
    counts = Counter(arrival.kind for arrival in planned.schedule)
    for kind, one in planned.measured.items():
        known = [f"{jobs.KINDS[kind].gpus}", f"{one.pace.step_s * 1e3:.1f}", f"{one.duty_cycle:.0%}"]
        lines.append(row_of([kind, f"{counts[kind]}", jobs.ABOUT[kind], *known]))
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
    return [*lines, "", said(texts.RESULTS)]


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


def _answer(sides: Sequence[Side]) -> str:
    """Against each policy, over all runs of castor: no run is chosen."""
    castors = [side for side in sides if side.run.label == CASTOR]
    if not castors:
        return ""
    noise, mine_s = noise_of(castors), fmean(map(mean_jct_s, castors))
    others = [other for name in OTHERS if (other := found(sides, name)) is not None]
    return said(
        texts.ANSWER,
        jobs=len(sides[0].run.rows),
        mine_s=mine_s,
        noise=noise,
        others=", ".join(_against(mine_s, other, noise) for other in others),
        order=_order(sides),
    )


def _against(mine_s: float, other: Side, noise: float) -> str:
    theirs_s = mean_jct_s(other)
    change = mine_s / theirs_s - 1.0
    word = "no different from" if abs(change) <= max(noise, 0.01) else "below" if change < 0.0 else "ABOVE"
    return texts.AGAINST.format(word=word, other=other.name, theirs_s=theirs_s, change=change)


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
    return lines


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


def _told(sides: Sequence[Side]) -> str:
    spent_s = [beside_loads_s(side.run.rows) for side in sides if foretold.shares(side.run)]
    return said(texts.TOLD, seconds=", ".join(f"{seconds:.0f} s" for seconds in spent_s) or "no time")


def _order(sides: Sequence[Side]) -> str:
    """Whether the simulator would have chosen the same policy: by means over all runs of each, and only
    where policies differ by more than two runs of one do."""
    each = by_policy(sides)
    live = {name: fmean(map(mean_jct_s, same)) for name, same in each.items()}
    noise = noise_of([side for side in sides if side.run.label == CASTOR])
    sure = [
        (a, b)
        for a, b in combinations(sorted(live, key=live.__getitem__), 2)
        if live[b] > live[a] * (1 + noise)
    ]
    kept = {}
    for what in ("told", "foreseen"):
        means_s = {name: fmean(s.predicted(what).mean_jct_s for s in same) for name, same in each.items()}
        kept[what] = sum(means_s[a] < means_s[b] for a, b in sure)
    return texts.ORDER.format(sure=len(sure), **kept)


# --- How ---------------------------------------------------------------------------------------------


def _how(sides: Sequence[Side], planned: jobs.Planned) -> list[str]:
    machine = sides[0].run.machine
    facts = ", ".join(f"{key} {value}" for key, value in machine.items() if key != "commit")
    others = ", ".join(f"{side.run.others_ratio:.1%}" for side in sides)
    commits = ", ".join(dict.fromkeys(str(side.run.machine["commit"]) for side in sides))
    lines = [
        said(texts.HOW, plan_s=jobs.PROFILE_S, memory_mib=sides[0].run.slot_memory_mib),
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
    """Of castor's first run."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {}
    for side in sides:
        if side.run.timeline is not None and side.run.label == CASTOR and not side.is_again:
            path = folder / "live-castor.svg"
            path.write_text(render(side.run.timeline), encoding="utf-8")
            drawn[side.name] = path
    return drawn
