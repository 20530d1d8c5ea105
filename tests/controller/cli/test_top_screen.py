"""The screen of `top` under its keys, with a controller that a test plays."""

from __future__ import annotations

import os
import pty
import re
import signal
import termios
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from cotenant.controller.cli.cluster import top_live
from cotenant.controller.cli.cluster.top_screen import KEYS, TopScreen
from cotenant.controller.client.connection import Refusal, Unreachable
from cotenant.controller.domain import JobId
from cotenant.controller.present.consequences import JobVerb
from cotenant.controller.present.top_page import Moment
from cotenant.controller.wire import clients as wire

HOSTILE = "[bold red]x[/] \\x1b[31m"
SMALL, LARGE = (80, 24), (200, 50)


class Played:
    """A controller: its looks, and what it was asked for."""

    def __init__(self, moment: Moment) -> None:
        self.moment = moment
        self.silent = False
        self.changes: list[tuple[str, str]] = []
        self.shown: list[str] = []
        self.looks = 0
        self.threads: set[int] = set()
        self.before_look: Callable[[], object] = lambda: None
        self.page = "all about job {}"

    def look(self) -> Moment:
        self.before_look()
        self.threads.add(threading.get_ident())
        self.looks += 1
        if self.silent:
            raise Unreachable("gone")
        return self.moment

    def show(self, job_id: JobId, width: int) -> str:
        self.threads.add(threading.get_ident())
        if self.silent:
            raise Unreachable("gone")
        self.shown.append(job_id)
        return self.page.format(job_id)

    def log(self, job_id: JobId) -> str:
        self.threads.add(threading.get_ident())
        return f"the end of log {job_id}"

    def change(self, verb: JobVerb, job_id: JobId) -> str:
        self.changes.append((verb, job_id))
        if job_id == "2":
            raise Refusal(wire.Failure(request_id=0, code="not-allowed", message="it is not yours"))
        return f"job {job_id}: {verb} was asked for"


@pytest.fixture
def played(replies: ModuleType) -> Played:
    tenants = {"h/cpu0": (JobId("1"), JobId("2"))}
    node = replies.node("h", replies.device("cpu0", "h"), replies.device("cpu1", "h"), tenants=tenants)
    waiting = [replies.waiting(str(each), "behind 1", name=HOSTILE) for each in range(3, 60)]
    jobs = [replies.job_view("1", durable_step=30), replies.job_view("2"), *waiting]
    return Played(
        Moment(
            status=replies.status(),
            nodes=replies.nodes(node),
            jobs=replies.jobs(*jobs),
            decisions=wire.Decisions(request_id=0, decisions=(), now_s=0.0, wall_s=0.0),
        )
    )


def at_once(question: Callable[[], Any]) -> Future[Any]:
    """Another thread that has answered before anybody looks."""
    answer: Future[Any] = Future()
    try:
        answer.set_result(question())
    except (Unreachable, Refusal) as error:
        answer.set_exception(error)
    return answer


class Seen:
    """The screen, and somebody who looks at it after each key."""

    def __init__(self, played: Played, size: tuple[int, int] = SMALL) -> None:
        self.screen, self.size = TopScreen(played, played.moment, at_once, lambda: 0.0), size
        self.text = ""
        self.press()

    def press(self, *keys: str) -> str:
        """What is seen after these keys."""
        note = ""
        for key in (*keys, ""):
            self.screen.press(key)
            self.screen.take_answers()
            lines = [line.plain for line in self.screen.lines(*self.size)]
            assert len(lines) <= self.size[1] and max(map(len, lines)) <= self.size[0]
            note = self.text  # A word to the person goes with the next key.
            self.text = "\n".join(lines)
        return note if keys else self.text

    def jobs(self) -> list[str]:
        """The jobs in the order in which they are seen."""
        return re.findall(r"^(\d+)  ", self.text, re.MULTILINE)

    def cursor(self) -> str:
        """The line of the cursor."""
        (line,) = [
            each for each in self.screen.lines(*self.size) if any(s.style == "reverse" for s in each.spans)
        ]
        return line.plain


