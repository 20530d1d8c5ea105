"""docs/results/lazer.md and its plots, from the runs on the disk: the traces. The rest is in `lazer/why.py`.

Rule: no number and no conclusion on the page is typed here: what is said is counted from the runs, whichever
way it comes out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import machine
import msgspec
import numpy as np
import places

from cotenant.controller.policies import registry
from cotenant.controller.sim.results import plots
from lazer import cells, texts
from lazer.book import (
    FUTILE,
    FUTILE_GPU_S,
    JCT_MEAN,
    JCT_P50,
    JCT_P95,
    PAPER,
    PREEMPTIONS,
    WAIT_P50,
    WAIT_P95,
    Book,
    Number,
    at,
    paper_ratio,
)
from lazer.cells import BASELINES, POLICIES, Cell
from lazer.grounds import (
    PLOTS,
    available,
    grounds,
    header,
    offered,
    real_seeds,
    said_seeds,
    saved,
    scaled,
    shown,
    templates_real,
    templates_synthetic,
)
from lazer.texts import said
from lazer.why import efficiency, options, populations, regime, sensitivity

DOCS: Final = places.RESULTS


def write(book: Book, folder: Path = DOCS) -> Path:
    """The page; its plots go into a folder beside it."""
    (folder / PLOTS).mkdir(parents=True, exist_ok=True)
    parts = [
        head(book),
        real(book, folder / PLOTS),
        synthetic(book, folder / PLOTS),
        populations(book),
        options(book),
        sensitivity(book, folder / PLOTS),
        regime(book, folder / PLOTS),
        efficiency(folder / PLOTS),
        how(book),
    ]
    page = folder / "lazer.md"
    page.write_text("\n\n".join(part.strip() for part in parts if part) + "\n")
    return page


# --- The head ------------------------------------------------------------------------------------------


def head(book: Book) -> str:
    lines = [claim(book, *each) for each in CLAIMS]
    skipped = [name for name in POLICIES if name not in registry.AVAILABLE]
    return "\n".join(
        [
            "# Lazer, against the others",
            "",
            said(texts.HEAD, source=PAPER["source"]),
            "",
            "| the paper says | here |",
            "| --- | --- |",
            *[line for line in lines if line],
            *(["", f"Left out, for want of a library: {', '.join(skipped)}."] if skipped else []),
        ]
    )


def claim(book: Book, said: str, found: Callable[[Book], str]) -> str:
    text = found(book)
    return f"| {said} | {text} |" if text else ""


def median_claim(book: Book) -> str:
    return counted(book, JCT_P50, "median JCT")


def tail_claim(book: Book) -> str:
    return counted(book, JCT_P95, "P95 JCT")


def counted(book: Book, number: Number, what: str) -> str:
    """On how many traces lazer is better than each of the paper's baselines."""
    found = []
    for name, templates, seeds in grounds(book):
        wins = {
            policy: sum(book.ratio([one], policy, "lazer", seeds, number).mean >= 1.2 for one in templates)
            for policy in BASELINES
        }
        every = [policy for policy, count in wins.items() if count == len(templates)]
        none = [policy for policy, count in wins.items() if count == 0]
        some = [f"{p} on {c} of {len(templates)}" for p, c in wins.items() if 0 < c < len(templates)]
        parts = [
            f"all of {', '.join(every)}" if every else "",
            *some,
            f"none of {', '.join(none)}" if none else "",
        ]
        found.append(f"{name}: {what} 1.2x lower than " + "; ".join(part for part in parts if part))
    return ". ".join(found)


def srtf_claim(book: Book) -> str:
    found = []
    for name, templates, seeds in grounds(book):
        worse = sum(book.ratio([one], "srtf", "sjf", seeds, JCT_P50).mean > 1.0 for one in templates)
        ratio = book.ratio(templates, "srtf", "sjf", seeds, JCT_P50)
        found.append(f"{name}: {ratio}x; longer on {worse} of {len(templates)}")
    return ". ".join(found)


