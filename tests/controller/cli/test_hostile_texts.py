"""What others wrote reaches a terminal as words: no control sequence, no row of its own, in any verb."""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.cli.frame.output import json_text
from cotenant.controller.domain import JobId, JobSpec, Launch, texts
from cotenant.controller.present import screen, tables
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.terminal import TerminalFilter
from cotenant.controller.present.top_page import Moment
from cotenant.controller.present.top_page import page as top_page
from cotenant.controller.wire import clients as wire

if TYPE_CHECKING:
    from tests.controller.cli.conftest import Cotenant, StandIn

HOSTILE = "a\x1b[2J\x1b]0;owned\x07\x9b31m\x7f\u202e\u2028\r\nFAKE  ROW  running\x0b\u0085end\x00"
"""Clears the screen, sets its title, turns the direction round, and makes a line of its own."""


def visible(text: str) -> bool:
    return bool(text) and all(texts.is_one_line(line) for line in text.split("\n"))


def test_every_character_that_a_terminal_obeys_or_that_nobody_sees_is_hidden() -> None:
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        kind = unicodedata.category(character)
        turns = unicodedata.bidirectional(character) in (
            "LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI",
        )  # fmt: skip
        if kind in ("Cc", "Cs", "Zl", "Zp") or turns:
            assert texts.HIDDEN.match(character), hex(code)
    for word in ("Grüße", "学习", "مرحبا", "שלום", "👩\u200d🚀", "\u06a9\u200c\u0631", "naïve\u0301"):
        assert texts.is_one_line(word), word


@given(st.text(alphabet=st.characters()))
def test_cleaning_twice_changes_nothing_more_and_leaves_one_line(text: str) -> None:
    once = texts.one_line(text)
    assert texts.is_one_line(once)
    assert texts.one_line(once) == once
    assert len(once.splitlines()) <= 1


@given(st.lists(st.text(), min_size=1, max_size=6))
def test_a_table_has_a_line_per_row_whatever_is_in_it(names: list[str]) -> None:
    columns = (tables.Column("NAME", lambda row: row), tables.Column("WHY", lambda row: row, limit=8))
    for width in (None, 40):
        text = screen.printable(screen.table(columns, names, width))
        assert len(text.split("\n")) == len(names) + 1 == len(text.splitlines())
        assert all(texts.is_one_line(line) for line in text.split("\n"))


@given(st.text(), st.text())
def test_an_error_is_one_line(message: str, hint: str) -> None:
    assert texts.is_one_line(str(Problem("usage", message, hint)))


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_json_is_the_text_itself_and_prints_nothing_hidden(text: str) -> None:
    shown = json_text({"name": text})
    assert texts.is_one_line(shown)
    assert json.loads(shown) == {"name": text}


def test_our_own_colours_stay() -> None:
    red = screen.COLOURS["red"]
    assert screen.printable(f"{red}lost{screen.RESET}\x1b[2J") == f"{red}lost{screen.RESET}\\x1b[2J"


# --- Verbs ------------------------------------------------------------------------------------------


def poisoned(value: Any) -> Any:
    """The same reply with hostile words in all texts that nobody reads by program."""
    free = {
        "name", "user", "reason", "outcome", "accumulates_note", "resumable_note", "reason_code", "what",
        "event", "gpu_type", "workdir", "note", "sharing_note", "why", "features", "argv", "lines", "message",
        "hint", "left_source", "version", "journal", "command", "missing",
    }  # fmt: skip
    if isinstance(value, msgspec.Struct):
        changed: dict[str, Any] = {}
        for field in value.__struct_fields__:
            held = getattr(value, field)
            if field in free and isinstance(held, str):
                changed[field] = held + HOSTILE
            elif field in free and isinstance(held, tuple):
                changed[field] = tuple(each + HOSTILE for each in held)
            elif field == "env":
                changed[field] = {**held, f"X{HOSTILE}": HOSTILE}
            else:
                changed[field] = poisoned(held)
        return msgspec.structs.replace(value, **changed)
    if isinstance(value, tuple):
        return tuple(poisoned(each) for each in value)
    if isinstance(value, dict):
        return {key: poisoned(each) for key, each in value.items()}
    return value


@pytest.fixture
def hostile(controller: StandIn, replies: ModuleType) -> StandIn:
    """Everything it says is hostile."""
    jobs = replies.jobs(replies.job_view("7"), replies.waiting("8", "behind job 7"))
    spec = JobSpec(job_id=JobId("7"), launch=Launch(argv=("bash", "-c"), workdir="/w"))
    attempt = replies.attempt(outcome="user-failed", reason="x", ended_at=replies.at(3.0))
    shown = replies.shown(jobs.jobs[0], spec, (attempt,))
    explained = replies.explained(jobs.jobs[0], "runs", "was placed")
    done = wire.Done(request_id=0, lines=("one", "two"))
    controller.says(wire.ListJobs, poisoned(jobs))
    controller.says(wire.WaitJobs, poisoned(jobs))
    controller.says(wire.ShowJob, poisoned(shown))
    controller.says(wire.Explain, poisoned(explained))
    controller.says(wire.ListNodes, poisoned(replies.nodes(replies.node())))
    controller.says(wire.ChangeJobs, poisoned(done))
    controller.says(wire.ChangeNode, poisoned(done))
    return controller


