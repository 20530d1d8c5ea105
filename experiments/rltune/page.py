"""The page: every number and every verdict is computed from the runs.

Rule: a ratio is rltune's over another's, of means over the same windows; below 1 rltune is better. Intervals
are paired block bootstraps that draw traces, then seeds, then windows (`controller/sim/results/paired.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

import machine

from cotenant.controller.papers.rltune import ACTOR, OrderModel, read_model
from cotenant.controller.sim.results import plots
from cotenant.controller.sim.results.paired import Ratio, ratio
from experiments.rltune.runs import ESTIMATES, LOAD, POLICIES, TRAINED, UNSEEN, WINDOWS, Row, cells
from experiments.shared.tables import header, row_of, said, saved

OTHERS: Final = tuple(name for name in POLICIES if name != "rltune")


LOSS_MIN: Final = 1.05
SAID: Final = {"exact": "exact", "lognormal:0.7": "lognormal", "limit": "limit-like"}


class Claim(NamedTuple):
    """What the paper says of a pair, and in what the answer is seen here."""

    text: str
    against: str
    measure: str
    at_most: float


CLAIMS: Final = (
    Claim("wait is up to 87.5 % below FIFO's (Philly, figure 12)", "fifo", "wait_s", 0.5),
    Claim("JCT is up to 70 % below FIFO's (Philly)", "fifo", "jct_s", 0.7),
    Claim("little changes against SJF where jobs suit SJF", "sjf", "wait_s", 1.05),
    Claim("bounded slowdown is at least 5 % below F1's", "f1", "bsld", 0.95),
    Claim("bounded slowdown is 71 % below Slurm's multifactor (Philly)", "slurm-multifactor", "bsld", 0.6),
    Claim("wait is 25 % below QSSF's (with backfilling)", "qssf", "wait_s", 0.85),
    Claim("bounded slowdown is 30 % below QSSF's", "qssf", "bsld", 0.8),
)


class Book:
    """Rows by what they are about."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self._by = {(row.cell, row.window, row.policy): row for row in rows}
        self.cells = list(dict.fromkeys(row.cell for row in rows))

    def ratio(
        self,
        mine: str,
        against: str,
        measure: str,
        traces: Sequence[str],
        estimates: Sequence[str] = ESTIMATES,
    ) -> Ratio | None:
        def cell(at: object) -> list[tuple[float, float]]:
            keys = [(at, window) for window in range(WINDOWS)]
            both = [(self._by.get((*key, mine)), self._by.get((*key, against))) for key in keys]  # type: ignore[arg-type]
            return [
                (getattr(a, measure), getattr(b, measure)) for a, b in both if a is not None and b is not None
            ]

        groups = [
            [cell(at) for at in self.cells if at.trace == trace and at.estimates in estimates]
            for trace in traces
        ]
        return ratio([group for group in groups if group])


def text(rows: Sequence[Row], seeds: int, folder: Path) -> str:
    book = Book(rows)
    return "\n".join(
        [
            "# RLTune: what a learned order adds",
            "",
            *seen(book, seeds),
            answer(book),
            "",
            picture(book, folder),
            "",
            "## Beside other orders",
            "",
            said(BESIDE),
            "",
            *table(book),
            "",
            "## The paper's claims",
            "",
            *claims(book),
            "",
            said(LOSES, margin=LOSS_MIN - 1.0, losses=losses(book)),
            "",
            "## How this page was made",
            "",
            *made(read_model("bundled", "rltune", ACTOR), book, seeds),
            "",
        ]
    )


def seen(book: Book, seeds: int) -> list[str]:
    """What the page rests on, where that is not all of it."""
    windows, wanted = len({(row.cell, row.window) for row in book.rows}), len(cells(seeds)) * WINDOWS
    if windows == wanted:
        return []
    traces = ", ".join(dict.fromkeys(cell.trace for cell in book.cells))
    kinds = ", ".join(dict.fromkeys(cell.estimates for cell in book.cells))
    text = f"**A look: {windows} of {wanted} windows, of {traces}; estimates {kinds}. Not final.**"
    return [said(text), ""]


def told(found: Ratio | None) -> str:
    if found is None:
        return "-"
    if found.low is None or found.high is None:
        return f"{found.mean:.2f}"
    return f"{found.mean:.2f} ({found.low:.2f} to {found.high:.2f})"


def answer(book: Book) -> str:
    every = (*TRAINED, *UNSEEN)
    fifo, sjf = (
        {name: book.ratio("rltune", other, name, every) for name in ("wait_s", "bsld")}
        for other in ("fifo", "sjf")
    )
    return said(
        """Ordering by estimated size is what pays: under `rltune` the mean wait is {fifo[wait_s]} of
        `fifo`'s and the bounded slowdown {fifo[bsld]} (ratios, 95 % intervals). Against plain `sjf`,
        which needs no training, they are {sjf[wait_s]} and {sjf[bsld]}. So learning, beyond the order by
        size, {adds}.""",
        fifo={name: told(found) for name, found in fifo.items()},
        sjf={name: told(found) for name, found in sjf.items()},
        adds=added(sjf["wait_s"], sjf["bsld"]),
    )


