"""A policy of ours as people choose it: what it is, when to choose it, how it is made.

Rule: an entry stands at the end of the module of its policy; `registry.py` has their names, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from cotenant.controller.policies.base import Parameters, Policy


class PolicyEntry(NamedTuple):
    """A policy of ours."""

    about: str
    """What it is, in one line."""
    make: Callable[..., Policy]
    """Called with what `parse` gives."""
    parse: Callable[[Parameters], Any] | None = None
    """Makes its parameters from what was given, or raises ValueError. None: it has none."""
    group: str = ""
    """Its heading in `cotenant policy list`."""
    choose: str = ""
    """When to choose it, in a line."""
    needs: tuple[str, str] | None = None
    """A library that it needs, and the extra that installs it."""


FIRST: Final = "To begin with"
ORDER: Final = "An order alone: nobody is preempted, nothing is shared"
PREEMPT: Final = "With preemption"
SHARE: Final = "With shared devices"
KEPT: Final = "With predictions that hold"
ELASTIC: Final = "For elastic jobs"
CLASSES: Final = "Two classes, hp and spot"
GROUPS: Final = (FIRST, ORDER, PREEMPT, SHARE, KEPT, ELASTIC, CLASSES)
"""In the order in which people read them."""
