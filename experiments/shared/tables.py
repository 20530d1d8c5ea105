"""Small parts of results pages: paragraphs, tables, pictures, and numbers with what they may be off by."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from cotenant.controller.sim.results import plots
from cotenant.controller.sim.results.paired import ConfidenceInterval

WIDTH: Final = 118


def said(template: str, **values: Any) -> str:
    """A paragraph, filled and broken into lines."""
    return textwrap.fill(" ".join(template.split()).format(**values), WIDTH, break_on_hyphens=False)


def row_of(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"


def header(titles: Sequence[str]) -> list[str]:
    return [row_of(titles), row_of("---" for _ in titles)]


def said_seeds(seeds: Sequence[int]) -> str:
    return f"{len(seeds)} seed{'s' if len(seeds) != 1 else ''}"


def scaled(value: ConfidenceInterval, by: float) -> ConfidenceInterval:
    return ConfidenceInterval(value.mean / by, None if value.half is None else value.half / by)


def shown(value: ConfidenceInterval, form: str) -> str:
    text = form.format(value.mean)
    return text if not value.half else f"{text} ± {form.format(value.half)}"


def saved(figure: Any, folder: Path, name: str, title: str) -> str:
    plots.save(figure, folder / f"{name}.svg")
    return f"![{title}]({folder.name}/{name}.svg)"
