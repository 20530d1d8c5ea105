"""Which policies there are, and how to make one from its name and parameters."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from cotenant.controller.policies.base import Parameters, Policy
from cotenant.controller.policies.castor.policy import Castor, CastorParameters
from cotenant.controller.policies.classic import Srtf, fifo, sjf
from cotenant.controller.policies.lazer.parameters import LazerParameters
from cotenant.controller.policies.lazer.policy import Lazer

_ABOUT: dict[str, str] = {
    "fifo": "first come, first served",
    "sjf": "shortest expected job first among those that fit; no preemption",
    "srtf": "shortest remaining time first; newcomers preempt longer jobs",
    "castor": "SJF-BSBF: shortest first, shares devices when Theorem 1 says it pays; no preemption",
    "lazer": "Lazer: as srtf, but a preemption is deferred by a time that is learned",
}

_EXTRAS: dict[str, tuple[str, str]] = {"lazer": ("botorch", "bo")}
"""Policies whose slow thinking needs a library: its name, and the extra that brings it."""


def lacks(name: str) -> str:
    """What a policy needs and does not find here; empty if nothing. Imports nothing."""
    library, extra = _EXTRAS.get(name, ("", ""))
    if not library or importlib.util.find_spec(library) is not None:
        return ""
    return f'it learns with {library}, which is not installed: pip install "cotenant[{extra}]"'


UNAVAILABLE: dict[str, str] = {name: why for name in _ABOUT if (why := lacks(name))}
"""Policies that could be there, and what they lack."""

AVAILABLE: dict[str, str] = {name: about for name, about in _ABOUT.items() if name not in UNAVAILABLE}

_MAKERS: dict[str, Callable[[Parameters], Policy]] = {
    "fifo": lambda parameters: fifo(),
    "sjf": lambda parameters: sjf(),
    "srtf": lambda parameters: Srtf(),
    "castor": lambda parameters: Castor(CastorParameters.parse(parameters)),
    "lazer": lambda parameters: Lazer(LazerParameters.parse(parameters)),
}

_DEFAULTS: dict[str, Parameters] = {
    "castor": CastorParameters().as_parameters(),
    "lazer": LazerParameters().as_parameters(),
}


def defaults(name: str) -> Parameters:
    """The parameters a policy takes, with their defaults (the paper's values)."""
    return dict(_DEFAULTS.get(name, {}))


def make(name: str, parameters: Parameters) -> Policy:
    """A fresh policy.

    Raises:
        ValueError: unknown name, unknown parameter, a value out of range, or a missing library; the text
            says what to do.
    """
    maker = _MAKERS.get(name)
    if maker is None:
        raise ValueError(f"no policy {name!r}; there are {', '.join(AVAILABLE)}")
    missing = lacks(name)
    if missing:
        raise ValueError(f"policy {name} is not available: {missing}")
    unknown = set(parameters) - set(defaults(name))
    if unknown:
        takes = ", ".join(defaults(name)) or "no parameters"
        raise ValueError(f"policy {name} has no parameter {', '.join(sorted(unknown))}; it takes {takes}")
    return maker(parameters)