LINES = {
    ("queue", "-o", "wide"): 3,
    ("explain", "7"): 7,
    ("nodes", "-o", "wide"): None,
    ("show", "7"): None,
    ("show", "7", "-o", "wide"): None,
    ("cancel", "7"): 2,
    ("nodes", "drain", "laptop"): 2,
    ("queue", "-o", "json"): None,
    ("show", "7", "--json"): None,
    ("explain", "7", "-o", "jsonl"): 1,
}


@pytest.mark.parametrize(("words", "lines"), LINES.items(), ids=map(" ".join, LINES))
def test_no_verb_prints_what_a_terminal_obeys(
    hostile: StandIn, cotenant: Cotenant, words: tuple[str, ...], lines: int | None
) -> None:
    result = cotenant(*words)
    assert result.code == 0, result.err
    assert visible(result.out)
    assert not [line for line in result.out.splitlines() if line.startswith("FAKE")]
    if lines is not None:
        assert len(result.out.splitlines()) == lines


def test_a_refusal_of_the_controller_s_is_one_visible_line(controller: StandIn, cotenant: Cotenant) -> None:
    controller.says(wire.ShowJob, wire.Failure(request_id=0, code="refused", message=HOSTILE, hint=HOSTILE))
    result = cotenant("show", "7")
    assert result.code == 1
    assert visible(result.err)
    assert len(result.err.splitlines()) == 1


def test_top_draws_no_row_that_is_none(replies: ModuleType) -> None:
    jobs = replies.jobs(replies.job_view("7"))
    decision = wire.DecisionView(
        at_s=0.5, event="JobArrived", job_id=JobId("7"), what="place", reason="first"
    )
    decisions = wire.Decisions(request_id=0, decisions=(decision,), now_s=1.0, wall_s=1.0)
    plain = Moment(replies.status(), replies.nodes(replies.node()), jobs, decisions)
    bad = Moment(*(poisoned(each) for each in plain))
    shown = top_page(bad, None)
    assert visible(shown)
    assert len(shown.splitlines()) == len(top_page(plain, None).splitlines())


def test_json_keeps_the_words_themselves(hostile: StandIn, cotenant: Cotenant) -> None:
    assert json.loads(cotenant("explain", "7", "--json").out)["lines"][0] == "runs" + HOSTILE


# --- A job's own output -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"step 1\n\tstep 2\r", "step 1\n\tstep 2\r"),
        (b"\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m\x1b[0m"),
        (b"a\x1b[2J\x1b[Hb\x1b[1Ac", "abc"),
        (b"\x1b]0;title\x07x\x1b]52;c;cm0gLXJm\x1b\\y", "xy"),
        (b"\x1bP+q544e\x1b\\x\x1b_G\x1b\\y\x1bc\x1b(0z", "xyz"),
        ("\x9b2Jx\x9d0;t\x9cy\x85\x90z\x9c".encode(), "xy"),
        (b"\x07\x08\x0b\x0c\x0e\x7fx", "x"),
        ("a\u202eb\u2066c\u2028d".encode(), "abcd"),
        (b"\xff\x9b2J", "\ufffd\ufffd2J"),
        ("Grüße 学习 👩\u200d🚀".encode(), "Grüße 学习 👩\u200d🚀"),
        (b"cut \x1b[3", "cut [3"),
        (b"\x1b\x1b[2Jx", "x"),
    ],
)
def test_what_a_terminal_gets_of_a_job_s_output(data: bytes, shown: str) -> None:
    whole = TerminalFilter()
    assert whole.filter_text(data) + whole.end() == shown
    by_byte = TerminalFilter()
    assert "".join(by_byte.filter_text(bytes([each])) for each in data) + by_byte.end() == shown


@given(
    st.lists(
        st.binary(max_size=40) | st.sampled_from([b"\x1b[", b"\x1b]0;", b"2J", b"\x07", b"\xc2\x9b", b"m"])
    )
)
def test_nothing_but_colours_and_lines_passes_however_it_is_cut(pieces: list[bytes]) -> None:
    filter_ = TerminalFilter()
    shown = "".join(filter_.filter_text(each) for each in pieces) + filter_.end()
    without = re.sub(r"\x1b\[[0-9;:]*m", "", shown)
    assert not texts.HIDDEN.search(without.translate({10: None, 13: None, 9: None}))


def test_a_sequence_that_never_ends_holds_nothing_back_for_ever() -> None:
    filter_ = TerminalFilter()
    shown = filter_.filter_text(b"\x1b]0;" + b"x" * 10_000) + filter_.filter_text(b"next")
    assert shown.endswith("next")
    assert "\x1b" not in shown


def test_into_a_pipe_go_the_job_s_own_bytes(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    controller.says(wire.ListJobs, replies.jobs(replies.job_view("7")))
    part = wire.LogPart(
        request_id=0, job_id=JobId("7"), attempt=1, rank=0, data=b"\x1b[2Jx\n", next_offset=6, at_end=True,
        closed=True, attempts=(1,), ranks=1,
    )  # fmt: skip
    controller.says(wire.ReadJobLog, part)
    assert cotenant("logs", "7").out == "\x1b[2Jx\n"
