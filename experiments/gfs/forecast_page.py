"""results/gfs-forecast.md, from the runs: every number is counted here, every sentence follows from
one."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from cotenant.controller.papers.gfs.forecast import DAY_H
from cotenant.controller.sim.results.paired import ConfidenceInterval, Ratio, interval, ratio
from experiments.gfs import forecast_pictures
from experiments.gfs.forecast_runs import HORIZON_H, TEST_H, Row, Run
from experiments.shared.tables import WIDTH, header, row_of, said, saved, shown

DEFAULT: Final = "xgboost-cqr"
LAST: Final = "last-value"
FALLBACK: Final = "last-change"
PAPER: Final = json.loads((Path(__file__).parent / "paper.json").read_text())
PAPERS_KIND: Final = ("dlinear", "deepar")
"""Those of the paper's baselines that are judged here; the four transformers are not."""
MAE_TO_MEET: Final = 0.87
COVERAGE_TO_MEET: Final = (0.88, 0.93)
BLOCK_DAYS: Final = 4
"""Days that are drawn together for an interval: demand of one day resembles that of the next."""

HEAD: Final = """GFS section 3.2 and 4.6.1: how many GPUs will be asked for in the next {horizon} hours,
    with how much doubt. Made by `make results-gfs`; every number is computed. The data: {hours:,} hours of
    {series} pools of one GPU type each (`alibaba_spot_hourly`, the trace that GFS's authors released,
    aggregated per hour; high priority and spot together, GPUs requested). The last {days} days are the
    test: nothing was trained on them, and no setting was chosen on them; settings were chosen on the two
    months before. `cotenant forecast evaluate FILE` judges the same models on your own hours."""
WHICH: Final = """**Which one should I use?** `{default}` (the default): it is off by {mae} GPUs on average,
    {ratio} of what the last value is off by, and {coverage} % of the hours stay within its .9 quantile. A
    training takes {cpu} CPU s (for three levels); to forecast it needs numpy alone. With less than two
    weeks of demand `{fallback}` stands in: {fallback_ratio} of the last value's error, nothing to train.
    `orglinear`, GFS's own model, is at {org_ratio}."""
SURE: Final = """± is a 95 % interval over {seeds} seeds (Student's). Behind "of last value" stands a paired
    bootstrap over blocks of {block} days of the test, which is the larger doubt: there is one test month.
    Loss is the pinball loss, what a quantile costs per hour. Within .9: the share of hours at or below that
    quantile."""
POOLED: Final = """Nobody knows which organisations asked for these GPUs, so the pools stand in for them
    here, as if any could use any GPU. `pool` forecasts the total once; `paper` (eq. 9) adds up the
    quantiles of the parts, as if all peaked in the same hour. Reserved beyond: the mean of the .9 quantile
    minus the demand, over the mean demand."""
LOSES: Final = """Pools where another model is nearer: {beaten}. Pools where it is above {limit} of the last
    value: {little}. Pools with a .9 coverage outside {low} to {high}: {outside}. Measures in which another
    trained model is better: {worse}. (MAQE, the distance between quantile and demand, is lower where a
    quantile covers too little; see the coverage.)"""
PAPERS: Final = """The paper's data are not public, and its p-MAQE is not defined to the letter: here it is
    the mean distance between quantile and truth over the mean demand of a series' hours. Its training times
    are of another machine and more data. Four of its baselines (transformers) are not rebuilt."""


def text(runs: Sequence[Run], facts: str, folder: Path) -> str:
    parts = [
        "# Demand foreseen: GFS's estimator beside others",
        first_screen(runs),
        to_meet(runs),
        models_table(runs, "series", "## Each pool on its own"),
        where_it_loses(runs),
        pool_and_paper(runs),
        beside_the_paper(runs),
        pictures(runs, folder),
        f"## How\n\n{limits(runs)}\n\n{facts}",
    ]
    return "\n\n".join(parts) + "\n"


# --- Numbers -----------------------------------------------------------------------------------------


def rows_of(runs: Sequence[Run], aggregation: str, model: str) -> list[Row]:
    return [next(row for row in run.rows[aggregation] if row.model == model) for run in runs]


def models(runs: Sequence[Run]) -> list[str]:
    return [row.model for row in runs[0].rows["series"]]


def over(rows: Sequence[Row], number: Callable[[Row], float | None]) -> ConfidenceInterval:
    values = [value for row in rows if (value := number(row)) is not None]
    found = interval(values)
    return found if np.ptp(values) > 1e-9 else ConfidenceInterval(found.mean, None)


