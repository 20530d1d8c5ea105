"""results/gfs-forecast.md, from the runs: every number is counted here, every sentence follows from
one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from cotenant.controller.papers.gfs.forecast import DAY_H
from cotenant.controller.sim.results.paired import ConfidenceInterval, Ratio, interval, ratio
from experiments.gfs import forecast_pictures
from experiments.gfs.forecast_runs import HORIZON_H, TEST_H, Row, Run
from experiments.shared.tables import header, row_of, said, saved, shown

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

ANSWER: Final = """Use `{default}`, the default: it is off by {mae} GPUs on average, {ratio} of the last
    value's error, and {coverage} % of the hours stay within its .9 quantile. With less than two weeks
    of demand `{fallback}` stands in, with {fallback_ratio} of the last value's error and nothing to
    train. GFS's own model, `orglinear`, is at {org_ratio}."""
SURE: Final = """Each pool is forecast on its own, {horizon} hours ahead. ± is a 95 % interval over
    {seeds} seeds; brackets hold a paired bootstrap over blocks of {block} days of the one test month,
    which is the larger doubt. *Within .9* is the share of hours at or below that quantile."""
LOSES: Final = """The default is beaten in these pools: {beaten}. It is above {limit} of the last
    value's error in {little}, and its .9 coverage is outside {low} to {high} in {outside}."""
POOLED: Final = """The pools stand in for the organisations that shared the cluster. The paper (eq. 9)
    adds up the quantiles of the parts, as if all peaked in the same hour. With the default model this
    sum is {paper_over_90:.1f} % above the demand on average and covers {paper_coverage_90:.1f} % of the
    hours; the .9 quantile of the total is {pool_over_90:.1f} % above and covers {pool_coverage_90:.1f} %,
    so a pool is forecast by its total."""
VERDICT: Final = """The paper says that OrgLinear errs {claimed:.0f} % less than the best other trained
    model. Here its mean error is {nearer} of {best}'s, which {holds}. The quantile trees of the
    default have {trees} of OrgLinear's mean error."""
METHOD: Final = """`make results-gfs` makes this page from {hours:,} hours of {series} pools of one GPU
    type each (`alibaba_spot_hourly`, the trace that GFS's authors released; GPUs requested, high
    priority and spot together). The last {days} days are the test; no model was trained and no setting
    chosen on them. `xgboost` are the trees of `xgboost-cqr` as trained; DeepAR is a small LSTM of ours.
    `python -m experiments.gfs.forecaster evaluate FILE` judges the same models on your own hours."""


def text(runs: Sequence[Run], facts: str, folder: Path) -> str:
    method = said(METHOD, hours=runs[0].hours, series=len(runs[0].series), days=TEST_H // DAY_H)
    parts = [
        "# Demand foreseen: GFS's estimator beside others",
        answer(runs),
        picture(runs, folder),
        models_table(runs),
        where_it_loses(runs),
        pool_and_paper(runs),
        f"## The paper's claim\n\n{verdict_on_the_paper(runs)}",
        f"## How this page was made\n\n{method}\n\n{facts}",
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


def against(runs: Sequence[Run], model: str, other: str = LAST) -> Ratio:
    """Of sums over the test, seeds together; the blocks are days in a row."""

    def blocks(name: str) -> list[float]:
        sums = np.sum([row.daily_gpus for row in rows_of(runs, "series", name)], axis=0)
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


def answer(runs: Sequence[Run]) -> str:
    rows = rows_of(runs, "series", DEFAULT)
    return said(
        ANSWER,
        default=DEFAULT,
        mae=f"{over(rows, lambda row: row.mae).mean:.0f}",
        ratio=f"{against(runs, DEFAULT).mean:.2f}",
        coverage=f"{100 * over(rows, lambda row: row.coverage_90).mean:.1f}",
        fallback=FALLBACK,
        fallback_ratio=f"{against(runs, FALLBACK).mean:.2f}",
        org_ratio=f"{against(runs, 'orglinear').mean:.2f}",
    )


def models_table(runs: Sequence[Run]) -> str:
    titles = ("model", "mean error, GPUs", "of last value", "within .9 %", "training, CPU s")
    lines = ["## Each pool on its own", ""]
    lines += [said(SURE, horizon=HORIZON_H, seeds=len(runs), block=BLOCK_DAYS), "", *header(titles)]
    for model in models(runs):
        rows = rows_of(runs, "series", model)
        cpu = over(rows, lambda row: row.train_cpu_s)
        lines.append(
            row_of(
                (
                    f"**{model}**" if model == DEFAULT else model,
                    shown(over(rows, lambda row: row.mae), "{:.1f}"),
                    told(against(runs, model)) if model != LAST else "1",
                    percent(over(rows, lambda row: row.coverage_90)),
                    shown(cpu, "{:.1f}") if cpu.mean else "none",
                )
            )
        )
    return "\n".join(lines)


def where_it_loses(runs: Sequence[Run]) -> str:
    """Pool by pool."""
    low, high = COVERAGE_TO_MEET
    beaten, little, outside = [], [], []
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
    return said(
        LOSES,
        beaten=", ".join(beaten) or "none",
        limit=MAE_TO_MEET,
        little=", ".join(little) or "none",
        low=low,
        high=high,
        outside=", ".join(outside) or "none",
    )


def _of_series(runs: Sequence[Run], model: str, name: str) -> tuple[float, float]:
    """MAE and .9 coverage, over the seeds."""
    mae, covered = np.mean([run.by_series[model][name] for run in runs], axis=0)
    return float(mae), float(covered)


def _mean(runs: Sequence[Run], aggregation: str, model: str, field: str) -> float:
    return float(np.mean([getattr(row, field) for row in rows_of(runs, aggregation, model)]))


def pool_and_paper(runs: Sequence[Run]) -> str:
    found = {
        f"{name}_{field}": 100 * _mean(runs, name, DEFAULT, field)
        for name in ("pool", "paper")
        for field in ("over_90", "coverage_90")
    }
    return f"## One quantile of the total, or the sum of quantiles\n\n{said(POOLED, **found)}"


def verdict_on_the_paper(runs: Sequence[Run]) -> str:
    best = min(PAPERS_KIND, key=lambda model: _mean(runs, "series", model, "mae"))
    nearer = against(runs, "orglinear", best)
    return said(
        VERDICT,
        claimed=PAPER["reduction_percent"]["mae"],
        nearer=told(nearer),
        best=best,
        holds="holds in kind" if nearer.high is not None and nearer.high < 1 else "does not reproduce",
        trees=told(against(runs, DEFAULT, "orglinear")),
    )


def picture(runs: Sequence[Run], folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    return saved(forecast_pictures.fan(runs[0].fan), folder, "fan", "The last week of the test, foreseen")
