"""What Castor's paper claims, and what came of it here: a table of results/castor.md with a column for each
ground; and what the differences rest on, as far as it can be counted.

Rule: whether a claim holds is counted, not judged by eye; a tie (within 1 %) is not a win. A reason is given
with the number that would not be there if it were not so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from cotenant.controller.papers.literature.lucid import LucidParameters
from cotenant.controller.sim import pair_data
from cotenant.controller.sim.results import plots
from experiments.castor import cells, texts
from experiments.castor.cells import CASTOR, JCT_MEAN, WAIT_MEAN, Number, Runs
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
    last_end,
    mean_over,
    paper_ratio,
    ratio,
)
from experiments.shared.tables import header, row_of, said

LUCID: Final = "lucid:part=false"
GREEDY: Final = "sjf-ffs:part=false"
COMPARED: Final = tuple(policy for policy in OTHERS if policy in PAPER["policies"])
"""Those that the paper compares with in its tables: all but srtf and sjf-ffs."""


class Found(NamedTuple):
    """What was found on one ground, and whether the claim holds there."""

    text: str
    holds: bool


Finder = Callable[[Runs, Where], Found]


def found(book: Runs) -> list[tuple[str, list[Found]]]:
    """Each claim with one finding for each ground."""
    return [(claim, [find(book, where) for where in grounds(book)]) for claim, find in CLAIMS]


def table(book: Runs) -> list[str]:
    lines = header(("the paper claims", *(where.name for where in grounds(book))))
    for claim, each in found(book):
        lines.append(row_of((claim, *(f"**{one.text}**" if one.holds else one.text for one in each))))
    return lines


def verdict(held: list[bool]) -> str:
    return "yes" if all(held) else "in part" if any(held) else "no"


def lowest(what: str) -> Finder:
    """Castor's number is below that of every policy in the paper's tables, on every VC."""

    def find(book: Runs, where: Where) -> Found:
        by = counts(book, where, MEASURES[what])
        is_lowest = all(by[policy][0] == len(where.traces) for policy in COMPARED)
        return Found("yes" if is_lowest else "no", is_lowest)

    return find


def below(policy: str, number: Number) -> Finder:
    """By how many per cent Castor's number is below another's; it holds if it surely is below at all."""

    def find(book: Runs, where: Where) -> Found:
        here = ratio(book, where, CASTOR, policy, number)
        return Found(f"{100.0 * (1.0 - here.mean):.0f} %", here.high < 1.0 - ALIKE)

    return find


def papers(metric: str, policy: str) -> str:
    """By how many per cent the paper's Castor is below another: on Philly, on Venus."""
    each = (f"{100 * (1 - 1 / paper_ratio(metric, key, policy)):.0f} %" for key in PAPER[metric])
    return f"(paper: {', '.join(each)})"


def busier(book: Runs, where: Where) -> Found:
    mine, best = (
        max(mean_over(book, where, policy, YIELD) for policy in policies)
        for policies in ((CASTOR,), [policy for policy in COMPARED if policy != CASTOR])
    )
    return Found(f"{mine:.3f} ({best:.3f})", mine > best)


def beneficial(book: Runs, where: Where) -> Found:
    mine, greedy = (benefit(book, where, policy) for policy in (CASTOR, GREEDY))
    return Found(f"{mine:.2f} ({greedy:.2f})", mine > 1.0 and mine > greedy)


CLAIMS: Final[tuple[tuple[str, Finder], ...]] = (
    ("lowest mean JCT", lowest("mean JCT")),
    ("lowest makespan", lowest("makespan")),
    ("least waiting", lowest("mean waiting")),
    (f"mean JCT below `tiresias` {papers('jct_h', 'tiresias')}", below("tiresias", JCT_MEAN)),
    (f"mean JCT below `sjf` {papers('jct_h', 'sjf')}", below("sjf", JCT_MEAN)),
    (f"mean JCT below `lucid` {papers('jct_h', LUCID)}", below(LUCID, JCT_MEAN)),
    ("mean JCT below `sjf-ffs`", below(GREEDY, JCT_MEAN)),
    (f"waiting below `lucid` {papers('wait_h', LUCID)}", below(LUCID, WAIT_MEAN)),
    ("more work per busy GPU-second (best other)", busier),
    ("median guest gains, and more than under `sjf-ffs`", beneficial),
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
    parts = [pairs, lucid(book, np.mean(1.0 / ratios, axis=1)), last(book)]
    return "\n".join(["## Why it differs from the paper", "", *parts])


def lucid(book: Runs, paces: plots.Floats) -> str:
    """`paces` are the models' mean speeds beside others, 1 alone, shape (models,)."""
    shares = [mean_over(book, where, LUCID, SHARED) / where.jobs for where in grounds(book)]
    return said(
        texts.LUCID,
        light=int(np.sum(paces >= LucidParameters().tiny)),
        models=len(paces),
        shared=100.0 * float(np.mean(shares)),
    )


def last(book: Runs) -> str:
    percents = [100.0 * mean_over(book, where, "sjf", last_end) for where in grounds(book)]
    return said(texts.LAST, least=math.floor(min(percents)), most=math.ceil(max(percents)))
