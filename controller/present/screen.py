"""How things look on a terminal: tables, colour, and what is asked there.

Rule: colour and truncation are for terminals only. What goes into a pipe or a file is whole and plain. Cells
of tables are one line each, and the terminal gets no control sequences but our own colours: everything for a
person goes through `say` or `tell`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import Any, Final, TextIO

from cotenant.controller.domain import texts
from cotenant.controller.present import tables

RESET: Final = "\x1b[0m"
COLOURS: Final = {
    "green": "\x1b[32m",
    "yellow": "\x1b[33m",
    "red": "\x1b[31m",
    "cyan": "\x1b[36m",
    "dim": "\x1b[2m",
    "bold": "\x1b[1m",
}


def is_terminal(stream: TextIO | None = None) -> bool:
    return (stream or sys.stdout).isatty()


def has_colour(stream: TextIO | None = None) -> bool:
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str, stream: TextIO | None = None) -> str:
    return f"{COLOURS[colour]}{text}{RESET}" if colour and has_colour(stream) else text


def terminal_width() -> int | None:
    """Columns to keep to; None where lines may be as long as they like."""
    if not is_terminal():
        return None
    import shutil

    return shutil.get_terminal_size((80, 24)).columns


def say(text: str, *, flush: bool = False) -> None:
    """Lines for a person, on standard output."""
    print(printable(text), flush=flush)


def tell(text: str) -> None:
    """A word to the person, never part of the output that a script reads."""
    print(printable(text), file=sys.stderr, flush=True)


def said_yes(question: str) -> bool | None:
    """What a person answers at a terminal; None: there is nobody to ask."""
    if not is_terminal(sys.stdin) or not is_terminal(sys.stderr):
        return None
    print(f"{printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


_OURS: Final = re.compile("(" + "|".join(map(re.escape, (RESET, *COLOURS.values()))) + ")")


def printable(text: str) -> str:
    """Lines and our own colours stay; whatever else a terminal would obey is shown as its escape."""
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    return "\n".join(
        "".join(part if _OURS.fullmatch(part) else texts.one_line(part) for part in _OURS.split(line))
        for line in text.split("\n")
    )


def hint(text: str) -> None:
    """What to try next, where someone is looking."""
    if is_terminal() and is_terminal(sys.stderr):
        tell(paint(text, "dim", sys.stderr))


def wrap_text(text: str, indent: int, width: int | None = None) -> str:
    """Lines that fit the width (default: the terminal's), all but the first indented; unchanged without a
    terminal."""
    width = width or terminal_width()
    if width is None or width < indent + tables.LAST_WIDTH_MIN:
        return text
    import textwrap

    blank = " " * indent
    first = textwrap.fill(blank + text, width, subsequent_indent=blank, break_on_hyphens=False)
    return first[indent:]


def table(columns: Sequence[tables.Column], rows: Sequence[Any], width: int | None) -> str:
    """The table in aligned columns; with a `width` they fit it: cut, then dropped; the last takes the rest,
    or wraps."""
    return "\n".join(Table(columns, width).lines(rows))


class Table:
    """A table that comes page by page. The first one decides which columns there are; where a later one has
    longer texts, its columns are wider, and so are those of the pages after it."""

    def __init__(self, columns: Sequence[tables.Column], width: int | None) -> None:
        self._columns = columns
        self._width = width
        self._widths = [tables.columns_of(column.title) for column in columns]
        self._kept: list[int] = []
        self._in_colour = has_colour()  # Asked once: it asks the terminal.
        self._is_begun = False

    def lines(self, rows: Sequence[Any]) -> list[str]:
        """The lines of one page; on the first page the titles come first."""
        columns, width = self._columns, self._width
        cells = tables.cells_of(columns, rows, is_cut=width is not None)
        self._widths = tables.widths_of(cells, self._widths)
        lines, widths = [], list(self._widths)
        if not self._kept:
            self._kept = tables.that_fit(columns, widths, width)
        indent = sum(widths[at] + len(tables.GAP) for at in self._kept[:-1])
        if width is not None:
            last = self._kept[-1]
            widths[last] = min(widths[last], max(tables.LAST_WIDTH_MIN, width - indent))
        if not self._is_begun:
            self._is_begun = True
            titles = (tables.cell(columns[at].title, widths[at], columns[at].right) for at in self._kept)
            lines.append(paint(tables.GAP.join(titles).rstrip(), "bold"))
        sides = {at: ">" if columns[at].right else "<" for at in self._kept}
        plain = tables.GAP.join(f"{{{at}:{side}{widths[at]}}}" for at, side in sides.items())
        for row, line in zip(rows, cells, strict=True):
            lines += self._row(row, line, widths, indent, plain)
        return lines

    def _row(self, row: Any, line: list[str], widths: list[int], indent: int, plain: str) -> list[str]:
        """The text of a row: one line, or more if the last column wraps."""
        last = self._kept[-1]
        pieces = tables.pieces_of(line[last], widths[last]) if self._columns[last].wraps else [line[last]]
        line[last] = pieces[0]
        if not self._in_colour and len(line[last]) <= widths[last] and "".join(line).isascii():
            first = plain.format(*line).rstrip()  # Nearly all lines, at a fifth of the time.
        else:
            first = tables.GAP.join(
                [self._paint_cell(at, row, line[at], widths[at]) for at in self._kept]
            ).rstrip()
        return [first, *(" " * indent + self._paint_cell(last, row, piece, 0) for piece in pieces[1:])]

    def _paint_cell(self, at: int, row: Any, text: str, width: int) -> str:
        column = self._columns[at]
        padded = tables.cell(text, width, column.right)
        return paint(padded, column.colour(row)) if self._in_colour and column.colour else padded
