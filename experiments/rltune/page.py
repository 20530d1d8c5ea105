"""The page: every number and every verdict is computed from the runs.

Rule: a ratio is rltune's over another's, of means over the same windows; below 1 rltune is better. Intervals
are paired block bootstraps that draw traces, then seeds, then windows (`controller/sim/results/paired.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Final, NamedTuple

import machine

from cotenant.controller.papers.rltune import ACTOR, SCORED, OrderModel, read_model
from cotenant.controller.sim.results.paired import Ratio, ratio
from experiments.rltune.runs import ESTIMATES, LOAD, POLICIES, TRAINED, UNSEEN, WINDOWS, Row, cells
from experiments.shared.tables import header, row_of, said

OTHERS: Final = tuple(name for name in POLICIES if name != "rltune")


LOSS_MIN: Final = 1.05
SAID: Final = {"exact": "exact", "lognormal:0.7": "lognormal", "limit": "limit-like"}


class Target(NamedTuple):
    """At most so much of another's wait and bounded slowdown; None: no target."""

    against: str
    wait: float
    bsld: float


TARGETS: Final = (
    Target("fifo", 0.65, 0.15), Target("f1", 0.65, 0.15), Target("slurm-multifactor", 0.92, 0.55),
    Target("wfp3", 1.00, 1.10), Target("unicep", 1.00, 1.10), Target("sjf", 1.05, 1.20),
)  # fmt: skip


TAIL_MAX: Final = 1.15
"""Of sjf's 99th percentile of waits."""


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


