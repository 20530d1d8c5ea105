"""What the screen of `cotenant top` is made of: a table that shows a pane, the question before a change."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.coordinate import Coordinate
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Button, DataTable, Static

from cotenant.controller.present.consequences import JobVerb, consequence
from cotenant.controller.present.top_view import Choice, Pane, Row
from cotenant.controller.wire import clients as wire


class PaneTable(DataTable[Text]):
    """The table of a pane; the cursor stays on its row when rows come, go or change their order."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select_cursor", "Details"),
        Binding("home,g", "scroll_top", "First", show=False),
        Binding("end,G", "scroll_bottom", "Last", show=False),
        Binding("k", "cursor_up", "Up", show=False),
        Binding("j", "cursor_down", "Down", show=False),
    ]

    class Resized(Message):
        """Other columns may fit."""

        def __init__(self, table: PaneTable) -> None:
            super().__init__()
            self.table = table

    def __init__(self, name: str) -> None:
        super().__init__(id=name, cursor_type="row", zebra_stripes=True)
        self.choice = Choice()
        self.pane = Pane("", (), (), ())

    @property
    def selected(self) -> str:
        """The key of the selected row; empty: there is none."""
        rows = self.pane.rows
        return rows[self.cursor_row].key if self.cursor_row < len(rows) else ""

    def on_resize(self) -> None:
        self.post_message(self.Resized(self))

    def fill(self, pane: Pane) -> None:
        before, selected = self.pane, self.selected
        self.pane = pane
        self.border_title = Content(pane.title)  # A text would be markup.
        keys = [row.key for row in pane.rows]
        if before.heads == pane.heads and keys == [row.key for row in before.rows]:
            for at, (old, new) in enumerate(zip(before.rows, pane.rows, strict=True)):
                if old != new:
                    for column, text in enumerate(_cells(new)):
                        self.update_cell_at(Coordinate(at, column), text)
            return
        top, row = self.scroll_y, self.cursor_row
        self.clear(columns=True)
        for label, width in pane.heads:
            self.add_column(Text(label), width=width)
        self.add_rows(_cells(each) for each in pane.rows)
        self.move_cursor(row=keys.index(selected) if selected in keys else row, scroll=False)
        self.scroll_to(y=top, animate=False)


def _cells(row: Row) -> list[Text]:
    return [Text(text, colour) for text, colour in zip(row.cells, row.colours, strict=True)]


class ChangeQuestion(ModalScreen[bool]):
    """Says what will happen, and asks. Anything but a plain yes is a no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "Yes"),
        Binding("n,q,escape", "dismiss(False)", "No"),
    ]
    AUTO_FOCUS = "#no"

    def __init__(self, verb: JobVerb, job: wire.JobView) -> None:
        super().__init__()
        self._verb, self._job = verb, job

    def compose(self) -> ComposeResult:
        verb, job = self._verb, self._job
        with Vertical(id="question"):
            yield Static(f"{verb.capitalize()} job {job.job_id} ({job.name}) of {job.user}?", markup=False)
            yield Static(consequence(verb, job), markup=False)
            with Horizontal():
                yield Button("No (n)", id="no")
                yield Button(f"Yes, {verb} it (y)", id="yes", variant="warning")

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")
