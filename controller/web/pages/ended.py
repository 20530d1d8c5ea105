"""Ended: jobs that have ended, the newest first; those that failed stand out.

Rule: the controller finds and pages; at most `ROWS_MAX` are asked for at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple, get_args

from cotenant.controller.domain import ENDED, JobId, Phase
from cotenant.controller.web.page import Asking, Page, Params
from cotenant.controller.web.pages import changing
from cotenant.controller.web.pages.queue import link
from cotenant.controller.wire import clients as wire

ROWS_MAX: Final = 200
STATES: Final = tuple(sorted(ENDED))
ENDED_KINDS: Final = get_args(wire.SubmissionKind)


class EndedLook(NamedTuple):
    status: wire.ControllerStatus
    found: wire.Jobs


def look(asks: Asking, params: Params) -> EndedLook:
    state, kind, array = (params.get(name) for name in ("state", "kind", "array"))
    question = wire.ListJobs(
        ended=True,
        states=tuple(each for each in STATES if each.value == state),
        job_ids=(JobId(array),) if array else (),
        user=params.get("user"),
        name=params.get("name"),
        kind=next((each for each in ENDED_KINDS if each == kind), ""),
        text=params.get("q"),
        fold=not array,
        page=ROWS_MAX,
        before=place_of(params.get("before")),
    )
    return EndedLook(asks.ask(wire.GetStatus()), asks.ask(question))


def place_of(text: str) -> tuple[float, int] | None:
    """Where a page begins, as `place_in_words` wrote it; None: at the newest."""
    ended_s, _, number = text.partition(",")
    try:
        return float(ended_s), int(number)
    except ValueError:
        return None


def place_in_words(place: tuple[float, int] | None) -> str:
    return "" if place is None else f"{place[0]!r},{place[1]}"


def fill(looked: EndedLook, params: Params) -> Mapping[str, Any]:
    found = looked.found
    return {
        "rows": found.jobs,
        "of": sum(found.by_state.values()),
        "failed": found.by_state.get(Phase.FAILED, 0),
        "failed_link": link(params, "/ended", state="failed", before=""),
        "more": found.more,
        "next": link(params, "/ended", before=place_in_words(found.next_before)) if found.next_before else "",
        "newest": link(params, "/ended", before="") if params.get("before") else "",
        "states": STATES,
        "kinds": ENDED_KINDS,
        "filters": {name: params.get(name) for name in ("q", "state", "user", "name", "kind", "array")},
        "array_link": lambda array: link(params, "/ended", array=array, before=""),
        "may_change": partial(changing.may_change, looked.status),
        "verbs": changing.offered_verbs(looked.status, found.jobs),
    }


PAGE: Final = Page(
    name="ended",
    title="Ended",
    path="/ended",
    look=look,
    fill=fill,
    parts=("summary", "actions", "table"),
    every_s=5.0,
)
