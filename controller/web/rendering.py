"""How a page and its parts become HTML, and the news of a page that is open: server-sent events with the
parts that have changed, or only their rows.

Rule: every text is escaped, whoever wrote it; a template that names what it was not given fails. A part is a
block of its page's template, so that what is sent later looks as what came first. News are bounded: a look
begins when the one before was sent, so that a slow reader gets fewer of them and never a queue; there are at
most `STREAMS_MAX` streams, and each ends after an hour, when the browser comes again.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from cotenant.controller.present.jobs import count_text, parameters
from cotenant.controller.present.units import duration, local_time, plural, size
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import wall_s

FOLDER: Final = Path(__file__).parent

STREAMS_MAX: Final = 32
STREAM_S: Final = 3600.0
QUIET_S: Final = 15.0
"""After so long without news a comment is sent: a connection that is gone is noticed."""
ROWS: Final = "rows"
"""The event that brings single rows."""

JOB_COLUMNS: Final = ("JOB", "job", "BESIDE JOB", "beside", "WITH")
"""Columns of tables whose cells are job numbers."""
_JOB_NUMBER: Final = re.compile(r"\b\d{1,12}(?:_\d{1,9})?\b")
_ROW: Final = re.compile(r'<(tr|article) id="([\w./:-]+)".*?</\1>', re.DOTALL)


@cache
def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(about=about, duration=duration, size=size, at=lambda at: local_time(wall_s(at)))
    made.globals.update(
        plural=plural,
        split_at_jobs=split_at_jobs,
        in_counts=count_text,
        in_values=parameters,
        job_columns=JOB_COLUMNS,
        lines_with_jobs=lines_with_jobs,
        lines_ahead=lines_ahead,
    )
    made.globals["ui"] = made.get_template("macros.html").module
    return made


def about(seconds: float | None) -> str:
    """A duration in its largest units, so that a page need not change every second: `45s`, `12m`, `2h05m`."""
    if seconds is None or seconds < 60.0:
        return duration(seconds)
    return duration(seconds - seconds % 60.0).removesuffix("00s")


def split_at_jobs(text: str, jobs: wire.Mentions | None = None) -> list[tuple[str, str]]:
    """The text in pieces: each ends with the number of a job, the last without. `jobs`: where the controller
    says that it names them; None: it is a list of their numbers, and nothing else."""
    spans = [match.span() for match in _JOB_NUMBER.finditer(text)] if jobs is None else jobs
    pieces, at = [], 0
    for begin, end in spans:
        pieces.append((text[at:begin], text[begin:end]))
        at = end
    return [*pieces, (text[at:], "")]


def lines_with_jobs(explained: wire.Explained) -> list[tuple[str, wire.Mentions]]:
    """What explains a job, each line with where it names others."""
    job, found = explained.job, explained.explanation
    return _pairs(found.lines, found.lines_jobs) or [(job.reason, job.reason_jobs)]


def lines_ahead(explained: wire.Explained) -> list[tuple[str, wire.Mentions]]:
    return _pairs(explained.explanation.ahead, explained.explanation.ahead_jobs)


def _pairs(lines: Sequence[str], jobs: Sequence[wire.Mentions]) -> list[tuple[str, wire.Mentions]]:
    return [(line, jobs[at] if at < len(jobs) else ()) for at, line in enumerate(lines)]


def whole(name: str, context: Mapping[str, Any]) -> str:
    return environment().get_template(f"{name}.html").render(context)


def part(name: str, block: str, context: Mapping[str, Any]) -> str:
    template = environment().get_template(f"{name}.html")
    return "".join(template.blocks[block](template.new_context(dict(context)))).strip()


class SentPart(NamedTuple):
    """A part as the browser has it: what is around its rows, and its rows by their ids."""

    frame: str
    rows: dict[str, str]


def taken_apart(html: str) -> SentPart:
    rows: dict[str, str] = {}

    def place(match: re.Match[str]) -> str:
        rows[match[2]] = match[0]
        return f"<{match[2]}>"

    return SentPart(_ROW.sub(place, html), rows)


def news(before: dict[str, SentPart], parts: dict[str, str]) -> list[tuple[str, str]]:
    """(event, html) for what is not as the browser has it; `before` is brought up to date."""
    found: list[tuple[str, str]] = []
    changed: list[str] = []
    for name, html in parts.items():
        old, new = before.get(name), taken_apart(html)
        before[name] = new
        if old == new:
            continue
        if old is None or old.frame != new.frame:
            found.append((name, html))
        else:
            changed += [row for key, row in new.rows.items() if old.rows[key] != row]
    if changed:
        swapped = [row.replace(" id=", ' hx-swap-oob="true" id=', 1) for row in changed]
        found.append((ROWS, f"<template>{''.join(swapped)}</template>"))
    return found


def event(name: str, html: str) -> str:
    return "".join([f"event: {name}\n", *(f"data: {line}\n" for line in html.splitlines() or [""]), "\n"])


async def stream(
    look: Callable[[], AsyncIterator[dict[str, str]]],
    is_ending: Callable[[], bool],
    begin: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[str]:
    """Events, as long as `look` brings parts. `begin`: those that the browser has."""
    before = {name: taken_apart(html) for name, html in begin.items()}
    began_s = spoke_s = time.monotonic()
    yield ": welcome\n\n"
    async for parts in look():
        now_s = time.monotonic()
        for name, html in news(before, parts):
            spoke_s = now_s
            yield event(name, html)
        if now_s - spoke_s > QUIET_S:
            spoke_s = now_s
            yield ": here\n\n"
        if is_ending() or now_s - began_s > STREAM_S:
            return