def against(
    runs: Sequence[Run], aggregation: str, model: str, other: str = LAST, field: str = "daily_gpus"
) -> Ratio:
    """Of sums over the test, seeds together; the blocks are days in a row."""

    def blocks(name: str) -> list[float]:
        sums = np.sum([getattr(row, field) for row in rows_of(runs, aggregation, name)], axis=0)
        return [float(sums[at : at + BLOCK_DAYS].sum()) for at in range(0, len(sums), BLOCK_DAYS)]

    found = ratio([[list(zip(blocks(model), blocks(other), strict=True))]])
    assert found is not None
    return found


def told(value: Ratio) -> str:
    known = value.low is not None
    return f"{value.mean:.3f} [{value.low:.3f}, {value.high:.3f}]" if known else f"{value.mean:.3f}"


def percent(value: ConfidenceInterval) -> str:
    half = None if value.half is None else 100 * value.half
    return shown(ConfidenceInterval(100 * value.mean, half), "{:.1f}")


# --- Parts -------------------------------------------------------------------------------------------


def first_screen(runs: Sequence[Run]) -> str:
    head = said(
        HEAD, horizon=HORIZON_H, hours=runs[0].hours, series=len(runs[0].series), days=TEST_H // DAY_H
    )
    rows = rows_of(runs, "series", DEFAULT)
    which = said(
        WHICH,
        default=DEFAULT,
        mae=f"{over(rows, lambda row: row.mae).mean:.0f}",
        ratio=f"{against(runs, 'series', DEFAULT).mean:.2f}",
        coverage=f"{100 * over(rows, lambda row: row.coverage_90).mean:.1f}",
        cpu=f"{over(rows, lambda row: row.train_cpu_s).mean:.0f}",
        fallback=FALLBACK,
        fallback_ratio=f"{against(runs, 'series', FALLBACK).mean:.2f}",
        org_ratio=f"{against(runs, 'series', 'orglinear').mean:.2f}",
    )
    return f"{head}\n\n{which}"


def to_meet(runs: Sequence[Run]) -> str:
    lines = ["## What was to be met", "", *header(("figure", "asked", "found", "every seed", "verdict"))]
    low, high = COVERAGE_TO_MEET
    for aggregation, title in (("series", "each pool"), ("pool", "the total")):
        last = [row.mae for row in rows_of(runs, aggregation, LAST)]
        rows = rows_of(runs, aggregation, DEFAULT)
        shares = [row.mae / other for row, other in zip(rows, last, strict=True)]
        covered = [row.coverage_90 for row in rows]
        lines.append(_figure(f"MAE / last value, {title}", f"at most {MAE_TO_MEET}", shares, 0, MAE_TO_MEET))
        lines.append(_figure(f".9 coverage, {title}", f"{low} to {high}", covered, low, high))
    return "\n".join(lines)


def _figure(name: str, asked: str, values: Sequence[float], low: float, high: float) -> str:
    mean = float(np.mean(values))
    every, average = all(low <= value <= high for value in values), low <= mean <= high
    verdict = "met" if every else "met on average" if average else "missed"
    return row_of((name, asked, f"{mean:.3f}", f"{min(values):.3f} to {max(values):.3f}", verdict))


def models_table(runs: Sequence[Run], aggregation: str, title: str) -> str:
    titles = ("model", "MAE", "of last value", "RMSE", "MAPE %", "loss .9", "loss .95", "within .9 %",
              "within .95 %", "training, CPU s")  # fmt: skip
    lines = [title, "", said(SURE, seeds=len(runs), block=BLOCK_DAYS), "", *header(titles)]
    for model in models(runs):
        rows = rows_of(runs, aggregation, model)
        cpu = over(rows, lambda row: row.train_cpu_s)
        lines.append(
            row_of(
                (
                    f"**{model}**" if model == DEFAULT else model,
                    shown(over(rows, lambda row: row.mae), "{:.1f}"),
                    told(against(runs, aggregation, model)) if model != LAST else "1",
                    shown(over(rows, lambda row: row.rmse), "{:.1f}"),
                    percent(over(rows, lambda row: row.mape)),
                    shown(over(rows, lambda row: row.pinball_90), "{:.1f}"),
                    shown(over(rows, lambda row: row.pinball_95), "{:.1f}"),
                    percent(over(rows, lambda row: row.coverage_90)),
                    percent(over(rows, lambda row: row.coverage_95)),
                    shown(cpu, "{:.1f}") if cpu.mean else "none",
                )
            )
        )
    return "\n".join(lines)


