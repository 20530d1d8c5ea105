"""Usage: who used how much of the devices, as the command `usage` tells it.

Rule: at most `ROWS_MAX` rows are shown, those who held most, and it is said of how many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast, get_args

from cotenant.controller.present import usage as table
from cotenant.controller.present.usage import By
from cotenant.controller.web.page import Asking, Page, Params
from cotenant.controller.web.pages.report import read_since_s
from cotenant.controller.web.pages.what_if import SINCE
from cotenant.controller.wire import clients as wire

ROWS_MAX: Final = 500


class UsageLook(NamedTuple):
    last: wire.UsageRows
    rows: Sequence[wire.UsageView]


def grouping_of(params: Params) -> By:
    by = params.get("by")
    return cast(By, by) if by in get_args(By) else "user"


def look(asks: Asking, params: Params) -> UsageLook:
    request = wire.GetUsage(by=grouping_of(params), since_s=read_since_s(params))
    return asks.keep(
        f"usage by {request.by} of {request.since_s}",
        lambda: UsageLook(*table.all_rows(asks.ask, request)),
    )


def fill(looked: UsageLook, params: Params) -> Mapping[str, Any]:
    is_fair_share = looked.last.half_life_s is not None
    return {
        "rows": looked.rows[:ROWS_MAX],
        "of": len(looked.rows),
        "columns": (*table.COLUMNS, *((table.DECAYED,) if is_fair_share else ())),
        "forgotten": looked.last.forgotten_jobs,
        "by": grouping_of(params),
        "ways": get_args(By),
        "periods": SINCE,
        "since": params.get("since"),
    }


PAGE: Final = Page(
    name="usage",
    title="Usage",
    path="/usage",
    look=look,
    fill=fill,
    parts=("usage",),
    every_s=5.0,
)