def futile_claim(book: Book) -> str:
    """GPU time in all, and the paper's two columns over the jobs that were hit."""
    found = []
    for name, templates, seeds in grounds(book):
        ratios = [
            times(*(book.total(templates, policy, seeds, number).mean for policy in ("srtf", "lazer")))
            for number in (FUTILE_GPU_S, at("futile_s_hit", "p50"), at("futile_s_hit", "p95"))
        ]
        found.append(f"{name}: {ratios[0]} in all; of jobs hit, {ratios[1]} (median) and {ratios[2]} (P95)")
    return ". ".join(found)


def times(srtf: float, lazer: float) -> str:
    return f"{srtf / lazer:.2f}x" if lazer else "none at all"


def patient_claim(book: Book) -> str:
    found = []
    for name, templates, seeds in grounds(book):
        futile = book.total(templates, "patient", seeds, FUTILE).mean
        below = sum(book.ratio([t], "patient", "srtf", seeds, JCT_MEAN).mean <= 1.0 for t in templates)
        share = f"{below} of {len(templates)}"
        found.append(f"{name}: {futile:.0f} futile preemptions, mean JCT at or below srtf's on {share}")
    return ". ".join(found)


CLAIMS: Final = (
    ("lazer's median JCT is at least 1.2x lower than every baseline's", median_claim),
    ("its P95 JCT as well", tail_claim),
    ("srtf's median JCT is 1.6x sjf's", srtf_claim),
    ("futile preemption time is 23x (median) and 41x (P95) below srtf's", futile_claim),
    ("(ours) `patient`: no futile preemption, mean JCT not above srtf's", patient_claim),
)


# --- Real traces ---------------------------------------------------------------------------------------


def real(book: Book, folder: Path) -> str:
    lines = [
        f"## {len(book.sizes.vcs)} Philly VCs",
        "",
        said(texts.REAL, jobs=book.sizes.philly_jobs),
    ]
    for load in book.sizes.loads:
        seeds = real_seeds(book, load)
        if seeds:
            lines += ["", f"### {load:g}x the arrivals ({said_seeds(seeds)})", ""]
            lines += across(book, templates_real(book, load), seeds)
    seeds = real_seeds(book, 1.0)
    if seeds:
        lines += ["", "### Mean JCT of each VC at 1x, in hours", "", *by_vc(book, seeds)]
        lines += ["", *real_plots(book, folder, seeds[0])]
    return "\n".join(lines)


def across(book: Book, templates: list[Cell], seeds: list[int]) -> list[str]:
    lines = header(texts.ACROSS)
    n = len(templates)
    for policy in available(POLICIES):
        ratios = [
            str(book.ratio(templates, policy, "lazer", seeds, number))
            for number in (JCT_P50, JCT_P95, JCT_MEAN)
        ]
        waits = [book.total(templates, policy, seeds, number).mean / n for number in (WAIT_P50, WAIT_P95)]
        counts = [
            shown(book.total(templates, policy, seeds, number), "{:,.0f}") for number in (PREEMPTIONS, FUTILE)
        ]
        futile = shown(scaled(book.total(templates, policy, seeds, FUTILE_GPU_S), 3600.0), "{:,.1f}")
        row = [policy, *ratios, f"{waits[0]:,.0f}, {waits[1]:,.0f}", *counts, futile]
        lines.append(f"| {' | '.join(row)} |")
    return lines


def by_vc(book: Book, seeds: list[int]) -> list[str]:
    policies = available(POLICIES)
    lines = [
        f"| VC | jobs | load | {' | '.join(policies)} |",
        f"| --- | --- | --- | {' | '.join('---' for _ in policies)} |",
    ]
    for template in templates_real(book, 1.0):
        first = book.of(template, seeds)[0].summary
        values = [
            book.value(msgspec.structs.replace(template, policy=policy), seeds, JCT_MEAN).mean / 3600.0
            for policy in policies
        ]
        best = min(values)
        texts = [f"**{value:,.2f}**" if value <= best * (1 + 1e-4) else f"{value:,.2f}" for value in values]
        load = first["offered_load"]
        row = [template.trace.partition("/")[2], f"{first['jobs']:,}", f"{load:.2f}", *texts]
        lines.append(f"| {' | '.join(row)} |")
    return lines


