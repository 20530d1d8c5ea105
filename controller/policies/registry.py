"""Which policies there are, and how to make one from its name and parameters."""

from __future__ import annotations

from collections.abc import Callable

from cotenant.controller.policies.base import Parameters, Policy
from cotenant.controller.policies.castor.policy import Castor, CastorParameters
from cotenant.controller.policies.classic import Srtf, fifo, sjf

AVAILABLE: dict[str, str] = {
    "fifo": "first come, first served",
    "sjf": "shortest expected job first among those that fit; no preemption",
    "srtf": "shortest remaining time first; newcomers preempt longer jobs",
    "castor": "SJF-BSBF: shortest first, shares devices when Theorem 1 says it pays; no preemption",
}

_MAKERS: dict[str, Callable[[Parameters], Policy]] = {
    "fifo": lambda parameters: fifo(),
    "sjf": lambda parameters: sjf(),
    "srtf": lambda parameters: Srtf(),
    "castor": lambda parameters: Castor(CastorParameters.parse(parameters)),
}

_DEFAULTS: dict[str, Parameters] = {"castor": CastorParameters().as_parameters()}


def defaults(name: str) -> Parameters:
    """The parameters a policy takes, with their defaults (the paper's values)."""
    return dict(_DEFAULTS.get(name, {}))


def make(name: str, parameters: Parameters) -> Policy:
    """A fresh policy.

    Raises:
        ValueError: unknown name, unknown parameter, or a value out of range; the text says what to do.
    """
    maker = _MAKERS.get(name)
    if maker is None:
        raise ValueError(f"no policy {name!r}; there are {', '.join(AVAILABLE)}")
    unknown = set(parameters) - set(defaults(name))
    if unknown:
        takes = ", ".join(defaults(name)) or "no parameters"
        raise ValueError(f"policy {name} has no parameter {', '.join(sorted(unknown))}; it takes {takes}")
    return maker(parameters)
