"""What people read of a policy, and how it is made from its parameters.

Rule: an entry stands in the module of its policy, behind it; `registry.py` has their names, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
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
    from_file: Callable[[Any, str], Parameters] | None = None
    """Its parameters from a JSON document of its own form and the name of one in it (`config=FILE#NAME`);
    raises ValueError. None: it has no such form."""
    tools: Mapping[str, str] = MappingProxyType({})
    """What `cotenant policy WORD NAME` runs: word (`train`, `tune`) -> `MODULE:FUNCTION` of a command; or,
    where it is no part of what is installed, the command line that does it in the repository."""


class PlacementRule(NamedTuple):
    """A way to place waiting jobs that replaces best fit."""

    apply: Callable[[Policy], Policy]
    """The policy with this placement."""
    why_not: Callable[[Policy], str]
    """Why a policy cannot be used with it; empty if it can."""


FIRST: Final = "To begin with"
ORDER: Final = "An order alone: nobody is preempted, nothing is shared"
PREEMPT: Final = "With preemption"
SHARE: Final = "With shared devices"
KEPT: Final = "With predictions that hold"
ELASTIC: Final = "For elastic jobs"
CLASSES: Final = "Two classes, hp and spot"
COMPARED: Final = "For comparison: other published systems, and parts of those above left out"
GROUPS: Final = (FIRST, ORDER, PREEMPT, SHARE, KEPT, ELASTIC, CLASSES, COMPARED)
"""The headings of `cotenant policy list`, in the order in which people read them."""
