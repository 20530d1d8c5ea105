"""The interference model on measured pairs: results/castor-predictor.md and its pictures.

    python experiments/castor/results_predictor.py            from ../shared, or COTENANT_SHARED_DATA
    python experiments/castor/results_predictor.py --out DIR  elsewhere

Rule: no number on the page is typed here, and no sentence depends on one without counting it. Trained models
are kept in experiments/.cache/predictor/ and never leave it: those of the Lucid table are not for commercial
use.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

sys.path.extend(str(Path(__file__).resolve().parents[2] / name) for name in ("", "bench"))

import machine
import numpy as np
import xgboost

from cotenant.controller.models.interference.bands import SCALE_MIN
from cotenant.controller.performance import InterferenceModel
from cotenant.controller.sim.results import plots
from experiments.castor.interference import pictures, study, training
from experiments.castor.interference.errors import Both
from experiments.castor.interference.pair_rows import PairRows
from experiments.castor.interference.study import Left
from experiments.shared import paths
from experiments.shared.tables import said

DOCS: Final = paths.RESULTS
PLOTS: Final = "castor-predictor"
MODEL: Final = "**the model**"
THROUGHPUT: Final = ("samples_per_s", "steps_per_s")

ANSWER: Final = """Trained on other pairs, the model predicts how much two jobs slow each other with an
    RMSE of {rmse} (the mean of the training data: {mean}), and a job of a model that it has never seen
    with {unseen} ({unseen_mean}). {covered:.1f} % of the pairs lie within its margins, which promise
    {promised:.0f} %. On another type of GPU it is no better than the mean of its source in {worse} of
    {crossings} cases."""
NESTED: Final = """The data are {rows:,} rows of {pairs} pairs of {models} models (Lucid's table). We
    leave whole pairs out in five folds, and `predictor train` sees the other four, its choice among
    {candidates} settings included; {seeds} seeds draw the folds. Castor reports 0.06 and 0.07 on its
    own testbed, from indicators that no public table has. The settings were written by people who had
    seen this table."""
ONE: Final = """Castor has one output per job. In this table job 1 is mostly an image model, so two
    outputs can learn which place a job has: {two} against our {one} over both jobs. With a random half
    of the rows turned round it is {turned} against {one_turned}, and in a cluster the order means
    nothing, so we use one."""
UNSEEN: Final = """Margins hold {least:.1f} % of the rows in the worst fold. They grow with the
    prediction: at xi = 1.5 they are {narrow:.2f} for jobs that the training data know and up to
    {wide:.2f} for the strangest."""
DECISIONS: Final = """Castor's Theorem 1 decides whether job 1 joins job 2, {draws} times per row with
    remaining times drawn (lognormal, median {median:g} s, sigma {spread:g}). *Otherwise* is the share
    of decisions that the measured ratios would make otherwise; *lost* is how much longer the two jobs
    then take on average."""
TRANSFER: Final = """Gavel's table has no hardware features: a job is its steps per second alone and its
    batch. Pairs of models are left out on both types of GPU. *Lookup* is the error of taking the same
    pair's ratio on the other type."""
HOW: Final = """`python experiments/castor/results_predictor.py` makes this page from tables that are
    not part of this repository (../shared). xi is the time of an iteration beside the other job divided
    by that alone."""


Judged = tuple[PairRows, list[Left]]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=DOCS, help="folder of the page")
    options = parser.parse_args()
    try:
        lucid, gavel = study.table("lucid_pairs"), study.table("gavel_pairs")
    except study.NoData as error:
        print(error, file=sys.stderr)
        return 1
    folder: Path = options.out
    (folder / PLOTS).mkdir(parents=True, exist_ok=True)
    lefts = [study.nested(lucid, seed) for seed in study.SEEDS]
    model = study.trained(lucid, study.SEEDS[0])
    moved, worse, crossings = transfers(gavel)
    parts = [
        "# The interference model on measured pairs",
        answer(lucid, lefts, model, worse, crossings),
        drawn(lucid, lefts, model, folder / PLOTS),
        errors(lucid, lefts),
        margins(lucid, lefts, model),
        decisions(
            {
                "Lucid": (lucid, lefts),
                **{f"Gavel {name}": nested_on(gavel, name) for name in ("v100", "p100")},
            }
        ),
        moved,
        "## How this page was made",
        said(HOW),
        machine.sentences(numpy=np.__version__, xgboost=xgboost.__version__),
    ]
    page = folder / "castor-predictor.md"
    page.write_text("\n\n".join(parts) + "\n")
    print(page)
    return 0


