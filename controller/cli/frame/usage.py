"""What is wrong with a command line, in words, and which help there is to try.

Rule: what click found is read from its exceptions' fields. Its own sentence is kept only where there is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from cotenant.controller.cli.frame.problem import Problem

if TYPE_CHECKING:
    import click


def usage_problem(error: click.UsageError, name: str) -> Problem:
    """`name` is the verb, with its part: `cotenant sim compare`."""
    path = error.ctx.command_path if error.ctx else name
    text, meant = _described(error, path)
    return Problem("usage", text, f"did you mean {meant}?" if meant else f"try `{path} --help`")


def _described(error: click.UsageError, path: str) -> tuple[str, str]:
    """What is wrong, and what may have been meant."""
    import click

    if isinstance(error, click.NoSuchOption):
        return f"no such option: {error.option_name}", next(iter(error.possibilities or ()), "")
    if isinstance(error, click.NoSuchCommand):
        near = next(iter(error.possibilities or ()), "")
        return f"no such command {error.command_name!r}", f"`{path} {near}`" if near else ""
    if (
        isinstance(error, click.BadParameter)
        and error.param
        and not isinstance(error, click.MissingParameter)
    ):
        return f"{error.param.opts[-1]} {error.message}", ""
    text = error.format_message()
    return text[:1].lower() + text[1:], ""


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
