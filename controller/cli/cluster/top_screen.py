"""The screen of `cotenant top`, on textual (extra `tui`): its tables, keys, details and questions.

Rule: `top_view` decides what stands in a pane; this module only puts it on the screen. Texts of others are
never markup. One other thread asks the controller, one question after another, so that its silence never
stops the keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, Final, ParamSpec, Protocol, TypeVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widget import Widget
from textual.widgets import DataTable, Footer, Header, Input, Static

from cotenant.controller.cli.cluster.top_widgets import ChangeQuestion, PaneTable
from cotenant.controller.client.connection import Refusal, Unreachable
from cotenant.controller.client.silence import trouble_in_words
from cotenant.controller.domain import JobId, Phase, texts
from cotenant.controller.present.consequences import JobVerb
from cotenant.controller.present.devices import legend
from cotenant.controller.present.top_page import Moment, phases_in_words
from cotenant.controller.present.top_view import (
    Choice,
    Pane,
    about_in_words,
    decisions_pane,
    details,
    devices_pane,
    job_of,
    jobs_pane,
    refusal,
)

W = TypeVar("W", bound=Widget)
T = TypeVar("T")
P = ParamSpec("P")

PANES: Final[dict[str, Callable[[Moment, Choice, int], Pane]]] = {
    "devices": devices_pane,
    "jobs": jobs_pane,
    "decisions": decisions_pane,
}


BESIDE_TITLE: Final = 30
"""Columns that the header needs for the program's name and its margins."""


class Asks(Protocol):
    """What the screen asks of the controller. Each may raise Unreachable or Refusal. Texts are one line each,
    but for `show`, which is a page with our own colours."""

    def look(self) -> Moment: ...

    def show(self, job_id: JobId, width: int) -> str: ...

    def log(self, job_id: JobId) -> str:
        """The last lines of its output, with colours."""
        ...

    def change(self, verb: JobVerb, job_id: JobId) -> str: ...


