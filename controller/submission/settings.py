"""Options of a job that has not ended, changed one by one: `key=value`."""

from __future__ import annotations

from cotenant.controller.present.problem import Problem
from cotenant.controller.submission.options import option_of, read
from cotenant.controller.submission.quantities import GpuRange

NONE = "-"
"""This value takes the option back, as if it had not been given."""


def setting(text: str) -> tuple[str, str | int | float | None]:
    """Reads an option and its new value. Raises Problem: there is no such option, or its value makes no
    sense."""
    key, _, value = text.partition("=")
    key = key.replace("-", "_")
    option = option_of(key, "set")
    found = None if value == NONE else read(option, (value,), key).value
    if isinstance(found, GpuRange) and found.least == found.most:
        found = found.least * found.fraction if found.fraction < 1.0 else found.least
    if key == "notify" and isinstance(found, tuple):
        found = ",".join(found)
    if not isinstance(found, str | int | float | None):
        raise Problem("usage", f"{key} cannot be set later", "submit the job anew")
    return key, found
