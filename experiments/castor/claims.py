"""What Castor's paper claims, and what came of it here: the table at the head of results/castor.md;
where it differs, and what that rests on as far as it can be counted.

Rule: whether a claim holds is counted, not judged by eye; a tie (within 1 %) is not a win. A reason is given
with the number that would not be there if it were not so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from cotenant.controller.papers.literature.lucid import LucidParameters
from cotenant.controller.sim import pair_data
from cotenant.controller.sim.results import plots
from experiments.castor import cells, texts
from experiments.castor.cells import CASTOR, JCT_MEAN, JCT_P50, WAIT_MEAN, Number, Ratio, Runs
from experiments.castor.grounds import (
    ALIKE,
    MEASURES,
    OTHERS,
    PAPER,
    SHARED,
    YIELD,
    Where,
    benefit,
    counts,
    grounds,
    growth,
    last_end,
    mean_over,
    paper_ratio,
    ratio,
    scaled_seeds,
    sets,
)
from experiments.shared.tables import header, row_of, said

LUCID: Final = "lucid:part=false"
GREEDY: Final = "sjf-ffs:part=false"
COMPARED: Final = tuple(policy for policy in OTHERS if policy in PAPER["policies"])
"""Those that the paper compares with in its tables: all but srtf and sjf-ffs."""


def table(book: Runs) -> list[str]:
    """Rows of (claim, here), each ground on its own."""
    lines = header(("the paper says", "here", "holds"))
    for claim, found in CLAIMS:
        parts = found(book)
        if parts:
            holds = {held for _, held in parts}
            verdict = "in part" if len(holds) > 1 else "yes" if True in holds else "no"
            lines.append(row_of((claim, "<br>".join(text for text, _ in parts), verdict)))
    return lines


Found = list[tuple[str, bool]]
"""What is said of each ground, and whether the claim holds there."""


def lowest(what: str) -> Callable[[Runs], Found]:
    """Castor's number is below that of every policy in the paper's tables, on every VC."""

    def find(book: Runs) -> Found:
        return [lowest_on(book, where, what) for where in grounds(book)]

    return find


def lowest_on(book: Runs, where: Where, what: str) -> tuple[str, bool]:
    by, n = counts(book, where, MEASURES[what]), len(where.traces)
    beaten = [f"{policy} on {by[policy][1]} of {n}" for policy in COMPARED if by[policy][1]]
    tied = [f"{policy} on {n - sum(by[policy])} of {n}" for policy in COMPARED if sum(by[policy]) < n]
    parts = [
        f"above {', '.join(beaten)}" if beaten else "",
        f"tied with {', '.join(tied)}" if tied else "",
    ]
    text = "; ".join(part for part in parts if part) or f"lowest on {n} of {n} VCs"
    return f"{where.name}: {text}", not beaten and not tied


def below(policy: str, metric: str, number: Number) -> Callable[[Runs], Found]:
    """By how many per cent Castor's number is below another's; it holds if it surely is below at all."""

    def find(book: Runs) -> Found:
        found = []
        for where in grounds(book):
            here = ratio(book, where, CASTOR, policy, number)
            theirs = paper_ratio(metric, where.paper, policy)
            paper = "" if theirs is None else f" (paper {100 * (1 - 1 / theirs):.0f} %)"
            found.append((f"{where.name}: {percent_below(here)}{paper}", here.high < 1.0 - ALIKE))
        return found

    return find


def percent_below(here: Ratio) -> str:
    middle, least, most = (100.0 * (1.0 - value) for value in (here.mean, here.high, here.low))
    return f"{middle:.0f} %" if least == most else f"{middle:.0f} % ({least:.0f} to {most:.0f})"


def greedy(book: Runs) -> Found:
    found = []
    for where in grounds(book):
        mean, median = (ratio(book, where, CASTOR, GREEDY, number) for number in (JCT_MEAN, JCT_P50))
        text = f"{where.name}: mean {percent_below(mean)}, median {percent_below(median)}"
        found.append((text, mean.high < 1.0 - ALIKE))
    return found


def busier(book: Runs) -> Found:
    return [
        compared(book, where, YIELD, "{:.3f}", [p for p in COMPARED if p != CASTOR])
        for where in grounds(book)
    ]


def compared(book: Runs, where: Where, number: Number, form: str, others: list[str]) -> tuple[str, bool]:
    mine = mean_over(book, where, CASTOR, number)
    values = {policy: mean_over(book, where, policy, number) for policy in others}
    best = max(values, key=lambda policy: values[policy])
    text = f"{where.name}: {form.format(mine)}, best other {form.format(values[best])} ({best})"
    return text, mine > values[best]


def beneficial(book: Runs) -> Found:
    found = []
    for where in grounds(book):
        values = [benefit(book, where, policy) for policy in (CASTOR, GREEDY)]
        text = f"{where.name}: {values[0]:.2f}, sjf-ffs {values[1]:.2f}"
        found.append((text, values[0] > 1.0 and values[0] > values[1]))
    return found


def slow_growth(book: Runs) -> Found:
    found = []
    for _, title, traces in sets():
        seeds = scaled_seeds(book, traces)
        if not traces or not seeds:
            continue
        grown = {policy: growth(book, traces, policy, seeds, JCT_MEAN).mean for policy in (CASTOR, *COMPARED)}
        rank = sorted(grown.values()).index(grown[CASTOR]) + 1
        told = ", ".join(f"{policy} {value:.1f}x" for policy, value in grown.items())
        found.append((f"{title}: {told}; castor's is no. {rank} of {len(grown)}", rank == 1))
    return found


CLAIMS: Final = (
    ("castor has the lowest mean JCT", lowest("mean JCT")),
    ("(not in the paper) the lowest median JCT", lowest("median JCT")),
    ("the lowest makespan", lowest("makespan")),
    ("the least waiting", lowest("mean waiting")),
    ("mean JCT below tiresias (by so much; negative: above)", below("tiresias", "jct_h", JCT_MEAN)),
    ("mean JCT below sjf", below("sjf", "jct_h", JCT_MEAN)),
    ("mean JCT below lucid", below(LUCID, "jct_h", JCT_MEAN)),
    ("waiting below lucid", below(LUCID, "wait_h", WAIT_MEAN)),
    ("mean JCT below sjf-ffs: modestly on Philly, clearly on Venus", greedy),
    ("GPUs are used more (here: work done per GPU-second with a tenant, not active SMs)", busier),
    ("sharing benefit above 1 and above sjf-ffs's (median of guests)", beneficial),
    ("JCT grows least from 0.5x to 2x", slow_growth),
)


def why(book: Runs) -> str:
    """What the differences from the paper rest on, as far as it can be counted."""
    table = pair_data(cells.PAIRS)
    assert table is not None
    names = table.models()
    ratios = np.array(table.ratios(names))[: len(names), : len(names)]
    done = 1.0 / ratios + 1.0 / ratios.T
    pairs = said(
        texts.TABLE_OF_PAIRS,
        models=len(names),
        each=float(np.mean(1.0 / ratios)),
        both=float(np.mean(done)),
        worse=100.0 * float(np.mean(done < 1.0)),
    )
    parts = [pairs, lucid(book, np.mean(1.0 / ratios, axis=1)), early(book), last(book), tails(book)]
    return "\n\n".join(["## Where it differs, and what that rests on", *parts])


def lucid(book: Runs, paces: plots.Floats) -> str:
    """`paces` are the models' mean speeds beside others, 1 alone, shape (models,)."""
    rule, name = LucidParameters(), "lucid:part=false"
    percents = {
        xi: float(np.mean([mean_over(book, w, name, SHARED, xi) / w.jobs for w in grounds(book)])) * 100.0
        for xi in ("measured", "learned")
    }
    return said(
        texts.LUCID,
        tiny=rule.tiny,
        medium=rule.medium,
        labels_max=rule.labels_max,
        slowest=paces.min(),
        fastest=paces.max(),
        light=int(np.sum(paces >= rule.tiny)),
        heavy=int(np.sum(paces < rule.medium)),
        models=len(paces),
        shared=percents["measured"],
        learned=percents["learned"],
    )


def early(book: Runs) -> str:
    told = [
        f"{where.name}: castor-cost {ratio(book, where, 'castor-cost', CASTOR, JCT_MEAN)}, "
        f"castor {ratio(book, where, 'castor', CASTOR, JCT_MEAN)}"
        for where in grounds(book)
    ]
    return said(texts.WAIT_OF_ONE, told="; ".join(told))


def last(book: Runs) -> str:
    percents = [100.0 * mean_over(book, where, "sjf", last_end) for where in grounds(book)]
    return said(texts.LAST, least=math.floor(min(percents)), most=math.ceil(max(percents)))


def tails(book: Runs) -> str:
    shares = [
        result.longest_percent
        for cell, result in book.results.items()
        if cell.policy == CASTOR and result.cell.xi == "measured"
    ]
    return said(texts.TAILS, percent=5, low=math.floor(min(shares)), high=math.ceil(max(shares)))
