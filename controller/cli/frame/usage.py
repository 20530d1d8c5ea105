"""What is wrong with a command line, in words, and which help there is to try.

Rule: the libraries that parse a command line speak to programmers ("Input should be a valid integer, unable
to parse string as an integer"). What a person reads says it in this project's words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from cotenant.controller.cli.frame.problem import Problem

if TYPE_CHECKING:
    import typer

SAID: Final = (
    (r"Input should be a valid integer, .*", "must be a whole number"),
    (r"Input should be a valid number, .*", "must be a number"),
    (r"Input should be greater than or equal to (.*)", r"must be at least \1"),
    (r"Input should be less than or equal to (.*)", r"must be at most \1"),
    (r"Value error, (.*) is not one of (.*?)\.?", r"must be one of \2, got \1"),
)
"""What the libraries say of a value, and how it is said here."""


def usage_problem(error: typer.TyperException, name: str) -> Problem:
    """`name` is the verb, with its part: `cotenant sim compare`."""
    text: str = error.format_message()
    flags = getattr(error, "possibilities", None) or ()
    meant = nearest(getattr(error, "option_name", ""), flags, cutoff=0.0)
    text, _, guesses = text.partition(" Did you mean ")  # of the parts of a verb, quoted
    part = re.match(r"'([^']+)'", guesses)
    if part and not meant:
        meant = f"`{command_path(error) or name} {part[1]}`"
    hint = f"did you mean {meant}?" if meant else f"try `{command_path(error) or name} --help`"
    return Problem("usage", in_words(text.split(" (Possible")[0]), hint)


def in_words(text: str) -> str:
    """`--hosts must be at least 1` for `Invalid value for '--hosts': Input should be greater than ...`."""
    found = re.fullmatch(r"Invalid value for '([^']*)': (.*)", text, re.DOTALL)
    if found:
        for pattern, ours in SAID:
            said = re.fullmatch(pattern, found[2].strip(), re.DOTALL)
            if said:
                return f"{found[1]} {said.expand(ours)}"
    return text[:1].lower() + text[1:]


def command_path(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return str(getattr(context, "command_path", ""))


def part_of(command: Any, name: str, words: Sequence[str]) -> str:
    """`cotenant sim compare` of `cotenant sim compare --jobs`."""
    for word in words:
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            break
        name = f"{name} {word}"
    return name


def nearest(word: str, known: Iterable[str], cutoff: float) -> str:
    import difflib

    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)), "")
