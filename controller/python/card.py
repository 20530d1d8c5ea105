"""A job as a notebook shows it.

Rule: every text in it may be foreign (names, reasons): we escape all of them, and the card has no script, no
link and nothing that a browser would fetch. Colours are the page's own."""

from __future__ import annotations

from html import escape
from typing import Final

from cotenant.controller.cli.jobs.eta import in_words
from cotenant.controller.domain import ENDED, Phase, one_line
from cotenant.controller.wire import JobView

_CARD: Final = "border:1px solid #8886;border-radius:6px;padding:.5em .8em;max-width:46em;font-size:.95em"
_BAR: Final = "height:6px;border-radius:3px;background:#8883"
_FULL: Final = "height:6px;border-radius:3px;background:currentColor;opacity:.6;width:{percent}%"


def card(job: JobView | None, title: str = "", problem: str = "") -> str:
    """`job`: None where there is no answer; the card then shows title and problem."""
    if job is None:
        return f'<div style="{_CARD}"><b>{_text(title)}</b><br>{_text(problem)}</div>'
    head = f"<b>job {_text(job.job_id)}</b> {_text(job.name)} &middot; {_text(job.phase.value)}"
    lines = [head, _text(job.reason), *(_text(each) for each in _facts(job) if each)]
    total = job.iterations or job.total_steps
    bar = ""
    if total:
        percent = max(0, min(100, round(100 * job.step / total)))
        full = _FULL.format(percent=percent)
        bar = f'<div style="{_BAR}" role="img" aria-label="{percent} %"><div style="{full}"></div></div>'
    return f'<div style="{_CARD}">{"<br>".join(lines)}{bar}</div>'


def _facts(job: JobView) -> list[str]:
    where = ", ".join(job.devices)
    beside = f" beside job {', '.join(job.co_tenants)}" if job.co_tenants else ""
    total = job.iterations or job.total_steps
    steps = f"step {job.step}" + (f" of {total}" if total else "")
    pace = f", {job.step_s:.3g} s each" if job.step_s else ""
    loss = f", loss {job.loss:.4g}" if job.loss is not None else ""
    waits = job.phase not in ENDED and job.eta is not None
    return [
        f"on {where}{beside}" if where else "",
        f"{steps}{pace}{loss}" if job.step else "",
        f"preempted {job.preemptions} x" if job.preemptions else "",
        in_words(job.eta) if waits and job.eta is not None else "",
        f"exit code {job.exit_code}" if job.phase is Phase.FAILED and job.exit_code is not None else "",
    ]


def _text(text: str) -> str:
    return escape(one_line(text))
