"""Reasons are for people: every one of them is a whole sentence with all its operands."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
import pytest

from cotenant.controller.domain import GUESS, Length, reasons, texts
from cotenant.controller.domain.reasons import TEMPLATES, Reason, because, mentions, render, render_whole
from tests.building.sources import nodes
from tests.controller.watching import operands_of

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("code", TEMPLATES)
def test_a_template_takes_its_operands_in_order_and_leaves_none_out(code: str) -> None:
    count = operands_of(code)
    reason = because(code, *(f"<{i}>" for i in range(count)))
    both = (render(reason), render_whole(reason))
    for i in range(count):
        assert f"<{i}>" in "".join(both)
    for text in both:
        assert "{" not in text
        assert text == text.strip()
        assert not text.endswith(".")


def test_a_reason_of_the_jobs_own_has_a_sentence_for_everybody() -> None:
    """Also one that was journalled before there were two."""
    reason = because("user-failed", "exit code 1: patient 7 not found", "exit code 1")
    assert str(reason) == render(reason) == "failed: exit code 1"
    assert render_whole(reason) == "failed: exit code 1: patient 7 not found"
    for code in ("user-failed", "infra-failed", "stopped-as", "gpu-fault", "trouble", "unsplit"):
        assert "patient" not in render(Reason(code, ("exit code 1: patient 7 not found",)))
    for code in ("back-off", "held-infra"):
        assert "patient" not in render(Reason(code, (3, "exit code 1: patient 7 not found")))


@pytest.mark.parametrize("code", TEMPLATES)
def test_no_reason_has_decimals_of_seconds_and_none_hides_that_a_length_is_a_guess(code: str) -> None:
    """An old journal has plain numbers where a length may stand today."""
    count = operands_of(code)
    numbers = Reason(code, (326.2612,) * count)
    for text in (render(numbers), render_whole(numbers)):
        assert not re.search(r"\d\.\d+ ?s\b|GPU-seconds", text), text
    guess = Length(326.2612, 30.0, 3000.0, GUESS)
    for place in re.findall(r"\{(\d):(?:t|a|delays|would)\}", TEMPLATES[code]):
        operands = ["1"] * count
        reason = Reason(code, (*operands[: int(place)], guess, *operands[int(place) + 1 :]))
        assert "about 5 min (a guess: nothing is known yet)" in render_whole(reason)
        assert unpacked(reason) == reason


def unpacked(reason: Reason) -> Reason:
    return msgspec.json.decode(msgspec.json.encode(reason), type=Reason)


def test_times_are_as_exact_as_they_are_known() -> None:
    assert render(because("time-limit", 12.3456)) == "reached its time limit of 12s"
    assert render(because("preempts", 312.2, Length(20.4, 9.0, 40.0, "as 12 others of this sweep"), "7")) == (
        "has 5m12s left; job 7, which makes room, has about 20 s (as 12 others of this sweep)"
    )
    assert render(because("kept", 2, 1, 306.32)).endswith("enough should be free in about 5 min")
    assert render(because("gains-nothing", float("inf"))).startswith("has an unknown time to run")
    assert render(because("parted-loss", "7", 1.234, 2.0)).startswith(
        "parted from 7: together they were measured to be slowed 1.23 and 2.00 times"
    )
    assert render_whole(because("user-failed", 3)) == "failed: 3"


def test_texts_in_a_length_are_changed_as_others_are() -> None:
    reason = because("gains-nothing", Length(20.0, 9.0, 40.0, "as\nothers"))
    assert str(texts.escape_texts(reason)).startswith("has about 20 s (as\\nothers) to run")


def test_what_is_counted_agrees_with_its_number() -> None:
    assert render(because("free-devices-in-order", "fifo", 1)) == (
        "next in fifo order and 1 free device is enough"
    )
    assert render(because("free-devices-in-order", "fifo", 2)) == (
        "next in fifo order and 2 free devices are enough"
    )
    assert render(because("first-no-devices", "sjf", 1, 8)) == (
        "first in sjf order; it needs 8 devices, and 1 is free"
    )


def test_a_reason_of_a_newer_version_still_shows_what_is_there() -> None:
    assert str(Reason("moved-to-mars", ("7", 2.5))) == "moved-to-mars 7 2.5"
    assert str(Reason("behind", ("7",))) == "behind job 7 in ? order"


def test_a_code_that_nobody_can_read_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="unknown reason code 'because'"):
        because("because")


@cache
def written() -> list[tuple[str, ast.Call]]:
    found = []
    for path in sorted((*(ROOT / "controller").rglob("*.py"), *(ROOT / "profiler").rglob("*.py"))):
        text = path.read_text()
        for node in nodes(ast.parse(text)) if "because" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("because", "domain.because"):
                found.append((f"{path.relative_to(ROOT)}:{node.lineno}", node))
    return found


def test_every_reason_in_the_source_has_a_known_code_and_the_right_number_of_operands() -> None:
    wrong = []
    for where, call in written():
        code = call.args[0]
        counted = not any(isinstance(arg, ast.Starred) for arg in call.args)
        if not isinstance(code, ast.Constant):
            continue
        if code.value not in TEMPLATES or (counted and len(call.args) - 1 != operands_of(str(code.value))):
            wrong.append(f"{where}: {ast.unparse(call)}")
    assert wrong == []


NAMED = [
    (because("preempted-for", "205", 4120.16, 330.0), ["205"]),
    (because("costs-share", "7", 1.0, 205.0, 4120.16, 12.0, 20, 1, 1.0), ["7"]),
    (because("costs-preempt", 1.0, 2.0, 3.0, "8, 9_12"), ["8", "9_12"]),
    (because("preempts", Length(20.0, 9.0, 40.0, "as 12 others of job 3"), 312.0, "7, 8"), ["7", "8"]),
    (because("placed-together", "next in order", 2), []),
    (because("ahead", "jobs 3, 4, 6_0 and 12 more"), ["3", "4", "6_0"]),
    (because("leave-first", "jobs 1, 2", "have", ", about 5 m from now"), ["1", "2"]),
    (because("budget", "300"), []),
    (because("trouble", "exit code 1: job 5 beside 6"), []),
    (because("sharing-unknown", "7", "it runs job 8's script"), ["7"]),
    (because("wfq-behind", "3", 2, 4, 5), ["3"]),
    (Reason("from-a-newer-version", ("job 3",)), []),
]


@pytest.mark.parametrize(("reason", "jobs"), NAMED, ids=lambda each: getattr(each, "code", None))
def test_only_operands_for_jobs_name_jobs(reason: Reason, jobs: list[str]) -> None:
    text = render(reason)
    assert [text[begin:end] for begin, end in mentions(reason)] == jobs
    assert "\0" not in text


def test_each_reason_that_is_given_a_jobs_number_has_a_place_for_it() -> None:
    """`because("behind", job.job_id, ...)`: a link needs `job {0}` or the like (`reasons._JOB_PLACE`)."""
    missing = []
    for where, call in written():
        match call.args:
            case [ast.Constant(value=str(code)), *operands] if code in TEMPLATES:
                places = reasons._job_places()[code]
                given = [at for at, each in enumerate(operands) if ast.unparse(each).endswith(".job_id")]
                missing += [f"{where}: {code} {{{at}}}" for at in given if at not in places]
    assert {each.split(": ")[1] for each in missing} == {"would-fit {0}", "held-idle {1}"}, (
        "commands about itself"
    )


def named_codes(names: set[str]) -> Iterator[tuple[str, str]]:
    """Constants of modules: name, code."""
    for path in (ROOT / "controller").rglob("*.py"):
        text = path.read_text()
        for node in ast.parse(text).body if any(name in text for name in names) else ():
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(code))):
                    yield name, code
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str(code))):
                    yield name, code


def test_every_template_is_used() -> None:
    calls = [each for _, call in written() for each in ast.walk(call)]
    names = {each.id for each in calls if isinstance(each, ast.Name) and each.id.isupper()}
    used = {each.value for each in calls if isinstance(each, ast.Constant)}
    used |= {code for name, code in named_codes(names) if name in names}
    assert sorted(set(TEMPLATES) - used) == ["own"], "which is for policies of other packages"
