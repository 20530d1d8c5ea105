"""Weighted fair queueing as PCS uses it (NSDI '24, section 3.1), on numbers alone; and how its configurations
are published.

    size -> class -> the class's share of the devices -> the shares of its jobs, first come first served

Rule: four numbers that an operator can read decide what a job may lose to later ones: where the
classes begin, what each is guaranteed, and how little a device may bring before it goes to the next job
(`zeta_min`, relaxed by `delta` while devices are left).

A class is given at most what its jobs can use; what is over goes to the others by weight. Within a class each
job, in order of arrival, gets up to its cap; is the class's share then not used up, all of it is divided
again under a cap that is lower by `delta`.

Rule: PCS's code can read what we write, and we read what it writes: JSON objects with the names of its code.
A file holds one such object, or several by name, alone or under `configs`.

    {"num_classes": 2, "class_thresholds": [102661, "inf"], "class_rates": [0.941, 0.059],
     "clip_demand_factor": 0.764419, "delta": 0.111536}
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cotenant.controller.policies.base import Parameters

LEFT_OVER = 1e-9
"""In devices; less is a rounding error."""


class Capped(Protocol):
    """A job that can say how many devices it may use."""

    def cap(self, zeta: float) -> int: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class WfqConfig:
    """A configuration, which is one point of a Pareto front. Class i holds jobs above threshold i - 1 and up
    to threshold i."""

    thresholds_gpu_s: tuple[float, ...] = ()
    """Rising; one less than there are classes: the last class has no end."""
    weights: tuple[float, ...] = (1.0,)
    """Guaranteed parts of the cluster; they are scaled to a sum of 1."""
    zeta_min: float = 0.01
    delta: float = 0.01

    def __post_init__(self) -> None:
        if len(self.weights) != len(self.thresholds_gpu_s) + 1:
            raise ValueError(
                f"{len(self.weights)} weights need {len(self.weights) - 1} thresholds between them, "
                f"got {len(self.thresholds_gpu_s)}"
            )
        if any(a >= b for a, b in zip(self.thresholds_gpu_s, self.thresholds_gpu_s[1:], strict=False)):
            raise ValueError(f"thresholds must rise, got {_number_list(self.thresholds_gpu_s)}")
        if not all(math.isfinite(value) and value > 0.0 for value in (*self.thresholds_gpu_s, *self.weights)):
            raise ValueError("thresholds and weights must be numbers above 0")
        if not (0.0 <= self.zeta_min <= 1.0 and 0.0 < self.delta <= 1.0):
            raise ValueError(
                "zeta_min must be within 0 to 1 and delta above 0 up to 1, "
                f"got {self.zeta_min} and {self.delta}"
            )

    def class_of(self, size_gpu_s: float) -> int:
        """The first class whose threshold is not below the size."""
        return bisect_left(self.thresholds_gpu_s, size_gpu_s)

    @classmethod
    def parse(cls, parameters: Parameters) -> WfqConfig:
        """Reads a configuration from parameters. Raises ValueError."""
        default = cls()
        thresholds = _numbers("thresholds_gpu_s", parameters.get("thresholds_gpu_s", ""))
        return cls(
            thresholds_gpu_s=tuple(value for value in thresholds if value != math.inf),
            weights=_numbers("weights", parameters.get("weights", "")) or default.weights,
            zeta_min=float(parameters.get("zeta_min", default.zeta_min)),
            delta=float(parameters.get("delta", default.delta)),
        )

    def as_parameters(self) -> Parameters:
        return {
            "thresholds_gpu_s": _number_list(self.thresholds_gpu_s),
            "weights": _number_list(self.weights),
            "zeta_min": self.zeta_min,
            "delta": self.delta,
        }


def _numbers(name: str, text: object) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in str(text).split(",") if word.strip())
    except ValueError:
        raise ValueError(f"{name} must be numbers with commas between them, got {text!r}") from None


def _number_list(values: Sequence[float]) -> str:
    return ",".join(f"{value:.10g}" for value in values)


def class_shares(demands: Sequence[float], weights: Sequence[float], gpus: float) -> list[float]:
    """Devices for each class: by weight, never more than its jobs can use, until one of both is used up."""
    shares = [0.0] * len(demands)
    left = min(float(gpus), float(sum(demands)))
    open_ = [number for number, demand in enumerate(demands) if demand > 0.0]
    while left > LEFT_OVER and open_:
        total = sum(weights[number] for number in open_)
        full = [n for n in open_ if demands[n] - shares[n] <= left * weights[n] / total]
        if not full:
            for number in open_:
                shares[number] += left * weights[number] / total
            break
        for number in full:  # They take what they can use; the others divide the rest anew.
            left -= demands[number] - shares[number]
            shares[number] = float(demands[number])
        open_ = [number for number in open_ if number not in full]
    return shares


def divide(share: float, members: Sequence[Capped], zeta: float, delta: float) -> list[float]:
    """The devices of the first members, in order; those after them get none. At most all that they can use
    must be there to divide."""
    while True:
        given: list[float] = []
        left = share
        for member in members:
            cap = member.cap(zeta)
            if cap >= left:
                given.append(left)
                return given
            given.append(cap)
            left -= cap
        if left <= LEFT_OVER or zeta <= 0.0:
            return given
        zeta -= delta


def parse_published(value: Mapping[str, Any]) -> WfqConfig:
    """Reads a configuration in PCS's own form. Raises ValueError."""
    default = WfqConfig()
    try:
        ends = [float(end) for end in value["class_thresholds"]]
        weights = tuple(float(rate) for rate in value["class_rates"])
        caps = (
            float(value.get("clip_demand_factor", default.zeta_min)),
            float(value.get("delta", default.delta)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"it is no configuration of PCS: {type(error).__name__} {error}") from None
    if not ends or ends[-1] != math.inf:
        raise ValueError('the last of class_thresholds must be "inf"')
    return WfqConfig(thresholds_gpu_s=tuple(ends[:-1]), weights=weights, zeta_min=caps[0], delta=caps[1])


def published_form(config: WfqConfig) -> dict[str, Any]:
    return {
        "num_classes": len(config.weights),
        "class_thresholds": [*config.thresholds_gpu_s, "inf"],
        "class_rates": list(config.weights),
        "clip_demand_factor": config.zeta_min,
        "delta": config.delta,
    }


def published_named(value: object, name: str = "") -> WfqConfig:
    """The configuration in what a file holds; `name` where it holds several.

    Raises ValueError.
    """
    if not isinstance(value, Mapping):
        raise ValueError("it is no JSON object")
    if "class_thresholds" in value:
        return parse_published(value)
    found = value.get("configs", value)
    if not isinstance(found, Mapping) or not all(isinstance(each, Mapping) for each in found.values()):
        raise ValueError("it holds no configurations of PCS")
    if not name and len(found) == 1:
        name = next(iter(found))
    if name not in found:
        raise ValueError(f"name one of its configurations after a #: {', '.join(map(str, found))}")
    return parse_published(found[name])
