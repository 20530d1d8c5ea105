"""The traces on which policies are compared, and the small parts of tables.

Rule: a set of traces counts only with the seeds for which every one of its runs is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from cotenant.controller.policies import registry
from cotenant.controller.sim.results import plots
from cotenant.controller.sim.results.intervals import Interval
from lazer import cells
from lazer.book import Book
from lazer.cells import POLICIES, Cell

PLOTS: Final = "lazer"
"""The folder of the plots, beside the page."""


def real_seeds(book: Book, load: float) -> list[int]:
    return book.seeds(lambda seed: real_cells(book, load, seed))


def grounds(book: Book) -> Iterable[tuple[str, list[Cell], list[int]]]:
    """Each set of traces with the seeds for which it is whole."""
    for load in book.sizes.loads:
        seeds = real_seeds(book, load)
        if seeds:
            yield f"Philly at {load:g}x", templates_real(book, load), seeds
    seeds = book.seeds(lambda seed: offered(cells.synthetic(book.sizes, seed)))
    if seeds:
        yield "synthetic", templates_synthetic(book), seeds


def offered(found: Iterable[Cell]) -> list[Cell]:
    return [cell for cell in found if cells.is_possible(cell)]


def real_cells(book: Book, load: float, seed: int) -> list[Cell]:
    return offered(cells.philly(book.sizes, load, seed, POLICIES))


def templates_real(book: Book, load: float) -> list[Cell]:
    return list(cells.philly(book.sizes, load, 0, ["lazer"]))


def templates_synthetic(book: Book) -> list[Cell]:
    return [cell for cell in cells.synthetic(book.sizes, 0) if cell.policy == "lazer"]


def available(policies: Iterable[str]) -> list[str]:
    return [policy for policy in policies if policy.partition(":")[0] in registry.AVAILABLE]


def row_of(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"


def header(titles: Sequence[str]) -> list[str]:
    return [row_of(titles), row_of("---" for _ in titles)]


def said_seeds(seeds: Sequence[int]) -> str:
    return f"{len(seeds)} seed{'s' if len(seeds) != 1 else ''}"


def scaled(value: Interval, by: float) -> Interval:
    return Interval(value.mean / by, None if value.half is None else value.half / by)


def shown(value: Interval, form: str) -> str:
    text = form.format(value.mean)
    return text if not value.half else f"{text} ± {form.format(value.half)}"


def saved(figure: Any, folder: Path, name: str, title: str) -> str:
    plots.save(figure, folder / f"{name}.svg")
    return f"![{title}]({folder.name}/{name}.svg)"
