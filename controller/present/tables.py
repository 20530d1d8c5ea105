"""Tables as text: what a column shows, how wide it is, and what is left out where there is too little room.

Rule: a cell is one line, whatever is in it. Colour is the terminal's (`screen.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from cotenant.controller.domain import texts as domain_texts
from cotenant.controller.present.units import NONE

GAP: Final = "  "
LAST_WIDTH_MIN: Final = 18
STATE_COLOURS: Final = {
    "running": "green", "loading": "cyan", "checkpointing": "cyan", "stopping": "cyan", "reserved": "cyan",
    "queued": "yellow", "blocked": "yellow", "held": "yellow",
    "failed": "red", "cancelled": "dim", "done": "dim",
    "ok": "green", "silent": "yellow", "drained": "yellow", "suspect": "yellow", "lost": "red",
    "warn": "yellow", "fail": "red",
}  # fmt: skip


class Column(msgspec.Struct, frozen=True):
    """`text` takes a row. Where the screen is too narrow the columns with the highest `rank` go first."""

    title: str
    text: Callable[[Any], str]
    rank: int = 0
    """0 stays always."""
    right: bool = False
    limit: int = 0
    """Longer texts are cut on a terminal; 0 = no limit."""
    colour: Callable[[Any], str] | None = None
    wraps: bool = False
    """As the last column: what does not fit goes on in further lines, instead of being cut."""
    ends: bool = False
    """What is cut is cut in the middle: the end tells rows apart."""


def pieces_of(text: str, width: int) -> list[str]:
    if len(text) <= width:
        return [text]
    import textwrap

    return textwrap.wrap(text, width, break_on_hyphens=False)


def cells_of(columns: Sequence[Column], rows: Sequence[Any], *, is_cut: bool) -> list[list[str]]:
    """The cells of each row, one line each, within the limit of its column where there is one to keep to."""
    by_column = [_cells_of_column(column, rows, is_cut=is_cut) for column in columns]
    return [list(line) for line in zip(*by_column, strict=True)]


def _cells_of_column(column: Column, rows: Sequence[Any], *, is_cut: bool) -> list[str]:
    """Nearly all cells are plain, which is seen faster in all of them together."""
    cells = [column.text(row) or NONE for row in rows]
    together = "".join(cells)
    is_plain = together.isascii() and together.isprintable()
    if not is_plain:
        cells = [domain_texts.one_line(text) for text in cells]
    if is_cut and column.limit and not (is_plain and max(map(len, cells), default=0) <= column.limit):
        cells = [_fit_cell(column, text) for text in cells]
    return cells


def widths_of(cells: Sequence[Sequence[str]], at_least: Sequence[int]) -> list[int]:
    widths = list(at_least)
    for at, texts in enumerate(zip(*cells, strict=True)):
        width_of = len if "".join(texts).isascii() else columns_of
        widths[at] = max(widths[at], max(map(width_of, texts)))
    return widths


def that_fit(columns: Sequence[Column], widths: Sequence[int], width: int | None) -> list[int]:
    """Which columns there is room for beside the last one."""
    kept = list(range(len(columns)))
    while width is not None:
        last = min(widths[kept[-1]], LAST_WIDTH_MIN)
        needed = sum(widths[at] + len(GAP) for at in kept[:-1]) + last
        spare = [at for at in kept if columns[at].rank]
        if needed <= width or not spare:
            break
        kept.remove(max(spare, key=lambda at: columns[at].rank))
    return kept


def cell(text: str, width: int, right: bool) -> str:
    if len(text) <= width and text.isascii():
        return text.rjust(width) if right else text.ljust(width)
    text = cut(text, width)
    blank = " " * (width - columns_of(text))
    return blank + text if right else text + blank


def _fit_cell(column: Column, text: str) -> str:
    return cut_inside(text, column.limit) if column.ends else cut(text, column.limit)


def cut_inside(text: str, limit: int) -> str:
    """Cuts a text in its middle, so that both ends stay."""
    if not limit or columns_of(text) <= limit:
        return text
    kept = limit - 1
    return f"{_head(text, kept - kept // 2)}…{_head(text[::-1], kept // 2)[::-1]}"


def cut(text: str, limit: int) -> str:
    if not limit or columns_of(text) <= limit:
        return text
    return _head(text, limit - 1) + "…"


def _head(text: str, columns: int) -> str:
    """The longest beginning of `text` that takes no more than so many columns."""
    head = text[:columns]
    while columns_of(head) > columns:
        head = head[:-1]
    return head


def columns_of(text: str) -> int:
    """How wide it is on a terminal: East Asian characters take two columns, combining ones none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
