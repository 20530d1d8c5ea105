"""What a check of `doctor` is, what it may say, and how it words several things at once.

Rule: a check is a function of `Facts`, changes nothing, and says what it found and, unless that is well, what
to do. One that does not apply here says nothing (None). What is unknown is left out, and never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Literal, NamedTuple

import msgspec

from cotenant.controller.cli.doctor.facts import Facts
from cotenant.profiler.driver.facts import GpuFacts

CheckResult = Literal["ok", "warn", "fail"]


class Check(msgspec.Struct, frozen=True):
    name: str
    verdict: CheckResult
    found: str
    todo: str = ""
    command: str = ""
    """One line to paste that does it."""


class Finding(NamedTuple):
    """A check without its name."""

    verdict: CheckResult
    found: str
    todo: str = ""
    command: str = ""


CheckFunction = Callable[[Facts], Check | None]


def check(name: str, needs: str = "") -> Callable[[Callable[[Facts], Finding | None]], CheckFunction]:
    """Makes a check of a function. `needs`: the fact that must not be empty for it to apply."""

    def decorate(look: Callable[[Facts], Finding | None]) -> CheckFunction:
        @wraps(look)
        def say(facts: Facts) -> Check | None:
            applies = not needs or getattr(facts, needs)
            found = look(facts) if applies else None
            return None if found is None else Check(name, *found)

        return say

    return decorate


def ok(found: str) -> Finding:
    return Finding("ok", found)


def warn(found: str, todo: str, command: str = "") -> Finding:
    return Finding("warn", found, todo, command)


def fail(found: str, todo: str, command: str = "") -> Finding:
    return Finding("fail", found, todo, command)


def name_some(words: Sequence[str], named_max: int = 4, sep: str = ", ", unit: str = "") -> str:
    """`a, b, c, d and 3 more`: the first ones, and how many there are beside them."""
    more = len(words) - named_max
    return sep.join(words[:named_max]) + (f" and {more} more{unit}" if more > 0 else "")


def name_gpus(some: Iterable[GpuFacts]) -> str:
    return "GPU " + ", ".join(str(gpu.index) for gpu in some)
