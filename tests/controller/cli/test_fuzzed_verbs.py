"""Command lines of every verb with odd words, and with values left out: an error, never a traceback."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
import pytest

from cotenant.controller.cli.verbs import GROUPS, Verb, verb_command

if TYPE_CHECKING:
    from tests.controller.cli.conftest import Cotenant, StandIn

LONG = "x" * 300
ODD = [
    *(
        "",
        " ",
        "-1",
        "1e999",
        "nan",
        "inf",
        "1_000",
        "٣",
        "=",
        ",",
        ":",
        "..",
        "/",
        "~",
        "~nobody-of-that-name",
    ),
    *(
        LONG,
        "é",
        "\ud800",
        "\u202e",
        "-5G",
        "9" * 40,
        "1-",
        "0-99999999",
        "Feb 30",
        "now+1h",
        "a\nb",
        "[",
        "{x}",
    ),
    *("\ud800", "x.csv", "postgresql://", "ipc://", "tcp://x", "%j", "1:2:3:4", "\x1b[31m"),
]
ACTS_FOR_LONG = {"demo", "run", "shell", "up", "agent", "web", "mcp", "top", "controller", "service", "init"}
"""Verbs that start something, or write where they are told to."""
INPUTS = 150


def commands(verb: Verb) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    found = verb_command(verb)
    parts = found.commands if isinstance(found, click.Group) else {}
    yield (verb.name,), found
    for name, part in parts.items():
        yield (verb.name, name), part


ALL = [each for verbs in GROUPS.values() for verb in verbs for each in commands(verb)]


def is_told(code: int, err: str) -> bool:
    return code == 0 or "error[" in err or code in (130, 143)


def test_an_option_without_its_value_is_one_line(cotenant: Cotenant, controller: StandIn) -> None:
    for words, command in ALL:
        for each in command.params:
            if isinstance(each, click.Option) and not each.is_flag and not each.count:
                result = cotenant(*words, each.opts[-1])
                assert (result.code, "requires an argument" in result.err) == (2, True), (words, each.opts)


def test_odd_words_are_one_line(cotenant: Cotenant, controller: StandIn, seed: int) -> None:
    drawn = random.Random(seed)
    quick = [(words, command) for words, command in ALL if words[0] not in ACTS_FOR_LONG]
    for _ in range(INPUTS):
        words, command = drawn.choice(quick)
        options = [each.opts[-1] for each in command.params if isinstance(each, click.Option)]
        line = [*words, *(drawn.choice(ODD) for _ in range(drawn.randrange(3)))]
        if options and drawn.random() < 0.6:
            line += [drawn.choice(options), drawn.choice(ODD)]
        result = cotenant(*line)
        finds_faults = words[0] == "doctor" and " fail, " in result.out  # It tells them as its answer.
        assert finds_faults or is_told(result.code, result.err), (line, result)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("slurm-aliases", "~nobody-of-that-name"), "there is no such account; name the folder itself"),
        (("sim", "replay", "~nobody-of-that-name"), "there is no such account; name the folder itself"),
        (("sim", "replay", LONG), "File name too long"),
        (("sim", "run", "x.csv", "--policy"), "option '--policy' requires an argument"),
        (("controller", "migrate", "x"), "must be postgresql://USER@HOST/DATABASE"),
    ],
)
def test_what_was_a_traceback(cotenant: Cotenant, words: tuple[str, ...], said: str) -> None:
    result = cotenant(*words)
    assert result.code and said in result.err and result.err.count("\n") == 1


def test_an_endpoint_that_is_none_is_one_line_beside_a_key(cotenant: Cotenant) -> None:
    pytest.importorskip("mcp", reason="the extra mcp is not installed")
    result = cotenant("mcp", "--endpoint", "-5G", "--key", "x")
    assert result.err.startswith("error[config]: endpoint '-5G' is neither")
