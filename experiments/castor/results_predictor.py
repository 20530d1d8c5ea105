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

from cotenant.controller.domain import InterferenceModel
from cotenant.controller.models.interference.predictor import SCALE_MIN
from cotenant.controller.sim.results import plots
from cotenant.controller.training import Both, PairRows
from cotenant.controller.training import interference as training
from experiments.castor.interference import pictures, study
from experiments.castor.interference.study import Left
from experiments.shared import paths
from experiments.shared.tables import said

DOCS: Final = paths.RESULTS
PLOTS: Final = "castor-predictor"
MODEL: Final = "**the model**"
THROUGHPUT: Final = ("samples_per_s", "steps_per_s")
TARGET: Final = (0.14, 0.095)
"""What was asked for, cross-validated by pair."""

HEAD: Final = """Castor section 6: how much two jobs slow each other down, predicted from what was
    measured of each alone. Made by `python experiments/castor/results_predictor.py`; every number is
    computed. Castor reports RMSE 0.06 and 0.07 on pairs of its own testbed, from indicators that no
    public table has: comparable in kind only."""
NESTED: Final = """{rows:,} rows of {pairs} pairs of {models} models (Lucid's table; only rows that
    ran). Five folds of whole pairs; in each, all of `predictor train`, the choice among {candidates}
    settings included, sees four of them. {seeds} seeds draw the folds. xi below 1 is noise of the
    source and stays as it is here. The candidates were written by people who had seen this table, in
    some sixty trials of depth, leaves, loss, weights, columns, monotone or not; nobody has seen the
    pairs that its curators held back."""
ONE: Final = """One regressor or two? Castor has an output per job. In this table job 1 is mostly an
    image model and job 2 is not, so two outputs can learn who stands where: {two} against our {one}
    over both jobs, same settings. With a random half of the rows written the other way round it is
    {turned} against {one_turned}. In a cluster the order means nothing; one regressor it is."""
UNSEEN: Final = """With every pair of one model left out, so that one job is of a kind never seen: RMSE
    {unseen} over both jobs, against {mean} of the mean (and {slow} without throughput, third
    candidate). Margins promise {promised:.0f} %; of the pairs left out {covered:.1f} % lay within them,
    {least:.1f} % in the worst fold (rows of one pair are off together). They grow with what is
    predicted: at xi = 1.5 they are {narrow:.2f} for jobs that the training knows and up to {wide:.2f}
    for the strangest."""
DECISIONS: Final = """Castor's Theorem 1, for job 1 arriving beside job 2, {draws} times per row with
    remaining times drawn (lognormal, median {median:g} s, sigma {spread:g}); the measured ratios say
    what is right. `lost` is the mean over all decisions of how much longer the two take on average than
    they need."""
TRANSFER: Final = """Gavel's table (MIT) has no hardware features: a job is its steps per second alone,
    its batch and their product, which is little more than its identity on one type. So this is a test
    of transfer, not of learning from indicators. Pairs of models are left out on both types. `lookup`
    is what the same pair's measured ratio on the other type would be worth."""


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
    parts = [
        head(),
        errors(lucid, lefts),
        strangers(lucid, lefts, model),
        drawn(lucid, lefts, model, folder / PLOTS),
        decisions(
            {
                "Lucid": (lucid, lefts),
                **{f"Gavel {name}": nested_on(gavel, name) for name in ("v100", "p100")},
            }
        ),
        transfers(gavel),
    ]
    page = folder / "castor-predictor.md"
    page.write_text("\n\n".join(parts) + "\n")
    print(page)
    return 0


def nested_on(gavel: PairRows, name: str) -> Judged:
    pairs = study.of_type(gavel, name)
    return pairs, [study.nested(pairs, seed) for seed in study.SEEDS]


def head() -> str:
    return "\n".join(
        [
            "# The interference model on measured pairs",
            "",
            said(HEAD),
            machine.sentences(numpy=np.__version__, xgboost=xgboost.__version__),
        ]
    )


# --- Errors ------------------------------------------------------------------------------------------


def errors(pairs: PairRows, lefts: list[Left]) -> str:
    seeds = len(lefts)
    slow = study.without(pairs, *THROUGHPUT)
    rows: dict[str, list[Both]] = {
        f"{MODEL}, nested": [left.predicted for left in lefts],
        "mean of the training": [left.mean for left in lefts],
        "duty-cycle rule": [study.duty_cycle(pairs)] * seeds,
        "the settled start alone": [study.one_candidate(pairs, seed, 0) for seed in study.SEEDS],
        "the third candidate alone": [study.one_candidate(pairs, seed, 2) for seed in study.SEEDS],
        "the same without throughput": [study.one_candidate(slow, seed, 2) for seed in study.SEEDS],
    }
    lines = ["| RMSE of xi (± over seeds) | job 1 | job 2 | both |", "| --- | --: | --: | --: |"]
    lines += [f"| {name} | {' | '.join(three(pairs, answers))} |" for name, answers in rows.items()]
    lines.append(f"| asked for | {TARGET[0]:g} | {TARGET[1]:g} | |")
    models = {name for both in pairs.models for name in both}
    text = said(
        NESTED,
        rows=len(pairs),
        pairs=len({*pairs.groups}),
        models=len(models),
        candidates=len(training.GRID),
        seeds=len(study.SEEDS),
    )
    return "\n".join(
        ["## Pairs left out", "", text, "", *lines, "", *by_fold(pairs, lefts), "", one_or_two(pairs)]
    )