def nested_on(gavel: PairRows, name: str) -> Judged:
    pairs = study.of_type(gavel, name)
    return pairs, [study.nested(pairs, seed) for seed in study.SEEDS]


def answer(pairs: PairRows, lefts: list[Left], model: InterferenceModel, worse: int, crossings: int) -> str:
    return said(
        ANSWER,
        rmse=three(pairs, [left.predicted for left in lefts])[2],
        mean=three(pairs, [left.mean for left in lefts])[2],
        unseen=f"{model.cross_validation.unseen_model_rmse:.3f}",
        unseen_mean=f"{study.unseen_mean(pairs):.3f}",
        covered=100 * float(np.mean(inside(pairs, lefts))),
        promised=100 * model.coverage,
        worse=worse,
        crossings=crossings,
    )


def inside(pairs: PairRows, lefts: list[Left]) -> list[np.ndarray]:
    """Which predictions of each seed are within their margins; shape (rows, jobs)."""
    return [np.abs(left.predicted - pairs.xi) <= left.margins for left in lefts]


# --- Errors ------------------------------------------------------------------------------------------


def errors(pairs: PairRows, lefts: list[Left]) -> str:
    seeds = len(lefts)
    slow = study.without(pairs, *THROUGHPUT)
    rows: dict[str, list[Both]] = {
        f"{MODEL}, nested": [left.predicted for left in lefts],
        "mean of the training": [left.mean for left in lefts],
        "duty-cycle rule": [study.duty_cycle(pairs)] * seeds,
        "the third candidate alone": [study.one_candidate(pairs, seed, 2) for seed in study.SEEDS],
        "the same without throughput": [study.one_candidate(slow, seed, 2) for seed in study.SEEDS],
    }
    lines = ["| RMSE of xi (± over seeds) | job 1 | job 2 | both |", "| --- | --: | --: | --: |"]
    lines += [f"| {name} | {' | '.join(three(pairs, answers))} |" for name, answers in rows.items()]
    models = {name for both in pairs.models for name in both}
    text = said(
        NESTED,
        rows=len(pairs),
        pairs=len({*pairs.groups}),
        models=len(models),
        candidates=len(training.GRID),
        seeds=len(study.SEEDS),
    )
    return "\n".join(["## Pairs left out", "", text, "", *lines, "", one_or_two(pairs)])


def three(pairs: PairRows, answers: list[Both]) -> list[str]:
    """Job 1, job 2, both: means over the seeds, with the standard deviation where seeds differ."""
    each = np.array([study.rmse(answer, pairs.xi) for answer in answers])
    whole = np.column_stack((each, np.sqrt((each**2).mean(axis=1))))
    means, spreads = whole.mean(axis=0), whole.std(axis=0, ddof=1)
    return [f"{m:.4f}" + f" ± {s:.4f}" * bool(s > 1e-9) for m, s in zip(means, spreads, strict=True)]


def one_or_two(pairs: PairRows) -> str:
    settings = training.GRID[2]
    other_way = study.turned(pairs, 0)
    found = {
        "one": (pairs, [study.one_candidate(pairs, seed, 2) for seed in study.SEEDS]),
        "two": (pairs, [study.two_outputs(pairs, seed, settings=settings) for seed in study.SEEDS]),
        "one_turned": (other_way, [study.one_candidate(other_way, seed, 2) for seed in study.SEEDS]),
        "turned": (
            other_way,
            [study.two_outputs(other_way, seed, settings=settings) for seed in study.SEEDS],
        ),
    }
    return said(ONE, **{name: three(table, answers)[2] for name, (table, answers) in found.items()})


