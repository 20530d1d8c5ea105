"""`python -m experiments.rltune.train` on a command line: the same words and exit codes as a verb has."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from cotenant.controller.policies import registry
from experiments.rltune.train import PROGRAM, train
from experiments.shared import program

CONTENTS: dict[str, bytes] = {
    "empty": b"",
    "binary": b"\xff\xfe\x00" * 500,
    "truncated": b'{"a": ',
    "packed": gzip.compress(b"a" * 5000, mtime=0)[:30] + b"\0" * 9,
}


def run(*words: str) -> int:
    return program.run(train, PROGRAM, words)


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def scorer_from(trace: str) -> tuple[str, ...]:
    return "scorer", "--trace", trace, "--out", "order.json"


def test_a_trace_that_is_not_there_is_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*scorer_from("nowhere.csv")) == 3
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert "nowhere.csv" in said.err


@pytest.mark.parametrize("content", CONTENTS)
def test_a_trace_that_holds_something_else_is_exit_code_2(
    content: str, at_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (at_home / "odd.csv").write_bytes(CONTENTS[content])
    assert run(*scorer_from("odd.csv")) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert "odd.csv" in said.err


def test_a_folder_is_no_trace(at_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (at_home / "folder.csv").mkdir()
    assert run(*scorer_from("folder.csv")) == 2
    assert "folder.csv" in capsys.readouterr().err


def test_what_cannot_be_asked_for_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fifo", "--trace", "philly/ee9e8c") == 2
    assert run("scorer", "--trace", "philly/ee9e8c", "--preset", "paper") == 2
    assert run("scorer", "--trace", "philly/ee9e8c", "--out", "no/such/folder.json") == 2
    said = capsys.readouterr().err.splitlines()
    assert f"`{PROGRAM} --help`" in said[0]
    assert "presets are of rltune" in said[1]
    assert "there is no folder no/such" in said[2]


def test_a_model_is_written_and_its_card_is_shown(at_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--epochs", "1", "--hosts", "2", "--load", "0.7", "--workers", "1", "-o", "json")
    assert run(*scorer_from("philly/ee9e8c"), *words) == 0
    said = capsys.readouterr()
    shown, kept = json.loads(said.out), json.loads((at_home / "order.json").read_bytes())
    assert (shown["schema"], shown["policy"], shown["file"]) == ("order-training/1", "scorer", "order.json")
    assert (shown["active"], shown["card"]) == (kept["active"], kept["card"])
    assert [line.split()[1] for line in said.err.splitlines()] == ["0/1", "1/1"]


@pytest.mark.parametrize("policy", ["rltune", "scorer"])
def test_a_policy_names_this_program(policy: str) -> None:
    assert registry.find(policy).tools == {"train": f"{PROGRAM} {policy}"}