def real_plots(book: Book, folder: Path, seed: int) -> list[str]:
    lines = []
    shown_policies = available((*BASELINES, "lazer", "patient"))
    for vc in ("6214e9", "ee9e8c"):
        found = [
            book.results[Cell(trace=f"philly/{vc}", policy=p, seed=seed, jobs=book.sizes.philly_jobs)]
            for p in shown_policies
        ]
        for kind, values in (("jct", "jct_s"), ("wait", "wait_s")):
            curves = [
                plots.Curve(r.cell.policy, np.interp(plots.QUANTILES, cells.QUANTILES, getattr(r, values)))
                for r in found
            ]
            title = f"{'Job completion' if kind == 'jct' else 'Waiting'} time, philly/{vc}"
            figure = plots.distributions(
                curves, title, "JCT" if kind == "jct" else "waiting", synthetic=False
            )
            lines.append(saved(figure, folder, f"{kind}-{vc}", title))
        bars = [plots.Parts(r.cell.policy, *r.parts_s) for r in found]
        title = f"What a JCT around the median is made of, philly/{vc} (as Fig. 3)"
        lines.append(saved(plots.stacked(bars, title, synthetic=False), folder, f"parts-{vc}", title))
    return lines


# --- Synthetic traces ------------------------------------------------------------------------------------


def synthetic(book: Book, folder: Path) -> str:
    seeds = book.seeds(lambda seed: offered(cells.synthetic(book.sizes, seed)))
    if not seeds:
        return ""
    sizes = book.sizes
    lines = [
        "## Three SYNTHETIC Helios-like traces",
        "",
        said(
            texts.SYNTHETIC,
            jobs=sizes.synthetic_jobs,
            hosts=sizes.synthetic_hosts,
            seeds=said_seeds(seeds),
        ),
    ]
    for template in templates_synthetic(book):
        lines += ["", *beside_paper(book, template, seeds)]
    for template in templates_synthetic(book):
        name = template.trace.split(":")[1]
        found = [book.of(msgspec.structs.replace(template, policy=p), seeds) for p in available(POLICIES)]
        percents = [
            plots.Share(runs[0].cell.policy, float(np.mean([r.futile_percent for r in runs])))
            for runs in found
        ]
        title = f"Loads that were for nothing, like {name} (as Fig. 4)"
        axis = "futile preemptions (% of the GPU time held)"
        lines += [
            "",
            saved(plots.shares(percents, title, axis, synthetic=True), folder, f"futile-{name}", title),
        ]
        bars = [
            plots.Parts(runs[0].cell.policy, *np.mean([r.parts_s for r in runs], axis=0)) for runs in found
        ]
        title = f"What a JCT around the median is made of, like {name} (as Fig. 3)"
        lines.append(saved(plots.stacked(bars, title, synthetic=True), folder, f"parts-{name}", title))
    return "\n".join(lines)


def beside_paper(book: Book, template: Cell, seeds: list[int]) -> list[str]:
    name = template.trace.split(":")[1]
    load = np.mean([r.summary["offered_load"] for r in book.of(template, seeds)])
    lines = [
        f"### Like {name} (SYNTHETIC, offered load {load:.2f})",
        "",
        *header(texts.BESIDE),
    ]
    for policy in available(POLICIES):
        own = msgspec.structs.replace(template, policy=policy)
        papers = [paper_ratio("jct_min", name, policy, column) for column in (0, 1)]
        said = ["-" if p is None else f"{p:.1f}" for p in papers]
        ratios = [
            str(book.ratio([template], policy, "lazer", seeds, number)) for number in (JCT_P50, JCT_P95)
        ]
        values = [
            shown(scaled(book.value(own, seeds, JCT_P50), 60.0), "{:,.1f}"),
            shown(scaled(book.value(own, seeds, WAIT_P95), 60.0), "{:,.1f}"),
            shown(book.value(own, seeds, at("futile_s_hit", "p95")), "{:,.0f}"),
        ]
        row = [policy, values[0], ratios[0], said[0], ratios[1], said[1], *values[1:]]
        lines.append(f"| {' | '.join(row)} |")
    return lines


# --- Small parts -------------------------------------------------------------------------------------------


def how(book: Book) -> str:
    commits = book.commits()
    return "\n".join(
        [
            "## How this was made",
            "",
            said(texts.HOW, runs=len(book.results)),
            "",
            machine.sentences(numpy=np.__version__),
            f"The runs were made at {'commit' if len(commits) == 1 else 'commits'} {', '.join(commits)}.",
        ]
    )
