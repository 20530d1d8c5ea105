"""What is shown while the controller does not answer."""

from __future__ import annotations

from cotenant.controller.client.connection import Unreachable
from cotenant.controller.domain import texts
from cotenant.controller.present.units import duration


def trouble_in_words(error: Exception, silent_s: float) -> str:
    """Why what is shown is not of now."""
    if isinstance(error, Unreachable):
        return f"no answer from the controller for {duration(silent_s)}; this is old, trying again"
    return texts.one_line(f"{error}; this is {duration(silent_s)} old, trying again")
