"""GFS and its variants, as people choose them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from cotenant.controller.policies.base import Parameters, Policy
from cotenant.controller.policies.entry import CLASSES, PolicyEntry
from cotenant.controller.policies.gfs.parameters import GfsParameters
from cotenant.controller.policies.gfs.policy import Gfs

_VARIANTS: Final = {
    "gfs": (
        "hp first; spot jobs get what a forecast of hp demand leaves, and give way at the least cost",
        "hp demand has a daily rhythm that a forecast can learn (GFS)",
    ),
    "gfs-e": (
        "gfs with last week's peak in place of a forecast",
        "gfs is to be judged without its forecast",
    ),
    "gfs-d": (
        "gfs without feedback: what it keeps back is not corrected by what was wrong before",
        "gfs is to be judged without its feedback",
    ),
    "gfs-s": (
        "gfs that places by packing alone",
        "gfs is to be judged without its way of placing",
    ),
    "gfs-p": (
        "gfs that preempts at random",
        "gfs is to be judged without its way of preempting",
    ),
    "gfs-sp": (
        "gfs that places by packing alone and preempts at random",
        "gfs is to be judged with neither of the two",
    ),
    "gfs-rise": (
        "classes as in gfs; spot jobs get what the usual rise of hp demand leaves, shortest first",
        "some jobs must never wait (--class hp) and others may give way",
    ),
}


def entries(make: Callable[[str, Parameters], Policy]) -> dict[str, PolicyEntry]:
    """By name; `make` makes the order of the queue below."""

    def made(name: str, parameters: GfsParameters) -> Policy:
        return Gfs(name, parameters, make)

    return {
        name: PolicyEntry(
            about, partial(made, name), partial(GfsParameters.parse, name), group=CLASSES, choose=choose
        )
        for name, (about, choose) in _VARIANTS.items()
    }
