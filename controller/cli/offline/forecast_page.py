"""What `cotenant forecast` prints for people: who is how far off, and a model's card."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from cotenant.controller.cli.frame import screen
from cotenant.controller.domain import one_line

if TYPE_CHECKING:
    from cotenant.controller.models.forecast import ForecastModel
    from cotenant.controller.training.forecast import ForecastEvaluation, Judged

NAMES_SHOWN: Final = 6


def evaluation_page(
    result: ForecastEvaluation, rows: tuple[Judged, ...], horizon_h: int, aggregation: str
) -> str:
    from cotenant.controller.training.forecast import MODELS

    last = next((row.mae for row in rows if row.model == "last-value"), None)
    columns = (
        screen.Column("MODEL", lambda row: row.model),
        screen.Column("MAE, GPUS", lambda row: f"{row.mae:.1f}", right=True),
        screen.Column("MAE / LAST", lambda row: f"{row.mae / last:.2f}" if last else "", rank=1, right=True),
        screen.Column("RMSE, GPUS", lambda row: f"{row.rmse:.1f}", rank=4, right=True),
        screen.Column("MAPE", lambda row: _percent(row.mape), rank=5, right=True),
        screen.Column("LOSS .9, GPUS", lambda row: f"{row.pinball_90:.1f}", rank=2, right=True),
        screen.Column("LOSS .95, GPUS", lambda row: f"{row.pinball_95:.1f}", rank=7, right=True),
        screen.Column("WITHIN .9", lambda row: _percent(row.coverage_90), right=True),
        screen.Column("WITHIN .95", lambda row: _percent(row.coverage_95), rank=6, right=True),
        screen.Column("CPU, s", lambda row: f"{row.train_cpu_s:.1f}" if row.train_cpu_s else "", 8, True),
        screen.Column("WHAT", lambda row: MODELS[row.model], rank=9),
    )
    return "\n".join(
        (
            _what(result, horizon_h, aggregation),
            "",
            screen.table(columns, rows, screen.terminal_width()),
            "",
            _verdict(rows, last),
        )
    )


def _what(result: ForecastEvaluation, horizon_h: int, aggregation: str) -> str:
    names = result.names[:-1] if len(result.names) > 1 else result.names
    shown = listed(names)
    subject = {
        "series": f"{len(names)} series ({shown})" if len(names) > 1 else shown,
        "pool": f"the total of {len(names)} series",
        "paper": f"the total of {len(names)} series, quantiles summed over them",
    }[aggregation]
    hours = f"1 to {horizon_h} hours" if horizon_h > 1 else "1 hour"
    return f"{subject}; {hours} ahead from {len(result.origins)} origins; errors in GPUs"


def _verdict(rows: tuple[Judged, ...], last: float | None) -> str:
    first, best = rows[0], min(rows, key=lambda row: row.mae)
    text = f"{first.model} is off by {first.mae:.1f} GPUs on average"
    if last and first.model != "last-value":
        change = 100 * (first.mae / last - 1)
        text += f", {abs(change):.0f} % {'less' if change < 0 else 'more'} than the last value"
    text += f"; {_percent(first.coverage_90)} of the hours stay within its .9 quantile."
    if best.mae < first.mae:
        text += f" {best.model} is nearer: {best.mae:.1f}."
    return screen.wrapped(text, 0)


def listed(names: tuple[str, ...]) -> str:
    return one_line(", ".join(names[:NAMES_SHOWN]) + (", ..." if len(names) > NAMES_SHOWN else ""))


def _percent(share: float | None) -> str:
    return screen.NONE if share is None else f"{100 * share:.1f} %"


def model_page(model: ForecastModel, path: Path) -> str:
    """The model card."""
    card, found = model.card, "a year of holidays ahead, " if model.holidays else ""
    names = model.series[:-1] if len(model.series) > 1 else model.series
    lines = [f"{path}: {model.kind} for {listed(names)}, 1 to {model.horizon_h} hours ahead"]
    if card is not None:
        licence = f" ({card.licence})" if card.licence else ""
        lines.append(f"  trained on {model.hours} hours of {card.file}{licence}, {found}seed {model.seed}")
        own, last = card.scores, card.last_value
        lines.append(
            f"  on its last {card.test_last_h} hours, by a training without them: off by {own.mae:.1f} GPUs, "
            f"the last value by {last.mae:.1f}; {_percent(own.coverage_90)} within its .9 quantile"
        )
    lines.append(f"  use it: cotenant policy set gfs model={path}")
    return "\n".join(lines)