def where_it_loses(runs: Sequence[Run]) -> str:
    """Pool by pool: the default, and whoever is nearest there; then measure by measure."""
    low, high = COVERAGE_TO_MEET
    titles = ("pool", f"{DEFAULT}: MAE", "of last value", "within .9 %", "best: model", "MAE")
    table, beaten, little, outside = [*header(titles)], [], [], []
    for name in runs[0].series:
        errors = {model: _of_series(runs, model, name)[0] for model in models(runs)}
        best = min(errors, key=lambda model: errors[model])
        mine, covered = _of_series(runs, DEFAULT, name)
        share = mine / errors[LAST]
        if best not in (DEFAULT, "xgboost"):  # They have one median.
            beaten.append(f"{name} ({best}, {100 * (mine / errors[best] - 1):.0f} % nearer)")
        if share > MAE_TO_MEET:
            little.append(f"{name} ({share:.3f})")
        if not low <= covered <= high:
            outside.append(f"{name} ({100 * covered:.1f} %)")
        shown_best = DEFAULT if best == "xgboost" else best
        cells = (
            name,
            f"{mine:.1f}",
            f"{share:.3f}",
            f"{100 * covered:.1f}",
            shown_best,
            f"{errors[best]:.1f}",
        )
        table.append(row_of(cells))
    text = LOSES.format(
        beaten=", ".join(beaten) or "none",
        limit=MAE_TO_MEET,
        little=", ".join(little) or "none",
        low=low,
        high=high,
        outside=", ".join(outside) or "none",
        worse="; ".join(_measures_lost(runs)) or "none",
    )
    return "\n".join(("## Where the default loses", "", said(text), "", *table))


def _of_series(runs: Sequence[Run], model: str, name: str) -> tuple[float, float]:
    """MAE and .9 coverage, over the seeds."""
    mae, covered = np.mean([run.by_series[model][name] for run in runs], axis=0)
    return float(mae), float(covered)


def _measures_lost(runs: Sequence[Run]) -> list[str]:
    """Who is better in which measure, and by how much."""
    measures = {
        "MAE": "mae", "RMSE": "rmse", "MAPE": "mape", "loss .9": "pinball_90", "loss .95": "pinball_95",
        ".9-MAQE": "maqe_90", ".95-MAQE": "maqe_95", "training time": "train_cpu_s",
    }  # fmt: skip
    found = []
    for title, field in measures.items():
        mine = _mean(runs, "series", DEFAULT, field)
        trained = [row.model for row in runs[0].rows["series"] if row.train_cpu_s]
        others = {model: _mean(runs, "series", model, field) for model in trained if model != DEFAULT}
        better = {model: value for model, value in others.items() if value < mine}
        if better:
            told_of = ", ".join(f"{model} {value:.4g}" for model, value in better.items())
            found.append(f"{title} {mine:.4g} against {told_of}")
    return found


def _mean(runs: Sequence[Run], aggregation: str, model: str, field: str) -> float:
    return float(np.mean([getattr(row, field) for row in rows_of(runs, aggregation, model)]))


def pool_and_paper(runs: Sequence[Run]) -> str:
    titles = ("model", "quantiles of", "MAE", "of last value", "loss .9", "within .9 %", "reserved beyond %")
    lines = ["## One quantile of the total, or the sum of quantiles", "", said(POOLED), "", *header(titles)]
    for model in (DEFAULT, "orglinear", "deepar", "dlinear", FALLBACK, LAST):
        for aggregation in ("pool", "paper"):
            rows = rows_of(runs, aggregation, model)
            lines.append(
                row_of(
                    (
                        model if aggregation == "pool" else "",
                        {"pool": "the total", "paper": "each, summed"}[aggregation],
                        shown(over(rows, lambda row: row.mae), "{:.0f}"),
                        told(against(runs, aggregation, model)) if model != LAST else "1",
                        shown(over(rows, lambda row: row.pinball_90), "{:.1f}"),
                        percent(over(rows, lambda row: row.coverage_90)),
                        percent(over(rows, lambda row: row.over_90)),
                    )
                )
            )
    one, other = (100 * _mean(runs, name, DEFAULT, "over_90") for name in ("pool", "paper"))
    verdict = (
        f"With the default model the sum reserves {other:.1f} % beyond the demand, the quantile of the total "
        f"{one:.1f} %. So a pool is forecast by its total; `aggregation=paper` is an option."
    )
    return "\n".join([*lines, "", said(verdict)])