def text(rows: Sequence[Row], seeds: int) -> str:
    book = Book(rows)
    model, scored = read_model("bundled", "rltune", ACTOR), read_model("bundled", "scorer", SCORED)
    return "\n".join(
        [
            "# RLTune: what a learned order adds",
            "",
            *seen(book, seeds),
            *answer(book, model),
            "",
            "## Against the others",
            "",
            *table(book, "rltune", OTHERS, (*TRAINED, *UNSEEN)),
            "",
            "`scorer` in its place:",
            "",
            *table(book, "scorer", ("sjf", "ssf", "rltune", "fifo"), (*TRAINED, *UNSEEN)),
            "",
            "## Traces it was trained on, and others",
            "",
            *parts(book),
            "",
            "## Kinds of estimates",
            "",
            *kinds(book),
            "",
            "## The paper's claims",
            "",
            *claims(book),
            "",
            "## Figures that were to be met",
            "",
            *targets(book),
            "",
            "## The models, and how this was made",
            "",
            *made(model, scored, book, seeds),
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


def told(found: Ratio | None, *, short: bool = False) -> str:
    if found is None:
        return "-"
    if short or found.low is None or found.high is None:
        return f"{found.mean:.2f}"
    return f"{found.mean:.2f} ({found.low:.2f} to {found.high:.2f})"


def answer(book: Book, model: OrderModel) -> list[str]:
    every = (*TRAINED, *UNSEEN)
    sjf, ssf, fifo = (
        {
            name: book.ratio("rltune", other, name, every)
            for name in ("wait_s", "bsld", "p99_wait_s", "busy_ratio")
        }
        for other in ("sjf", "ssf", "fifo")
    )
    adds = "adds nothing that these windows can show"
    wait, bsld = sjf["wait_s"], sjf["bsld"]
    if wait is not None and bsld is not None and (wait.differs or bsld.differs):
        better = [
            name for name, one in (("wait", wait), ("bounded slowdown", bsld)) if one.differs and one.mean < 1
        ]
        worse = [
            name for name, one in (("wait", wait), ("bounded slowdown", bsld)) if one.differs and one.mean > 1
        ]
        adds = "; ".join(
            [
                *([f"makes {' and '.join(better)} smaller"] if better else []),
                *([f"makes {' and '.join(worse)} LARGER"] if worse else []),
            ]
        )
    return [
        said(
            """Ordering by estimated size is what pays: against `fifo` the wait is {fifo_wait} and the bounded
            slowdown {fifo_bsld} (ratios, 95 % intervals). Against plain `sjf`, which needs no training, the
            wait is {wait} and the bounded slowdown {bsld}; against `ssf` {ssf_wait} and {ssf_bsld}. So
            learning,
            beyond the order by size, {adds}.""",
            fifo_wait=told(fifo["wait_s"]), fifo_bsld=told(fifo["bsld"]), wait=told(wait), bsld=told(bsld),
            ssf_wait=told(ssf["wait_s"]), ssf_bsld=told(ssf["bsld"]), adds=adds,
        ),
        "",
        said(
            """Where it loses, by more than {margin:.0%} on average: {losses}. The 99th percentile of waits is
            {tail} times `fifo`'s and {sjf_tail} times `sjf`'s; the share of GPU time in use is {busy} times
            `sjf`'s. The model {active}.""",
            margin=LOSS_MIN - 1.0, losses=losses(book),
            tail=told(fifo["p99_wait_s"]), sjf_tail=told(sjf["p99_wait_s"]), busy=told(sjf["busy_ratio"]),
            active="is used (it was no worse than the better of sjf and ssf on validation windows)"
            if model.active
            else f"is not used: on validation windows it was worse than {model.fallback}, which orders here",
        ),
    ]  # fmt: skip


def losses(book: Book) -> str:
    """To whom, with which kind of estimates, in what."""
    found = []
    for other, kind in product(OTHERS, ESTIMATES):
        for measure, name in (("wait_s", "wait"), ("bsld", "bounded slowdown")):
            one = book.ratio("rltune", other, measure, (*TRAINED, *UNSEEN), (kind,))
            if one is not None and one.mean > LOSS_MIN:
                found.append(f"to `{other}` in {name} with {SAID[kind]} estimates, {told(one)}")
    return "; ".join(found) or "to none of these"


def table(book: Book, mine: str, others: Sequence[str], traces: Sequence[str]) -> list[str]:
    lines = header((f"`{mine}` against", "wait", "bounded slowdown", "completion time", "p99 of waits"))
    for other in others:
        if other != mine:
            cells = (
                told(book.ratio(mine, other, name, traces))
                for name in ("wait_s", "bsld", "jct_s", "p99_wait_s")
            )
            lines.append(row_of((f"`{other}`", *cells)))
    return lines


def parts(book: Book) -> list[str]:
    lines = header(
        ("`rltune` against", "wait, trained on", "wait, not", "slowdown, trained on", "slowdown, not")
    )
    for other in ("sjf", "ssf", "fifo", "slurm-multifactor"):
        found = (
            told(book.ratio("rltune", other, name, traces))
            for name in ("wait_s", "bsld")
            for traces in (TRAINED, UNSEEN)
        )
        lines.append(row_of((f"`{other}`", *found)))
    return lines


def kinds(book: Book) -> list[str]:
    lines = header(
        ("`rltune` against", *(f"{name}, {kind}" for kind in ESTIMATES for name in ("wait", "slowdown")))
    )
    for other in ("sjf", "ssf", "fifo"):
        found = (
            told(book.ratio("rltune", other, name, (*TRAINED, *UNSEEN), (kind,)))
            for kind in ESTIMATES
            for name in ("wait_s", "bsld")
        )
        lines.append(row_of((f"`{other}`", *found)))
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


def targets(book: Book) -> list[str]:
    """Over all kinds of estimates, then each by itself."""
    lines = header(("against", "estimates", "wait", "at most", "bounded slowdown", "at most", ""))
    for target in TARGETS:
        for name, kinds_seen in (("all", ESTIMATES), *((kind, (kind,)) for kind in ESTIMATES)):
            wait, bsld = (
                book.ratio("rltune", target.against, measure, (*TRAINED, *UNSEEN), kinds_seen)
                for measure in ("wait_s", "bsld")
            )
            word = "met" if is_met(wait, target.wait) and is_met(bsld, target.bsld) else "NOT met"
            asked = (f"{target.wait:.2f}", f"{target.bsld:.2f}")
            lines.append(
                row_of((f"`{target.against}`", name, told(wait), asked[0], told(bsld), asked[1], word))
            )
    tail = book.ratio("rltune", "sjf", "p99_wait_s", (*TRAINED, *UNSEEN))
    word = "met" if is_met(tail, TAIL_MAX) else "NOT met"
    lines += [
        "",
        f"99th percentile of waits, against `sjf`: {told(tail)}, at most {TAIL_MAX:.2f} asked: {word}.",
    ]
    return lines


def is_met(found: Ratio | None, at_most: float) -> bool:
    return found is not None and found.mean <= at_most


def made(model: OrderModel, scored: OrderModel, book: Book, seeds: int) -> list[str]:
    card, other = model.card, scored.card
    a, b, c = (row[0] for row in scored.layers[0].weights)
    windows = len({(row.cell, row.window) for row in book.rows})
    wanted = len(cells(seeds)) * WINDOWS
    return [
        said(
            """{windows} of {wanted} windows of 256 jobs (5 for each trace, kind of estimates and seed;
            {kinds}), on 8 hosts of 8 GPUs, arrivals moved so that each trace offers {load:g} of the cluster.
            Each
            window begins with what sjf had running and waiting. Traces trained on: the last tenth of
            {trained};
            others: the second half of {unseen}. {part}""",
            windows=windows, wanted=wanted, load=LOAD, kinds=", ".join(ESTIMATES), trained=", ".join(TRAINED),
            unseen=", ".join(UNSEEN),
            part="" if windows == wanted else "The rest has not been computed: the same command goes on.",
        ),
        "",
        said(
            """`rltune`: {epochs} epochs on {traces} ({licence}), seed {seed}, preset {preset}, metric
            {metric}, {cpu_s:.0f} s of CPU (the paper: 3 to 8 hours); validation by epoch, over sjf: {curve}.
            `scorer`:
            wait^{c:.2f} / (time^{a:.2f} x GPUs^{b:.2f}) after {generations} generations, at an offered load
            of 0.9.""",
            epochs=card.epochs, traces=", ".join(card.traces), licence=card.licence, seed=card.seed,
            preset=card.preset, metric=card.metric, cpu_s=card.cpu_s,
            curve=", ".join(f"{each:.3f}" for each in card.curve), a=a, b=b, c=c, generations=other.epochs,
        ),
        "",
        said(
            """Baselines hold the head (`backfill=none`), as published; `sjf`, `ssf`, `rltune` and `scorer`
            let whoever fits pass: part of each difference to a baseline is that. The rows with
            `backfill=easy`
            show how much."""
        ),
        "",
        f"`python experiments/rltune/results_rltune.py --seeds {seeds}`",
        "",
        machine.sentences(),
    ]  # fmt: skip
