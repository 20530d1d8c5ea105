"""`python -m experiments.rltune.train` on a command line: the same words and exit codes as a verb has."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cotenant.controller.policies import registry
from experiments.rltune.train import PROGRAM, train

if TYPE_CHECKING:
    from tests.experiments.conftest import Run

CONTENTS: dict[str, bytes] = {
    "empty": b"",
    "binary": b"\xff\xfe\x00" * 500,
    "truncated": b'{"a": ',
    "packed": gzip.compress(b"a" * 5000, mtime=0)[:30] + b"\0" * 9,
}


@pytest.fixture
def run(runs: Callable[[Any, str], Run]) -> Run:
    return runs(train, PROGRAM)


def scorer_from(trace: str) -> tuple[str, ...]:
    return "scorer", "--trace", trace, "--out", "order.json"


def test_a_trace_that_is_not_there_is_exit_code_3(run: Run) -> None:
    result = run(*scorer_from("nowhere.csv"))
    assert (result.code, result.out, result.err.count("\n")) == (3, "", 1)
    assert "nowhere.csv" in result.err


@pytest.mark.parametrize("content", CONTENTS)
def test_a_trace_that_holds_something_else_is_exit_code_2(run: Run, content: str, at_home: Path) -> None:
    (at_home / "odd.csv").write_bytes(CONTENTS[content])
    result = run(*scorer_from("odd.csv"))
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert "odd.csv" in result.err


def test_a_folder_is_no_trace(run: Run, at_home: Path) -> None:
    (at_home / "folder.csv").mkdir()
    result = run(*scorer_from("folder.csv"))
    assert result.code == 2 and "folder.csv" in result.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("fifo",), f"`{PROGRAM} --help`"),
        (("scorer", "--preset", "paper"), "presets are of rltune"),
        (("scorer", "--out", "no/such/folder.json"), "there is no folder no/such"),
    ],
)
def test_what_cannot_be_asked_for_is_a_usage_error(run: Run, words: tuple[str, ...], says: str) -> None:
    result = run(*words, "--trace", "philly/ee9e8c")
    assert result.code == 2 and says in result.err


def test_a_model_is_written_and_its_card_is_shown(run: Run, at_home: Path) -> None:
    words = ("--epochs", "1", "--hosts", "2", "--load", "0.7", "--workers", "1", "-o", "json")
    said = run(*scorer_from("philly/ee9e8c"), *words)
    assert said.code == 0
    shown, kept = json.loads(said.out), json.loads((at_home / "order.json").read_bytes())
    assert (shown["schema"], shown["policy"], shown["file"]) == ("order-training/1", "scorer", "order.json")
    assert (shown["active"], shown["card"]) == (kept["active"], kept["card"])
    assert [line.split()[1] for line in said.err.splitlines()] == ["0/1", "1/1"]


@pytest.mark.parametrize("policy", ["rltune", "scorer"])
def test_a_policy_names_this_program(policy: str) -> None:
    assert registry.find(policy).tools == {"train": f"{PROGRAM} {policy}"}
