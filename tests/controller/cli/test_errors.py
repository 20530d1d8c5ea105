"""Errors as scripts read them, and verbs as other programs call them."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import click
import pytest

from cotenant.controller.cli.frame.problem import OPTIONS_ELSEWHERE
from cotenant.controller.cli.main import asks_for_json, main, run_guarded
from cotenant.controller.cli.verbs import BY_NAME, SYNONYMS, verb_command
from cotenant.controller.present.problem import Problem


def failing() -> int:
    raise Problem("not-found", "no job 99", "`cotenant queue --all` lists jobs", ["a part"])


def test_an_error_is_an_object_where_one_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_guarded(failing, as_json=True) == 3
    said = capsys.readouterr()
    assert json.loads(said.out) == {
        "schema": "error/1", "code": "not-found", "exit_code": 3, "message": "no job 99",
        "hint": "`cotenant queue --all` lists jobs", "parts": ["a part"],
    }  # fmt: skip
    assert said.err.startswith("error[not-found]: no job 99; ") and said.err.endswith("\n  a part\n")


def test_elsewhere_it_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_guarded(failing) == 3
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("plant", ["a file", "a link to nowhere", "another's folder", "another's link"])
def test_a_folder_for_sockets_that_somebody_made_first_is_said_in_one_line(
    plant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if plant.startswith("another's") and os.geteuid() != 0:
        pytest.skip("needs root: makes a folder of another user")
    planted = tmp_path / f"cotenant-{os.getuid()}"
    match plant:
        case "a file":
            planted.touch()
        case "another's folder":
            planted.mkdir()
        case _:
            planted.symlink_to(tmp_path if plant == "another's link" else tmp_path / "none")
    if plant.startswith("another's"):
        os.chown(planted, 54_321, 54_321, follow_symlinks=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    (tmp_path / "none.toml").touch()
    monkeypatch.setenv("COTENANT_CONFIG", str(tmp_path / "none.toml"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for words in (["run", "--", "true"], ["up"], ["web", "--link"]):
        assert main(words) == Problem("config", "").exit_code, words
        said = capfd.readouterr().err
        assert said.startswith(f"error[config]: {planted}") and said.count("\n") == 1, words


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


MEANT = {
    "ls is queue": ("ls --nonsense", "cotenant queue --help"),
    "an option that is begun": ("submit --prio 5 -- x", "no such option: --prio; did you mean --priority?"),
    "Slurm's word for an option": ("run --gres gpu:2 -- x", "did you mean --gpus?"),
    "a near miss": ("run --gpsu 2 -- x", "did you mean --gpus?"),
    "an option of another verb": (
        "queue --gres gpu:2",
        "no such option: --gres; try `cotenant queue --help`",
    ),
    "an option before the verb": (
        "--endpoint tcp://h:1 queue --json",
        "--endpoint comes after the verb; try `cotenant queue --endpoint tcp://h:1 --json`",
    ),
    "an option without a verb": ("--user ada", "try `cotenant VERB --user ada`"),
    "a near miss of Slurm's": ("scancle 7", "there is no verb 'scancle'; did you mean `cotenant cancel`?"),
    "a part that is a program now": (
        "predictor train --pairs a.csv",
        "no verb 'predictor train'; `python -m experiments.castor.predictor train`, in the source folder",
    ),
    "what there is not": ("salloc -n 1", "no verb 'salloc'; `cotenant shell` waits for devices"),
    "what was a verb": (
        "pcs front philly/0e4a51",
        "no verb 'pcs'; `cotenant policy tune pcs TRACE` searches",
    ),
}


@pytest.mark.parametrize(("words", "said"), MEANT.values(), ids=MEANT.keys())
def test_a_wrong_word_leads_where_it_was_meant_to(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    assert said in capsys.readouterr().err


def test_an_option_that_is_meant_is_one_of_some_verb() -> None:
    commands = [verb_command(verb) for verb in BY_NAME.values()]
    commands += [part for each in commands for part in getattr(each, "commands", {}).values()]
    assert set(OPTIONS_ELSEWHERE.values()) <= {
        name for each in commands for it in each.params for name in it.opts
    }


def parts_of(name: str) -> list[str]:
    """`sim run`, `sim trace show` and so on, of a verb with parts; else the verb."""

    def below(words: str, command: click.Command) -> list[str]:
        inner = getattr(command, "commands", {})
        return [each for part, found in inner.items() for each in below(f"{words} {part}", found)] or [words]

    return below(name, verb_command(BY_NAME[name]))


@pytest.mark.parametrize("words", [each for name in BY_NAME for each in parts_of(name)])
def test_every_verb_says_its_errors_as_an_object_where_one_is_asked_for(
    words: str, at_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one that has no -o itself: who asks for JSON reads standard output."""
    code = main([*words.split(), "--no-such-flag", "-o", "json"])
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (code, found["schema"], found["exit_code"], found["code"]) == (2, "error/1", 2, "usage"), said
    assert "--no-such-flag" in found["message"] and said.err.startswith("error[usage]: ")


ASKING = (
    "queue", "show 7", "eta", "eta score", "explain 7", "wait 7", "cancel 7", "hold 7", "release 7",
    "preempt 7", "requeue 7", "checkpoint 7", "nodes", "nodes drain h", "nodes resume h", "nodes lost h",
    "top", "pairs", "report", "policy show", "policy set fifo", "profile list",
    "profile show k", "submit -- true",
)  # fmt: skip


@pytest.mark.parametrize("words", ASKING)
def test_that_nobody_answers_is_an_object_too(
    words: str, at_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verb, *rest = words.split(" -- ")
    code = main([*verb.split(), "--json", *(["--", *rest] if rest else [])])
    found = json.loads(capsys.readouterr().out)
    assert (code, found["schema"], found["code"]) == (5, "error/1", "unreachable"), found
