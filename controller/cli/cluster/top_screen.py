"""The screen of `cotenant top`: what its keys do, and its lines.

Rule: `top_view` decides what stands in a pane. Nothing here waits: questions to the controller are handed to
another thread, one after the other, and their answers are taken up later; so its silence never stops the
keys. Texts of others are never markup.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, Protocol

from rich.console import Console
from rich.text import Text

from cotenant.controller.cli.cluster.top_panes import ABOVE_ROWS, PANES, PaneState
from cotenant.controller.client.connection import Refusal, Unreachable
from cotenant.controller.client.silence import trouble_in_words
from cotenant.controller.domain import JobId, Phase, texts
from cotenant.controller.present.consequences import JobVerb, consequence
from cotenant.controller.present.devices import legend
from cotenant.controller.present.top_page import Moment, headline, lines_for
from cotenant.controller.present.top_view import Choice, details, job_of, refusal
from cotenant.controller.wire import clients as wire

TALL_LINES: Final = 30
"""A screen with fewer lines has no room for a legend and decisions, unless somebody asks for them."""
HEAD_PART: Final = 4
"""The head takes at most a fourth of the screen."""
DECISIONS_LINES: Final = 6
DETAILS_SHARE: Final = 0.6
PAGE_LINES: Final = 10
MANY: Final = 1_000_000


class Asks(Protocol):
    """What the screen asks of the controller. Each may raise Unreachable or Refusal. Texts are one line each,
    but for `show`, which is a page with our own colours."""

    def look(self) -> Moment: ...

    def show(self, job_id: JobId, width: int) -> str: ...

    def log(self, job_id: JobId) -> str:
        """The last lines of its output, with colours."""
        ...

    def change(self, verb: JobVerb, job_id: JobId) -> str: ...


class TopScreen:
    """The tables that fill the screen, under keys."""

    def __init__(
        self,
        asks: Asks,
        first: Moment,
        submit: Callable[[Callable[[], Any]], Future[Any]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """submit: has another thread call a function, one after the other."""
        self._asks, self._moment, self._submit, self._clock = asks, first, submit, clock
        self._asked: list[tuple[Future[Any], Callable[[Future[Any]], None]]] = []
        self._moments = 0
        self._panes = {name: PaneState() for name in PANES}
        self._focus = "jobs"
        self._width, self._is_tall = 80, False
        self._flipped: set[str] = set()
        """`legend` and `decisions`: shown where there is no room for them, or hidden where there is."""
        self._shows = ""
        """`page`, `log` or `keys` below the tables; empty: nothing."""
        self._text, self._text_top, self._told = Text(), 0, 0
        self._pattern, self._is_typing = "", False
        self._question: tuple[JobVerb, wire.JobView] | None = None
        self._trouble, self._note = "", ""
        self.is_over = False
        self.is_looking = False
        self.answered_s = clock()

    # --- Asking ---------------------------------------------------------------------------------------

    def _ask(self, question: Callable[[], Any], then: Callable[[Future[Any]], None]) -> None:
        self._asked.append((self._submit(question), then))

    def take_answers(self) -> None:
        """Takes up what has been answered, in order."""
        while self._asked and self._asked[0][0].done():
            future, then = self._asked.pop(0)
            then(future)

    def look(self) -> None:
        """Asks for a new moment."""
        if not self.is_looking:
            self.is_looking = True
            self._ask(self._asks.look, self._looked)

    def _looked(self, answer: Future[Any]) -> None:
        self.is_looking = False
        try:
            self._moment = answer.result()
            self._moments += 1
        except (Unreachable, Refusal) as error:
            self._trouble = trouble_in_words(error, self._clock() - self.answered_s)
            return
        self._trouble, self.answered_s = "", self._clock()
        self._fill()
        self._tell()

    def _tell(self) -> None:
        """Asks for the details of the selected row, where they are shown."""
        if self._shows not in ("page", "log"):
            return
        own, jobs = details(self._moment, self._focus, self._pane.selected)
        self._told += 1
        self._ask(partial(self._details, self._told, own, jobs, self._shows, self._width), self._show_details)

    def _details(self, number: int, own: str, jobs: Iterable[JobId], kind: str, width: int) -> Text | None:
        """Runs in the other thread. None: something else is wanted by now, or nobody answers."""
        parts = [Text(own)] if own else []
        for job_id in jobs:
            if number != self._told:
                return None
            try:
                if kind == "log":
                    told = f"log of job {job_id}, its end\n\n{self._asks.log(job_id)}"
                else:
                    told = self._asks.show(job_id, width)
                parts.append(Text.from_ansi(told))
            except Unreachable:  # What stands there is as old as the rest of the screen.
                return None
            except Refusal as error:
                parts.append(Text(texts.one_line(str(error))))
        return Text("\n\n").join(parts)

    def _show_details(self, answer: Future[Any]) -> None:
        self._text = self._text if answer.result() is None else answer.result()

    # --- Lines ----------------------------------------------------------------------------------------

    @property
    def _pane(self) -> PaneState:
        return self._panes[self._focus]

    def _fill(self) -> None:
        """Makes the panes that are not of this moment, choice and width; a cursor that moves needs none."""
        for name, state in self._panes.items():
            wanted = (self._moments, state.choice, self._width)
            if state.made_for != wanted:
                state.made_for = wanted
                state.fill(PANES[name](self._moment, state.choice, self._width))

    def lines(self, width: int, height: int) -> list[Text]:
        """All lines of a screen of this size."""
        self._width, self._is_tall = width, height >= TALL_LINES
        self._fill()
        head = [Text(f"! {self._trouble}", "bold reverse red")] if self._trouble else []
        head += [Text.from_ansi(line) for line in headline(self._moment, width)]
        del head[max(2, height // HEAD_PART) :]
        foot = self._foot(width)
        room = max(0, height - len(head) - len(foot))
        below = self._below(width)[: room if self._question else int(room * DETAILS_SHARE)]
        names = [self._focus] if self._shows else self._visible()
        room -= len(below)
        given = self._share(names, room)
        drawn = [
            line
            for name, lines in zip(names, given, strict=True)
            for line in self._panes[name].lines(lines, has_focus=name == self._focus)
        ]
        blank = [Text("") for _ in range(room - len(drawn))]
        shown = [*head, *drawn, *blank, *below, *foot][:height]
        for line in shown:
            line.truncate(width)
        return shown

    def _share(self, names: Sequence[str], room: int) -> list[int]:
        """Lines for each pane; decisions get few, and what no other pane needs."""
        wants = {name: len(self._panes[name].pane.rows) + ABOVE_ROWS for name in names}
        least = {
            name: min(want, DECISIONS_LINES if name == "decisions" else want) for name, want in wants.items()
        }
        given = dict(zip(names, lines_for(list(least.values()), room), strict=True))
        if "decisions" in given:
            given["decisions"] += min(wants["decisions"] - least["decisions"], room - sum(given.values()))
        return list(given.values())

    def _has(self, what: str) -> bool:
        return self._is_tall is not (what in self._flipped)

    def _visible(self) -> list[str]:
        return [name for name in PANES if name != "decisions" or self._has("decisions")]

    def _below(self, width: int) -> list[Text]:
        """The question or the details, each line as wide as the screen at most."""
        if self._question is not None:
            verb, job = self._question
            asked = f"{verb.capitalize()} job {job.job_id} ({job.name}) of {job.user}?"
            words = [asked, consequence(verb, job), f"y: yes, {verb} it; any other key: no"]
            return [Text(line, "bold yellow") for each in words for line in textwrap.wrap(each, width)]
        if not self._shows:
            return []
        text = _keys_in_words() if self._shows == "keys" else self._text
        lines = list(text.wrap(Console(width=width), width))
        self._text_top = max(0, min(self._text_top, len(lines) - 1))
        return [Text("─" * width, "dim"), *lines[self._text_top :]]

    def _foot(self, width: int) -> list[Text]:
        lines = []
        if self._has("legend"):
            titles = [title for state in self._panes.values() for title in state.pane.titles]
            lines += [Text(line, "dim") for line in textwrap.wrap(legend(titles), width)]
        if self._pattern or self._is_typing:
            cursor = "█" if self._is_typing else ""
            lines.append(Text(f"/{self._pattern}{cursor}  (only rows with this; Escape: all)", "bold"))
        if self._note:
            lines.append(Text(self._note, "bold yellow"))
        return [*lines, Text("  ".join(f"{key} {what}" for key, what, _ in KEYS[:FOOT_KEYS]), "dim")]

    # --- Keys -----------------------------------------------------------------------------------------

    def press(self, key: str) -> None:
        self._note = ""
        if self._question is not None:
            self._answer(key)
        elif self._is_typing:
            self._type(key)
        elif (act := ACTIONS.get(key)) is not None:
            act(self)

    def _type(self, key: str) -> None:
        if key == "enter":
            self._is_typing, self._focus = False, "jobs"
        elif key == "escape":
            self.less()
        elif key == "backspace":
            self._filter(self._pattern[:-1])
        elif key == "space" or len(key) == 1:
            self._filter(self._pattern + (" " if key == "space" else key))

    def _filter(self, pattern: str) -> None:
        self._pattern = pattern
        for state in self._panes.values():
            state.choice = state.choice._replace(pattern=pattern)
        self._fill()
        self._tell()

    def filter(self) -> None:
        self._is_typing = True

    def less(self) -> None:
        """Closes, on Escape, the filter first, then the details."""
        if self._is_typing or self._pattern:
            self._is_typing = False
            self._filter("")
        else:
            self._shows = ""

    def quit(self) -> None:
        self.is_over = True

    def move(self, by: int) -> None:
        self._pane.move_to(self._pane.cursor + by)
        self._tell()

    def page(self, by: int) -> None:
        """By a page: what is below the tables, where something is."""
        if self._shows:
            self._text_top += by
        else:
            self.move(by)

    def next_table(self, by: int) -> None:
        names = self._visible()
        at = names.index(self._focus) if self._focus in names else 0
        self._focus = names[(at + by) % len(names)]
        self._tell()

    def show(self, kind: str) -> None:
        """Opens the details; the list of keys closes when it is asked for again."""
        self._shows = "" if kind == self._shows == "keys" else kind
        self._text, self._text_top = Text(), 0
        self._tell()

    def sort(self) -> None:
        self._choose(self._pane.choice.next_sort(self._pane.pane.titles))

    def reverse(self) -> None:
        self._choose(self._pane.choice._replace(is_reversed=not self._pane.choice.is_reversed))

    def _choose(self, choice: Choice) -> None:
        self._pane.choice = choice

    def flip(self, what: str) -> None:
        """Shows the legend or the decisions, or hides them."""
        self._flipped ^= {what}
        if self._focus not in self._visible():
            self._focus = "jobs"

    def change(self, verb: JobVerb) -> None:
        """Asks whether it should be; nothing is changed without a yes."""
        job = job_of(self._moment, self._pane.selected) if self._focus == "jobs" else None
        if job is None:
            self._note = "select a job first"
            return
        if verb == "hold" and job.phase is Phase.HELD:
            verb = "release"
        self._note = refusal(verb, job)
        self._question = None if self._note else (verb, job)

    def _answer(self, key: str) -> None:
        assert self._question is not None
        (verb, job), self._question = self._question, None
        if key == "y":
            self._ask(partial(self._asks.change, verb, job.job_id), self._changed)

    def _changed(self, answer: Future[Any]) -> None:
        try:
            self._note = answer.result()
        except (Unreachable, Refusal) as error:
            self._note = texts.one_line(str(error))
        self.look()


KEYS: Final[tuple[tuple[str, str, Callable[[TopScreen], None]], ...]] = (
    ("q", "Quit", TopScreen.quit),
    ("enter", "Details", lambda screen: screen.show("page")),
    ("/", "Filter", TopScreen.filter),
    ("s", "Sort", TopScreen.sort),
    ("r", "Reverse", TopScreen.reverse),
    ("l", "Log", lambda screen: screen.show("log")),
    ("c", "Cancel", lambda screen: screen.change("cancel")),
    ("h", "Hold", lambda screen: screen.change("hold")),
    ("?", "Keys", lambda screen: screen.show("keys")),
    ("i", "Legend", lambda screen: screen.flip("legend")),
    ("d", "Decisions", lambda screen: screen.flip("decisions")),
    ("space", "Look again", TopScreen.look),
    ("escape", "Close details, show all", TopScreen.less),
    ("tab", "Next table", lambda screen: screen.next_table(1)),
    ("shift+tab", "Table before", lambda screen: screen.next_table(-1)),
    ("up, k", "Up", lambda screen: screen.move(-1)),
    ("down, j", "Down", lambda screen: screen.move(1)),
    ("home, g", "First", lambda screen: screen.move(-MANY)),
    ("end, G", "Last", lambda screen: screen.move(MANY)),
    ("pageup", "Page up", lambda screen: screen.page(-PAGE_LINES)),
    ("pagedown", "Page down", lambda screen: screen.page(PAGE_LINES)),
)
FOOT_KEYS: Final = 9
"""So many of them are named at the foot of the screen."""
ACTIONS: Final = {key: act for keys, _, act in KEYS for key in keys.split(", ")}


def _keys_in_words() -> Text:
    return Text("\n".join(f"{key:<10} {what}" for key, what, _ in KEYS))
