"""A pane of the screen of `cotenant top` as somebody looks at it: its order, its cursor, the rows seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rich.text import Text

from cotenant.controller.present.tables import GAP
from cotenant.controller.present.top_page import Moment
from cotenant.controller.present.top_view import Choice, Pane, decisions_pane, devices_pane, jobs_pane

PANES: Final[dict[str, Callable[[Moment, Choice, int], Pane]]] = {
    "devices": devices_pane,
    "jobs": jobs_pane,
    "decisions": decisions_pane,
}
ABOVE_ROWS: Final = 2
"""Lines of a pane above its rows: its title and its heads."""


class PaneState:
    """How somebody looks at a pane; the cursor stays on its row when rows come, go or change their order."""

    def __init__(self) -> None:
        self.choice = Choice()
        self.pane = Pane("", (), (), ())
        self.made_for: tuple[int, Choice, int] | None = None
        """The number of the moment, the choice and the width."""
        self._key, self._at, self._top = "", 0, 0

    @property
    def cursor(self) -> int:
        keys = [row.key for row in self.pane.rows]
        at = keys.index(self._key) if self._key in keys else self._at
        return max(0, min(at, len(keys) - 1))

    @property
    def selected(self) -> str:
        """The key of the selected row; empty: there is none."""
        return self.pane.rows[self.cursor].key if self.pane.rows else ""

    def move_to(self, at: int) -> None:
        self._at = max(0, min(at, len(self.pane.rows) - 1))
        self._key = self.pane.rows[self._at].key if self.pane.rows else ""

    def fill(self, pane: Pane) -> None:
        self.pane = pane
        self.move_to(self.cursor)

    def lines(self, room: int, *, has_focus: bool) -> list[Text]:
        """So many lines of it, the cursor among them."""
        rows, shown = self.pane.rows, max(0, room - ABOVE_ROWS)
        self._top = max(0, self.cursor - shown + 1, min(self._top, self.cursor, len(rows) - shown))
        part = f", rows {self._top + 1} to {self._top + shown}" if 0 < shown < len(rows) else ""
        lines = [
            Text(self.pane.title + part, "bold underline" if has_focus else "bold"),
            Text(GAP.join(label for label, _ in self.pane.heads), "bold"),
        ]
        for row in rows[self._top : self._top + shown]:
            cells = zip(row.cells, row.colours, strict=True)
            line = Text(GAP).join(Text(cell, colour) for cell, colour in cells)
            if has_focus and row.key == self.selected:
                line.stylize("reverse")
            lines.append(line)
        return lines[:room]
