"""Values of flags that several faces read."""

from __future__ import annotations

from cotenant.controller.present.problem import Problem
from cotenant.controller.submission.quantities import duration_s


def duration_of(flag: str, text: str) -> float | None:
    """None where nothing was said. Raises Problem."""
    try:
        return duration_s(text) if text else None
    except ValueError as error:
        raise Problem("usage", f"{flag} {error}") from None
