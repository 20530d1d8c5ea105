"""How a test notes what it measured: a property of its case in pytest's JUnit file, as text with its unit."""

from __future__ import annotations

import math
from typing import Protocol

Value = float | str | bool | None


class Measure(Protocol):
    """`measured("load", 3.1, "s")`. `otherwise`: why there is no value, where it is None or NaN."""

    def __call__(
        self, name: str, value: Value, unit: str = "", note: str = "", otherwise: str = ""
    ) -> None: ...


def in_words(value: Value, unit: str = "", note: str = "", otherwise: str = "") -> str:
    """Four significant digits; words as they are; a dash and the reason where there is no value."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return f"- ({otherwise or note or 'it could not be measured'})"
    if isinstance(value, bool):
        text = "yes" if value else "no"
    else:
        text = value if isinstance(value, str) else f"{value:.4g}"
    return f"{text} {unit}".strip() + (f" ({note})" if note else "")