def added(wait: Ratio | None, bsld: Ratio | None) -> str:
    known = [(name, one) for name, one in (("wait", wait), ("bounded slowdown", bsld)) if one is not None]
    changed = [
        f"makes {name} {'smaller' if one.mean < 1 else 'LARGER'}" for name, one in known if one.differs
    ]
    return " and ".join(changed) or "adds nothing that these windows can show"


def picture(book: Book, folder: Path) -> str:
    """`rltune` against each other order."""
    sets = {}
    for measure, name in (("wait_s", "mean wait"), ("bsld", "bounded slowdown")):
        found = {other: book.ratio("rltune", other, measure, (*TRAINED, *UNSEEN)) for other in OTHERS}
        sets[name] = [
            plots.Range(other, one.mean, one.low or one.mean, one.high or one.mean)
            for other, one in found.items()
            if one is not None
        ]
    title = "rltune against other orders (below 1: rltune is better)"
    figure = plots.ranges(sets, title, "rltune's / the other's, 95 % intervals", synthetic=False)
    return saved(figure, folder, "answer", title)


def losses(book: Book) -> str:
    """To whom, with which kind of estimates, in what."""
    found = []
    for other, kind in product(OTHERS, ESTIMATES):
        for measure, name in (("wait_s", "wait"), ("bsld", "bounded slowdown")):
            one = book.ratio("rltune", other, measure, (*TRAINED, *UNSEEN), (kind,))
            if one is not None and one.mean > LOSS_MIN:
                found.append(f"to `{other}` in {name} with {SAID[kind]} estimates, {told(one)}")
    return "; ".join(found) or "to none of them"


def table(book: Book) -> list[str]:
    lines = header(("`rltune` against", "wait", "bounded slowdown"))
    for other in OTHERS:
        found = (book.ratio("rltune", other, name, (*TRAINED, *UNSEEN)) for name in ("wait_s", "bsld"))
        lines.append(row_of((f"`{other}`", *map(told, found))))
    return lines


def verdict(found: Ratio | None, at_most: float) -> str:
    if found is None:
        return "not seen"
    if found.mean <= at_most:
        return "holds" if found.high is not None and found.high <= at_most else "holds on average"
    return "does not hold"


def claims(book: Book) -> list[str]:
    lines = header(("claim", "here", "at most", "verdict"))
    for claim in CLAIMS:
        found = book.ratio("rltune", claim.against, claim.measure, (*TRAINED, *UNSEEN))
        lines.append(row_of((claim.text, told(found), f"{claim.at_most:.2f}", verdict(found, claim.at_most))))
    better = book.ratio("rltune", "sjf", "busy_ratio", (*TRAINED, *UNSEEN))
    lines.append(
        row_of(
            (
                "GPU utilisation is 3 to 20 % above SJF's",
                told(better),
                "1.03 at least",
                "holds" if better is not None and better.mean >= 1.03 else "does not hold",
            )
        )
    )
    return lines


def made(model: OrderModel, book: Book, seeds: int) -> list[str]:
    card = model.card
    windows = len({(row.cell, row.window) for row in book.rows})
    wanted = len(cells(seeds)) * WINDOWS
    return [
        said(
            MADE,
            windows=windows, wanted=wanted, load=LOAD, kinds=", ".join(ESTIMATES), trained=", ".join(TRAINED),
            unseen=", ".join(UNSEEN), epochs=card.epochs, licence=card.licence, cpu_s=card.cpu_s,
            active="was no worse than the better of `sjf` and `ssf`"
            if model.active
            else f"was worse than `{model.fallback}`, which orders instead",
            seeds=seeds,
        ),
        "",
        machine.sentences(),
    ]  # fmt: skip


LOSES: Final = "`rltune` loses by more than {margin:.0%} on average {losses}."
BESIDE: Final = """
    Each number is `rltune`'s divided by that of the other order (below 1 is better). The published baselines
    hold back everything behind a job that does not fit; `sjf`, `ssf`, `rltune` and `scorer` let jobs pass
    it, which is part of each difference. The rows with `backfill=easy` show how much.
"""
MADE: Final = """
    `python experiments/rltune/results_rltune.py --seeds {seeds}` makes this page from {windows} of
    {wanted} windows of 256 jobs (five for each trace, kind of estimates and seed; {kinds}) on 8 hosts of
    8 GPUs at an offered load of {load:g}. Each window begins with what `sjf` had running and waiting. The
    traces trained on are the last tenth of {trained}, the others the second half of {unseen} ({licence}).
    `rltune` was trained for {epochs} epochs in {cpu_s:.0f} s of processor time (the paper: 3 to 8 hours);
    on validation windows it {active}.
"""