class TopScreen(App[int]):
    """The table that fills the screen; its result is the number of the signal that asked it to end."""

    TITLE = "cotenant"
    CSS = """
    #trouble { padding: 0 1; display: none; text-style: bold reverse; color: $error; }
    #status { padding: 0 1; }
    #legend { padding: 0 1; display: none; color: $text-muted; }
    .-tall #legend { display: block; }
    #tables { width: 1fr; }
    PaneTable { border-top: solid $primary; scrollbar-gutter: stable; scrollbar-size-vertical: 1;
                overflow-x: hidden; height: auto; }
    PaneTable:focus { border-top: heavy $accent; border-title-style: bold; }
    #devices { max-height: 50%; }
    #jobs { height: 1fr; }
    #decisions { max-height: 30%; display: none; }
    .-tall #decisions { display: block; }
    #details { display: none; width: 45%; border-left: solid $primary; padding: 0 1;
               scrollbar-gutter: stable; scrollbar-size-vertical: 1; }
    .-details #details { display: block; }
    .-narrow #body { layout: vertical; }
    .-narrow #details { width: 100%; height: 60%; border-left: none; border-top: solid $primary; }
    .-narrow.-details #tables { width: 100%; height: 40%; }
    .-narrow.-details PaneTable { display: none; }
    .-narrow.-details PaneTable.-chosen { display: block; height: 1fr; max-height: 100%; }
    #filter { display: none; }
    ChangeQuestion { align: center middle; }
    #question { width: 66; max-width: 95%; height: auto; border: thick $warning; padding: 1 2;
                background: $surface; }
    #question Static { margin-bottom: 1; }
    #question Horizontal { height: auto; align-horizontal: right; }
    #question Button { margin-left: 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("slash", "filter", "Filter"),
        Binding("s", "sort", "Sort"),
        Binding("r", "reverse", "Reverse"),
        Binding("l", "log", "Log"),
        Binding("c", "change('cancel')", "Cancel"),
        Binding("h", "change('hold')", "Hold"),
        Binding("i", "legend", "Legend", show=False),
        Binding("d", "decisions", "Decisions", show=False),
        Binding("space", "now", "Look again", show=False),
        Binding("escape", "less", "Close details, show all", show=False),
        Binding("question_mark", "toggle_keys", "Keys"),
        Binding("ctrl+c", "interrupt", "Quit", show=False, priority=True),
    ]

    def __init__(self, asks: Asks, first: Moment, every_s: float) -> None:
        super().__init__()
        self.HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (120, "-wide")]
        self.VERTICAL_BREAKPOINTS = [(0, "-short"), (30, "-tall")]
        self._asks, self._moment, self._every_s = asks, first, every_s
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._wanted = asyncio.Event()
        self._answered_s = time.monotonic()
        self._shows_log = False
        """Show a job's log in place of its page."""

    def close(self) -> None:
        """Stop asking the controller."""
        self._thread.shutdown(cancel_futures=True)

    # --- The screen -----------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        yield Header()
        yield Static(id="trouble", markup=False)
        yield Static(id="status", markup=False)
        with Horizontal(id="body"):
            with Vertical(id="tables"):
                yield from map(PaneTable, PANES)
            with VerticalScroll(id="details"):
                yield Static(id="text", markup=False)
        yield Static(id="legend", markup=False)
        yield Input(id="filter", placeholder="Only rows with this. Escape: all", compact=True)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        if not self.is_headless:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self.exit, number)
        self._table("jobs").focus()
        self._follow()

    def on_pane_table_resized(self, event: PaneTable.Resized) -> None:
        self._head()
        self._fill(event.table)
        self._tell()

    def _at(self, query: str, kind: type[W]) -> W:
        """A widget of the main screen, also while a question lies over it."""
        return self.screen_stack[0].query_one(query, kind)

    def _table(self, name: str) -> PaneTable:
        return self._at(f"#{name}", PaneTable)

    @property
    def _chosen(self) -> PaneTable:
        """The table that has the focus, else that of the jobs."""
        focused = self.screen_stack[0].focused
        return focused if isinstance(focused, PaneTable) else self._table("jobs")

    def _draw(self) -> None:
        """Draw what is known, as far as there is room."""
        self._head()
        for name in PANES:
            self._fill(self._table(name))
        self._tell()

    def _head(self) -> None:
        self.sub_title = about_in_words(self._moment.status, self.size.width - BESIDE_TITLE)
        self._at("#status", Static).update(Text(phases_in_words(self._moment.status)))

    def _fill(self, table: PaneTable) -> None:
        room = table.scrollable_content_region.width - 2 * table.cell_padding
        if room > 0:
            table.fill(PANES[table.id or ""](self._moment, table.choice, room))
            titles = [title for name in PANES for title in self._table(name).pane.titles]
            self._at("#legend", Static).update(Text(legend(titles)))

    # --- Asking ---------------------------------------------------------------------------------------

    async def _ask(self, question: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, lambda: question(*given, **named)
        )

    @work
    async def _follow(self) -> None:
        """Looks again and again; a controller that is away for a while does not end it."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), self._every_s)
            self._wanted.clear()
            try:
                self._moment = await self._ask(self._asks.look)
            except (Unreachable, Refusal) as error:
                self._warn(trouble_in_words(error, time.monotonic() - self._answered_s))
            else:
                self._answered_s = time.monotonic()
                self._warn("")
                self._draw()

    def _warn(self, text: str) -> None:
        trouble = self._at("#trouble", Static)
        trouble.update(Text(f"! {text}"))
        trouble.display = bool(text)

    # --- Details --------------------------------------------------------------------------------------

    def on_data_table_row_selected(self) -> None:
        self._open(shows_log=False)

    def action_log(self) -> None:
        self._open(shows_log=True)

    def _open(self, *, shows_log: bool) -> None:
        self._shows_log = shows_log
        for name in PANES:
            self._table(name).set_class(self._table(name) is self._chosen, "-chosen")
        self.screen_stack[0].add_class("-details")
        self.call_after_refresh(self._tell)

    def on_data_table_row_highlighted(self) -> None:
        self._tell()

    @work(exclusive=True, group="details")
    async def _tell(self) -> None:
        """Details of the selected row, where they are shown; else nothing."""
        if not self.screen_stack[0].has_class("-details"):
            return
        own, jobs = details(self._moment, self._chosen.id or "", self._chosen.selected)
        width = self._at("#details", VerticalScroll).scrollable_content_region.width
        parts = [Text(own)] if own else []
        for job_id in jobs:
            try:
                parts.append(Text.from_ansi(await self._page(job_id, width)))
            except Unreachable:  # What stands there is as old as the rest of the screen.
                return
            except Refusal as error:
                parts.append(Text(texts.one_line(str(error))))
        self._at("#text", Static).update(Text("\n\n").join(parts))

    async def _page(self, job_id: JobId, width: int) -> str:
        if self._shows_log:
            return f"log of job {job_id}, its end\n\n{await self._ask(self._asks.log, job_id)}"
        return await self._ask(self._asks.show, job_id, width)

    # --- Keys -----------------------------------------------------------------------------------------

    def action_now(self) -> None:
        self._wanted.set()

    def action_interrupt(self) -> None:
        self.exit(signal.SIGINT)

    def action_decisions(self) -> None:
        self._table("decisions").display = not self._table("decisions").display

    def action_legend(self) -> None:
        self._at("#legend", Static).display = not self._at("#legend", Static).display

    def action_toggle_keys(self) -> None:
        if self.screen.query("HelpPanel"):
            self.action_hide_help_panel()
        else:
            self.action_show_help_panel()

    def action_less(self) -> None:
        """Closes, on Escape, the filter first, then the details."""
        entry = self._at("#filter", Input)
        if entry.display:
            entry.value = ""
            entry.display = False
            self._chosen.focus()
        else:
            self.screen_stack[0].remove_class("-details")

    def action_filter(self) -> None:
        entry = self._at("#filter", Input)
        entry.display = True
        entry.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        for name in PANES:
            table = self._table(name)
            table.choice = table.choice._replace(pattern=event.value)
        self._draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.input.display = bool(event.value)
        self._table("jobs").focus()

    def action_sort(self) -> None:
        self._choose(self._chosen, self._chosen.choice.next_sort(self._chosen.pane.titles))

    def action_reverse(self) -> None:
        choice = self._chosen.choice
        self._choose(self._chosen, choice._replace(is_reversed=not choice.is_reversed))

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        table = event.data_table
        if isinstance(table, PaneTable):
            self._choose(table, table.choice.sorted_by(table.pane.titles[event.column_index]))

    def _choose(self, table: PaneTable, choice: Choice) -> None:
        table.choice = choice
        self._draw()

    @work
    async def action_change(self, verb: JobVerb) -> None:
        job = job_of(self._moment, self._table("jobs").selected)
        if job is None or self._chosen.id != "jobs":
            self.notify("select a job first", severity="warning")
            return
        if verb == "hold" and job.phase is Phase.HELD:
            verb = "release"
        if why := refusal(verb, job):
            self.notify(why, severity="warning", markup=False)
        elif await self.push_screen_wait(ChangeQuestion(verb, job)):
            try:
                self.notify(await self._ask(self._asks.change, verb, job.job_id), markup=False)
            except (Unreachable, Refusal) as error:
                self.notify(texts.one_line(str(error)), severity="error", markup=False)
            self.action_now()


def run(asks: Asks, first: Moment, every_s: float) -> int:
    """Runs until the person ends it. Returns the signal that ended it, or 0.

    Raises:
        RuntimeError: textual ended by a defect, which it has printed.
    """
    app = TopScreen(asks, first, every_s)
    try:
        number = app.run()
    finally:
        app.close()
    if app.return_code:
        raise RuntimeError("the screen ended by a defect")
    return number or 0