def three(pairs: PairRows, answers: list[Both]) -> list[str]:
    """Job 1, job 2, both: means over the seeds, with the standard deviation where seeds differ."""
    each = np.array([study.rmse(answer, pairs.xi) for answer in answers])
    whole = np.column_stack((each, np.sqrt((each**2).mean(axis=1))))
    means, spreads = whole.mean(axis=0), whole.std(axis=0, ddof=1)
    return [f"{m:.4f}" + f" ± {s:.4f}" * bool(s > 1e-9) for m, s in zip(means, spreads, strict=True)]


def by_fold(pairs: PairRows, lefts: list[Left]) -> list[str]:
    """Pooled over the rows of a fold."""
    lines = [
        "| seed | fold | pairs | rows | job 1 | mean | job 2 | mean | leaves chosen |",
        "| --: | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    better = total = 0
    for seed, left in zip(study.SEEDS, lefts, strict=True):
        for fold, settings in enumerate(left.settings):
            out = left.folds == fold
            own = study.rmse(left.predicted[out], pairs.xi[out])
            mean = study.rmse(left.mean[out], pairs.xi[out])
            better, total = better + int((own < mean).sum()), total + 2
            groups = len({g for g, is_out in zip(pairs.groups, out, strict=True) if is_out})
            numbers = f"{own[0]:.3f} | {mean[0]:.3f} | {own[1]:.3f} | {mean[1]:.3f}"
            lines.append(
                f"| {seed} | {fold + 1} | {groups} | {out.sum()} | {numbers} | {settings['max_leaves']:g} |"
            )
    return [f"Below the mean in {better} of {total} (fold, job).", "", *lines]


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


def strangers(pairs: PairRows, lefts: list[Left], model: InterferenceModel) -> str:
    inside = [np.abs(left.predicted - pairs.xi) <= left.margins for left in lefts]
    folds = [
        float(inside[number][left.folds == fold].mean())
        for number, left in enumerate(lefts)
        for fold in range(len(left.settings))
    ]
    return said(
        UNSEEN,
        unseen=f"{model.cross_validation.unseen_model_rmse:.3f}",
        slow=f"{study.unseen(study.without(pairs, *THROUGHPUT), study.SEEDS[0], 2):.3f}",
        mean=f"{study.unseen_mean(pairs):.3f}",
        promised=100 * model.coverage,
        covered=100 * float(np.mean(inside)),
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
    lines = [
        "## Calibration, and what the model leans on",
        "",
        f"Ten bins of equally many rows (seed {study.SEEDS[0]}); single rows are not shown.",
        "",
        "| job | predicted | measured | 5 to 95 % of measured | margin | rows |",
        "| --- | --: | --: | --: | --: | --: |",
    ]
    for name, each in bins.items():
        lines += [
            f"| {name} | {b.predicted:.3f} | {b.measured:.3f} | {b.low:.2f} to {b.high:.2f} | {b.margin:.2f} "
            f"| {b.rows} |"
            for b in each
        ]
    for name, figure in figures.items():
        plots.save(figure, folder / f"{name}.svg")
        lines += ["", f"![{name}]({PLOTS}/{name}.svg)"]
    return "\n".join(lines)


# --- Decisions and transfer --------------------------------------------------------------------------


def decisions(tables: Mapping[str, Judged]) -> str:
    lines = [
        "## What it means for decisions",
        "",
        said(DECISIONS, draws=study.DRAWS, median=study.MEDIAN_S, spread=study.SPREAD),
        "",
        f"| xi from | {' | '.join(f'{name}: decided otherwise | lost' for name in tables)} |",
        f"| --- |{' --: | --: |' * len(tables)}",
    ]
    columns = {name: lost_by(*judged) for name, judged in tables.items()}
    for source in dict.fromkeys(source for column in columns.values() for source in column):
        cells = [column.get(source, " | ") for column in columns.values()]
        lines.append(f"| {source} | {' | '.join(cells)} |")
    best = [
        min((c for c in column if c != study.NOISY), key=lambda c: lost(column[c]))
        for column in columns.values()
    ]
    told = "; ".join(f"{name}: {each}" for name, each in zip(columns, best, strict=True))
    return "\n".join([*lines, "", f"Least lost, measurements apart, with {told}."])


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


def lost(cells: str) -> float:
    return float(cells.split("|")[1].strip(" %"))


def transfers(gavel: PairRows) -> str:
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
    verdict = (
        f"On another type the model is no better than the source's mean in {worse} of {crossings} cases."
    )
    return "\n".join([*lines, "", verdict])


if __name__ == "__main__":
    sys.exit(main())