def margins(pairs: PairRows, lefts: list[Left], model: InterferenceModel) -> str:
    held = inside(pairs, lefts)
    folds = [
        float(held[number][left.folds == fold].mean())
        for number, left in enumerate(lefts)
        for fold in range(len(left.settings))
    ]
    return said(
        UNSEEN,
        least=100 * min(folds),
        narrow=model.bands[0].factor * (SCALE_MIN + 0.5),
        wide=model.bands[-1].factor * (SCALE_MIN + 0.5),
    )


def drawn(pairs: PairRows, lefts: list[Left], model: InterferenceModel, folder: Path) -> str:
    first = lefts[0]
    bins = {
        f"job {job + 1}": pictures.binned(first.predicted[:, job], pairs.xi[:, job], first.margins[:, job])
        for job in (0, 1)
    }
    shares = dict(zip(model.features, model.importances, strict=True))
    figures = {
        "calibration": pictures.calibration(bins, "Predicted and measured xi, pairs left out"),
        "importances": pictures.importances(shares, "What the model leans on (trained on all pairs)"),
    }
    for name, figure in figures.items():
        plots.save(figure, folder / f"{name}.svg")
    return "\n\n".join(f"![{name}]({PLOTS}/{name}.svg)" for name in figures)


# --- Decisions and transfer --------------------------------------------------------------------------


def decisions(tables: Mapping[str, Judged]) -> str:
    lines = [
        "## What it means for decisions",
        "",
        said(DECISIONS, draws=study.DRAWS, median=study.MEDIAN_S, spread=study.SPREAD),
        "",
        f"| xi from | {' | '.join(f'{name}: otherwise | lost' for name in tables)} |",
        f"| --- |{' --: | --: |' * len(tables)}",
    ]
    columns = {name: lost_by(*judged) for name, judged in tables.items()}
    for source in dict.fromkeys(source for column in columns.values() for source in column):
        cells = [column.get(source, " | ") for column in columns.values()]
        lines.append(f"| {source} | {' | '.join(cells)} |")
    return "\n".join(lines)


def lost_by(pairs: PairRows, lefts: list[Left]) -> dict[str, str]:
    """Where the ratios came from -> two cells of the table: means over the seeds."""
    found: dict[str, list[study.Regret]] = {}
    for seed, left in zip(study.SEEDS, lefts, strict=True):
        answers: dict[str, Both] = {MODEL: left.predicted, **study.constants(pairs, left)}
        if "gpu_util_pct" in pairs.names:
            answers["duty-cycle rule"] = study.duty_cycle(pairs)
        for name, regret in study.regrets(pairs.xi, answers, seed).items():
            found.setdefault(name, []).append(regret)
    return {
        name: " | ".join(
            (
                f"{100 * float(np.mean([each.flipped for each in regrets])):.1f} %",
                f"{100 * float(np.mean([each.lost for each in regrets])):.3f} %",
            )
        )
        for name, regrets in found.items()
    }


def transfers(gavel: PairRows) -> tuple[str, int, int]:
    """The section; in how many of all crossings the model is no better than the source's mean."""
    types = {name: study.of_type(gavel, name) for name in ("v100", "p100", "k80")}
    lines = [
        "## From one type of GPU to another",
        "",
        said(TRANSFER),
        "",
        "| trained on | judged on | RMSE | mean of the source | correlation | lookup |",
        "| --- | --- | --: | --: | --: | --: |",
    ]
    worse = crossings = 0
    for source, mine in types.items():
        for target, theirs in types.items():
            row = study.transfer(mine, theirs, (source, target), study.SEEDS[0])
            if source != target:
                crossings, worse = crossings + 1, worse + int(row.rmse >= row.mean_rmse)
            lookup = "" if row.lookup is None else f"{row.lookup:.2f}"
            numbers = f"{row.rmse:.3f} | {row.mean_rmse:.3f} | {row.correlation:.2f} | {lookup}"
            lines.append(f"| {source} | {target} | {numbers} |")
    return "\n".join(lines), worse, crossings


if __name__ == "__main__":
    sys.exit(main())
