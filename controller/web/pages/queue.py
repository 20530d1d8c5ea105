"""Queue: what runs, what waits and why.

Rule: `ROWS_MAX` rows are shown, and it is said of how many.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from cotenant.controller.cli.jobs.eta import likely
from cotenant.controller.web.page import Asking, Page, Params
from cotenant.controller.wire import ControllerStatus, GetStatus, Jobs, ListJobs

ROWS_MAX: Final = 500


class Looked(NamedTuple):
    status: ControllerStatus
    jobs: Jobs


def look(asks: Asking, params: Params) -> Looked:
    return Looked(asks.ask(GetStatus()), asks.ask(ListJobs(limit=ROWS_MAX)))


def shown(looked: Looked, params: Params) -> Mapping[str, Any]:
    return {"status": looked.status, "jobs": looked.jobs.jobs, "more": looked.jobs.more, "likely": likely}


PAGE: Final = Page(
    name="queue",
    title="Queue",
    path="/queue",
    look=look,
    shown=shown,
    parts=("summary", "table"),
    every_s=1.0,
)
