"""Configurations as PCS publishes them: JSON objects with the names of its code.

    {"num_classes": 2, "class_thresholds": [102661, "inf"], "class_rates": [0.941, 0.059],
     "clip_demand_factor": 0.764419, "delta": 0.111536}

Rule: PCS's code can read what we write, and we read what it writes. A file holds one such object, or
several by name, alone or under `configs`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cotenant.controller.policies.pcs.wfq import WfqConfig


def from_published(value: Mapping[str, Any]) -> WfqConfig:
    """Raises ValueError."""
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


def as_published(config: WfqConfig) -> dict[str, Any]:
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
        return from_published(value)
    found = value.get("configs", value)
    if not isinstance(found, Mapping) or not all(isinstance(each, Mapping) for each in found.values()):
        raise ValueError("it holds no configurations of PCS")
    if not name and len(found) == 1:
        name = next(iter(found))
    if name not in found:
        raise ValueError(f"name one of its configurations after a #: {', '.join(map(str, found))}")
    return from_published(found[name])
