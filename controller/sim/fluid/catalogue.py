"""Which policies there are in the fluid world, and how one is made by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from cotenant.controller.policies.base import Parameters
from cotenant.controller.policies.pcs import WfqConfig
from cotenant.controller.sim.fluid.elastic import AfsL, MaxMin, PolluxLike, SiaLike, Themis
from cotenant.controller.sim.fluid.play import Rule
from cotenant.controller.sim.fluid.promised import PromiseShares, StretchShares
from cotenant.controller.sim.fluid.rules import FifoShares, SrsfShares, WfqShares


class FluidPolicy(NamedTuple):
    """One policy of the fluid world."""

    about: str
    make: Callable[[Parameters], Rule]
    defaults: Parameters


POLICIES: dict[str, FluidPolicy] = {
    "fifo": FluidPolicy("first come, first served", lambda given: FifoShares(), {}),
    "srsf": FluidPolicy(
        "least remaining service first (PCS calls it Tiresias)", lambda given: SrsfShares(), {}
    ),
    "stretch": FluidPolicy(
        "srsf, and jobs are told of the smaller ones still to come",
        lambda given: StretchShares(float(given.get("stretch", 1.0))),
        {"stretch": 1.0},
    ),
    "promise": FluidPolicy(
        "told as under stretch; jobs whose promise has no slack go first",
        lambda given: PromiseShares(float(given.get("stretch", 1.0)), float(given.get("epsilon", 0.0))),
        {"stretch": 1.0, "epsilon": 0.0},
    ),
    "pcs": FluidPolicy(
        "weighted fair queueing by size",
        lambda given: WfqShares(WfqConfig.parse(given)),
        WfqConfig().as_parameters(),
    ),
    "max-min": FluidPolicy("equal shares", lambda given: MaxMin(), {}),
    "afs-l": FluidPolicy("AFS-L: each device to whom it helps more", lambda given: AfsL(), {}),
    "themis": FluidPolicy(
        "furthest behind its fair finish time first",
        lambda given: Themis(float(given.get("lease_s", 600.0))),
        {"lease_s": 600.0},
    ),
    "pollux": FluidPolicy("as Pollux: the greatest fitness", lambda given: PolluxLike(), {}),
    "sia": FluidPolicy("as Sia: its integer program, on one type", lambda given: SiaLike(), {}),
}
