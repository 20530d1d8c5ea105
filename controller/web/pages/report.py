"""Report: what sharing and preemption brought and cost, as the command `report` tells it.

Rule: the numbers and the formulas are the controller's; what is not known is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cotenant.controller.present import accounting
from cotenant.controller.submission.flags import duration_of
from cotenant.controller.web.page import Asking, Page, Params
from cotenant.controller.web.pages.what_if import SINCE
from cotenant.controller.wire import ReportView
from cotenant.controller.wire import clients as wire


def read_since_s(params: Params) -> float | None:
    """What is no period is as if none was asked for."""
    since = params.get("since")
    return duration_of("since", since) if since in SINCE else None


def look(asks: Asking, params: Params) -> ReportView:
    period_s = read_since_s(params)
    return asks.keep(f"report of {period_s}", lambda: asks.ask(wire.GetReport(since_s=period_s)).report)


def fill(report: ReportView, params: Params) -> Mapping[str, Any]:
    return {
        "report": report,
        "periods": SINCE,
        "since": params.get("since"),
        "held": list(accounting.held_in_words(report)),
        "shared_work": accounting.shared_work(report),
        "why_unknown": accounting.WHY_UNKNOWN,
        "interruption_columns": accounting.INTERRUPTIONS,
        "pairs": accounting.best_and_worst(report.pairs),
        "pairs_of": len(report.pairs) + report.more_pairs,
        "pair_columns": accounting.PAIRS,
        "formulas": [(name.removesuffix("_device_s"), text) for name, text in report.formulas.items()],
    }


PAGE: Final = Page(
    name="report",
    title="Report",
    path="/report",
    look=look,
    fill=fill,
    parts=("report",),
    every_s=5.0,
)
