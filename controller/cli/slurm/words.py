"""The options of Slurm's programs, read from their words.

Rule: it takes or refuses an option that narrows what is shown or changed, and never ignores it; it ignores
options of a site, or of how a table looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cotenant.controller.cli.frame.problem import Problem, suggestion


class Flags(NamedTuple):
    """A program's options, each as `-s --long --other`; the first long name is its key."""

    values: tuple[str, ...]
    switches: tuple[str, ...]
    left_out: tuple[str, ...]
    left_out_switches: tuple[str, ...]


class GivenWords(NamedTuple):
    flags: dict[str, str]
    rest: list[str]
    """Words that are no options."""


def read(program: str, words: Sequence[str], known: Flags) -> GivenWords:
    """Raises Problem: an option that is not known."""
    takes = {name: _long(each) for each in (*known.values, *known.left_out) for name in each.split()}
    alone = {
        name: _long(each) for each in (*known.switches, *known.left_out_switches) for name in each.split()
    }
    flags: dict[str, str] = {}
    rest: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if not word.startswith("-") or word == "-":
            rest.append(word)
            continue
        name, equals, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
        if name in alone:
            flags[alone[name]] = "yes"
            if equals and not word.startswith("--"):  # `-hP` is two of them.
                left.insert(0, f"-{value}")
        elif name in takes:
            if not equals and not left:
                raise Problem("usage", f"{program}: {name} needs a value")
            flags[takes[name]] = value if equals else left.pop(0)
        else:
            near = suggestion(name, [*takes, *alone])
            raise Problem("usage", f"{program}: the option {name} is not known here", near)
    return GivenWords(flags, rest)


def _long(names: str) -> str:
    return next(name for name in names.split() if name.startswith("--"))
