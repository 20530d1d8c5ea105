"""Where docs/results/castor.md differs from the paper, and what that rests on as far as it can be counted.

Rule: a reason is given with the number that would not be there if it were not so.
"""

from __future__ import annotations

import math

import numpy as np

from cotenant.controller.policies.lucid import LucidParameters
from cotenant.controller.sim import pair_data
from cotenant.controller.sim.results import plots
from experiments.castor import cells, texts
from experiments.castor.book import JCT_MEAN, Runs
from experiments.castor.cells import CASTOR
from experiments.castor.grounds import SHARED, grounds, last_end, mean_over, ratio
from experiments.shared.tables import said


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
