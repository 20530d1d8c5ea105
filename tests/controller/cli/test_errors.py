"""Errors as scripts read them, and verbs as other programs call them."""

from __future__ import annotations

import json

import pytest

from cotenant.controller.cli.frame.problem import Problem
from cotenant.controller.cli.main import asks_for_json, guarded, main
from cotenant.controller.cli.verbs import BY_NAME, SYNONYMS


def failing() -> int:
    raise Problem("not-found", "no job 99", "`cotenant queue --all` lists jobs", ["a part"])


def test_an_error_is_an_object_where_one_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(failing, as_json=True) == 3
    said = capsys.readouterr()
    assert json.loads(said.out) == {
        "schema": "error/1", "code": "not-found", "exit_code": 3, "message": "no job 99",
        "hint": "`cotenant queue --all` lists jobs", "parts": ["a part"],
    }  # fmt: skip
    assert said.err.startswith("error[not-found]: no job 99; ") and said.err.endswith("\n  a part\n")


def test_elsewhere_it_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(failing) == 3
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("show 7 --json", True),
        ("show 7 -o json", True),
        ("queue -ojsonl", True),
        ("queue --output=json", True),
        ("queue -o wide", False),
        ("run -- python x.py --json", False),
        ("run --json -- python x.py", True),
    ],
)
def test_which_command_lines_ask_for_it(words: str, asked: bool) -> None:
    assert asks_for_json(words.split()) is asked


def test_synonyms_are_verbs_and_none_hides_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(SYNONYMS.values()) <= set(BY_NAME) and not set(SYNONYMS) & set(BY_NAME)
    assert main(["kill", "--help"]) == 0
    assert "cotenant cancel" in capsys.readouterr().out