@pytest.mark.parametrize("size", [SMALL, LARGE, (60, 12), (40, 10)])
def test_devices_jobs_and_keys_are_seen_on_any_screen(played: Played, size: tuple[int, int]) -> None:
    text = Seen(played, size).text
    for wanted in ("Devices (2", "h/cpu0", "Jobs (2 on devices", "running", "q Quit"):
        assert wanted in text, wanted
    assert "policy cas" in text


def test_another_size_is_followed(played: Played) -> None:
    seen = Seen(played)
    narrow = set(re.findall("[A-Z]{2,}", seen.text))
    assert "Decided last" not in seen.text
    seen.size = LARGE
    seen.press("")
    assert narrow < set(re.findall("[A-Z]{2,}", seen.text)), "more columns where there is room"
    assert "Decided last" in seen.text


def test_names_are_no_markup(played: Played) -> None:
    seen = Seen(played, (120, 24))
    assert "[bold red]" in seen.text
    assert "(" + HOSTILE + ")" in seen.press("G", "c")


def test_details_follow_the_cursor_and_escape_closes_them(played: Played) -> None:
    seen = Seen(played)
    assert "all about job 1" in seen.press("enter")
    text = seen.press("down")
    assert "all about job 2" in text and "all about job 1" not in text
    assert "all about job" not in seen.press("escape")
    asked = len(played.shown)
    seen.press("down")
    assert len(played.shown) == asked, "nobody sees it, so nobody asks"
    assert "h/cpu0" in seen.press("shift+tab", "enter") and played.shown[-2:] == ["1", "2"], "its tenants"


def test_the_end_of_a_log_stands_in_place_of_the_details(played: Played) -> None:
    seen = Seen(played)
    text = seen.press("l")
    assert "log of job 1, its end" in text and "the end of log 1" in text
    assert "the end of log 2" in seen.press("j"), "it follows the cursor"
    text = seen.press("enter")
    assert "all about job 2" in text and "the end of log" not in text


def test_long_details_are_read_page_by_page(played: Played) -> None:
    played.page = "\n".join(f"line {at}" for at in range(40))
    seen = Seen(played)
    assert "line 0\n" in seen.press("enter")
    text = seen.press("pagedown", "pagedown")
    assert "line 0\n" not in text and "line 20" in text
    assert "line 0\n" in seen.press("pageup", "pageup", "pageup")


def test_a_legend_says_what_columns_mean(played: Played) -> None:
    seen = Seen(played, (140, 40))
    words = " ".join(seen.text.split())
    assert "SMACT: multiprocessors (cores) at work" in words
    assert "WITH: who shares the job's devices" in words
    assert "SMACT:" not in seen.press("i")
    assert "SMACT:" in seen.press("i")


def test_all_keys_are_named_when_asked_for(played: Played) -> None:
    seen = Seen(played, (80, 50))
    text = seen.press("?")
    assert all(key in text and what in text for key, what, _ in KEYS)
    assert "Close details" not in seen.press("?")


def test_decisions_are_opened_and_closed(played: Played) -> None:
    seen = Seen(played)
    assert "Decided last" in seen.press("d")
    seen.press("tab")
    assert "Decided last" not in seen.press("d")
    assert "running" in seen.cursor(), "the cursor is where something is"


def test_a_filter_is_kept_until_escape(played: Played) -> None:
    seen = Seen(played)
    assert ": 57 of 59 with 'behind'" in seen.press("/", *"behindx", "backspace", "enter")
    seen.press("space")
    assert "57 of 59" in seen.text and "/behind" in seen.text
    seen.press("escape")
    assert "with 'behind'" not in seen.text and "/behind" not in seen.text
    seen.press("s")
    assert "▲" in seen.text, "keys work again"


def test_sorting_by_key(played: Played) -> None:
    seen = Seen(played)
    seen.press("s", "r")
    assert "JOB ▼" in seen.text
    assert seen.cursor().startswith("1 "), "the cursor stays on its job"
    seen.press("g")
    assert seen.jobs()[:2] == ["59", "58"]
    seen.press("r")
    assert seen.cursor().startswith("59 ")