def beside_the_paper(runs: Sequence[Run]) -> str:
    lines = ["## The paper's numbers beside ours", "", said(PAPERS), ""]
    lines += header(("OrgLinear against the best of the other trained ones", "paper", "here"))
    for field, name in (("mae", "MAE"), ("rmse", "RMSE"), ("mape", "MAPE")):
        mine = _mean(runs, "series", "orglinear", field)
        best = min(_mean(runs, "series", model, field) for model in PAPERS_KIND)
        change = 100 * (mine / best - 1)
        lines.append(row_of((name, f"-{PAPER['reduction_percent'][field]:.1f} %", f"{change:+.1f} %")))
    lines += ["", *header(("model", ".95-MAQE: paper", "here", ".9-MAQE: paper", "here", "training s: paper",
                           "CPU s here"))]  # fmt: skip
    for model in ("deepar", "orglinear", DEFAULT):
        known: dict[str, Any] = PAPER["maqe"].get(model, {})
        lines.append(
            row_of(
                (
                    model,
                    str(known.get("95", "")),
                    f"{_mean(runs, 'series', model, 'maqe_95'):.3f}",
                    str(known.get("90", "")),
                    f"{_mean(runs, 'series', model, 'maqe_90'):.3f}",
                    f"{known['train_s']:,.0f}" if known else "",
                    f"{_mean(runs, 'series', model, 'train_cpu_s'):.0f}",
                )
            )
        )
    return "\n".join([*lines, "", verdict_on_the_paper(runs)])


VERDICT: Final = """OrgLinear's mean error is {nearer} of {best}'s: the paper's 24 % {holds}. Its .9-MAQE is
    {maqe:.0f} % {side} DeepAR's (paper: 28 % below). That it trains faster {faster}: {cpu:.2f} of the time
    of our DeepAR (paper: .02 of the authors'). The quantile trees' error is {trees} of OrgLinear's, their
    .9 loss {loss}."""


def verdict_on_the_paper(runs: Sequence[Run]) -> str:
    best = min(PAPERS_KIND, key=lambda model: _mean(runs, "series", model, "mae"))
    nearer = against(runs, "series", "orglinear", best)
    maqe = _mean(runs, "series", "orglinear", "maqe_90") / _mean(runs, "series", "deepar", "maqe_90") - 1
    cpu = _mean(runs, "series", "orglinear", "train_cpu_s") / _mean(runs, "series", "deepar", "train_cpu_s")
    return said(
        VERDICT,
        nearer=told(nearer),
        best=best,
        holds="holds in kind" if nearer.high is not None and nearer.high < 1 else "does not reproduce here",
        maqe=abs(100 * maqe),
        side="below" if maqe < 0 else "above",
        faster="holds" if cpu < 1 else "does not hold",
        cpu=cpu,
        trees=told(against(runs, "series", DEFAULT, "orglinear")),
        loss=told(against(runs, "series", DEFAULT, "orglinear", "daily_loss")),
    )


def pictures(runs: Sequence[Run], folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    kept = [model for model in models(runs) if model not in ("xgboost", "last-week-peak")]
    ahead = {
        model: np.mean([row.ahead_mae for row in rows_of(runs, "series", model)], axis=0).tolist()
        for model in kept
    }
    return "\n\n".join(
        (
            "## Pictures",
            saved(forecast_pictures.fan(runs[0].fan), folder, "fan", "The last week of the test, foreseen"),
            saved(forecast_pictures.by_hour_ahead(ahead), folder, "hours-ahead", "Errors by hours ahead"),
        )
    )


LIMITS: Final = (
    """One test of {days} days, {horizon} hours ahead, an origin every hour; each model is trained once before
    it. Training anew every day, as a controller would, is not shown.""",
    """Quantiles are set right by errors only after their hour was seen. Quantiles of the last value, the
    seasonal forecast and DLinear come from such errors alone; OrgLinear and DeepAR say what they were
    trained to say.""",
    "`xgboost` are the trees of `xgboost-cqr` as trained; the latter trains twice, once to make errors.",
    "The file has no dates: the weekday is a day of some week, and holidays are not known.",
    "DeepAR is a small LSTM (a week of context, sampled paths), not the authors' code.",
    """Each origin is asked about {horizon} hours, and hours are alike: {days} days are fewer independent
    tests than the number of origins suggests, hence intervals over blocks of days.""",
)


def limits(runs: Sequence[Run]) -> str:
    days = len(runs[0].rows["series"][0].daily_gpus)
    return "\n".join(
        textwrap.fill(
            " ".join(each.split()).format(days=days, horizon=HORIZON_H),
            WIDTH,
            initial_indent="* ",
            subsequent_indent="  ",
            break_on_hyphens=False,
        )
        for each in LIMITS
    )
