"""Values of flags that several faces read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cotenant.controller.present.problem import Problem
from cotenant.controller.submission.quantities import duration_s

T = TypeVar("T")


def value_of(flag: str, text: str, parse: Callable[[str], T]) -> T:
    """The value that a flag states. Raises Problem: `parse` says, by a ValueError, what is wrong with it."""
    try:
        return parse(text)
    except ValueError as error:
        raise Problem("usage", f"{flag} {error}") from None


def duration_of(flag: str, text: str) -> float | None:
    """None where nothing was said. Raises Problem."""
    return value_of(flag, text, duration_s) if text else None