def test_the_cursor_stays_on_its_job_when_others_go(played: Played, replies: ModuleType) -> None:
    seen = Seen(played)
    seen.press("G")
    assert seen.cursor().startswith("59 ") and "1" not in seen.jobs(), "rows before it are gone from sight"
    played.moment = played.moment._replace(jobs=replies.jobs(*played.moment.jobs.jobs[1:]))
    seen.press("space")
    assert seen.cursor().startswith("59 ")
    played.moment = played.moment._replace(jobs=replies.jobs(*played.moment.jobs.jobs[:-1]))
    seen.press("space")
    assert seen.cursor().startswith("58 "), "or near where it was"


ANSWERS = {
    "yes": (("c", "y"), [("cancel", "1")]),
    "no": (("c", "n"), []),
    "escape": (("c", "escape"), []),
    "enter, which is no": (("c", "enter"), []),
    "hold what waits": (("G", "h", "y"), [("hold", "59")]),
    "hold what runs": (("h", "y"), []),
    "cancel a device": (("shift+tab", "c", "y"), []),
    "somebody else's": (("down", "c", "y"), [("cancel", "2")]),
}


@pytest.mark.parametrize(("keys", "wanted"), ANSWERS.values(), ids=ANSWERS.keys())
def test_nothing_is_changed_without_a_yes(
    played: Played, keys: tuple[str, ...], wanted: list[tuple[str, str]]
) -> None:
    seen = Seen(played)
    said = seen.press(*keys)
    assert played.changes == wanted
    told = {
        "cancel 1": "cancel was asked for",
        "hold 59": "hold was asked for",
        "cancel 2": "it is not yours",
    }
    for verb, job in wanted:
        assert told[f"{verb} {job}"] in said
    assert "any other key: no" not in said
    assert played.looks == bool(wanted), "what it has changed is seen"


def test_why_not_is_said(played: Played) -> None:
    seen = Seen(played)
    assert "job 1 is on devices; only waiting jobs can be held" in seen.press("h")
    assert "select a job first" in seen.press("shift+tab", "c")


def test_the_question_says_what_will_happen(played: Played) -> None:
    text = " ".join(Seen(played).press("c").split())
    assert "Cancel job 1 (train) of ada?" in text and "checkpoint of step 30" in text
    small = Seen(played, (40, 12)).press("c")
    assert "Cancel job 1" in small and "y: yes, cancel it" in small, "whole on a small screen"


def test_a_lost_connection_is_said_and_the_screen_stays(played: Played) -> None:
    seen = Seen(played)
    seen.press("enter")
    played.silent = True
    text = seen.press("space", "space")
    assert "! no answer from the controller" in text
    assert "all about job 1" in text and "running" in text
    played.silent = False
    assert "no answer" not in seen.press("space")


def test_what_a_terminal_sends_are_keys() -> None:
    sent = "q\x1b[A\x1bOB\x1b[6~\x1b\r\x7f \x1b[Zä\x1b[99z\x01"
    wanted = ["q", "up", "down", "pagedown", "escape", "enter", "backspace", "space", "shift+tab", "ä"]
    assert top_live.keys_of(sent) == wanted


def test_on_a_terminal_it_looks_and_obeys_and_leaves_the_terminal_as_it_was(
    played: Played,
) -> None:
    """Keys are typed once a look has been answered, which another thread has done."""
    ours, its = pty.openpty()
    with os.fdopen(its, "r+b", buffering=0) as raw, os.fdopen(os.dup(its)) as typed:
        before = termios.tcgetattr(raw)
        played.before_look = lambda: os.write(ours, b"q")
        with open(os.devnull, "w") as out:
            top_live.run(
                played,
                played.moment,
                0.01,
                Console(file=out, force_terminal=True, width=80, height=24),
                typed,
            )
        assert termios.tcgetattr(raw) == before
    os.close(ours)
    assert played.looks and threading.get_ident() not in played.threads and len(played.threads) == 1


def test_ctrl_c_interrupts_where_nobody_can_type(played: Played) -> None:
    played.before_look = lambda: os.kill(os.getpid(), signal.SIGINT) if played.looks else None
    with open(os.devnull, "r+") as none:
        console = Console(file=none, force_terminal=True, width=80, height=24)
        with pytest.raises(KeyboardInterrupt):
            top_live.run(played, played.moment, 0.01, console, none)
