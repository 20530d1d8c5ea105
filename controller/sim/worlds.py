"""Worlds other than hosts with devices in which a workload can be simulated, and where they come from.

Rule: such a world comes in by an entry point in the group `cotenant.worlds`, and is imported when somebody
names it. It has policies of its own, and its outcome is the same as of any simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from cotenant.controller.policies import plugins
from cotenant.controller.policies.base import Parameters
from cotenant.controller.sim.world.outcome import RunResult
from cotenant.controller.sim.world.workload import Workload

GROUP: Final = "cotenant.worlds"


class WorldPolicy(NamedTuple):
    """A policy of another world, with its defaults."""

    about: str
    make: Callable[[Parameters], Any]
    """Raises ValueError for a value out of range."""
    defaults: Parameters


class OtherWorld(NamedTuple):
    """A world that is not made of hosts with devices."""

    policies: Mapping[str, WorldPolicy]
    adapt: Callable[[Workload], Workload]
    """The same jobs as this world sees them."""
    simulate: Callable[..., RunResult]
    """Called with workload, cluster, policy and parameters, and by name with `seed`, `asked` (so many jobs,
    evenly among all, ask at their arrival when they will have ended) and `watch`."""


def other_world(name: str) -> OtherWorld:
    """The world of that name.

    Raises:
        KeyError: no installed package brings it.
    """
    found: OtherWorld = plugins.load(plugins.find_entry_points(GROUP)[name])
    return found
