"""What can be set of GFS, with the paper's values (Table 4) as defaults; its ablations and ours are
presets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from cotenant.controller.policies.base import Parameters, PolicyParameters

HOURS_MAX: Final = 24


class GfsParameters(PolicyParameters, frozen=True, kw_only=True):
    """The options of a GFS policy; with `order` and `share` empty the paper's own scheduler (PTS) decides."""

    quota: Literal["paper", "rise"] = "paper"
    """paper: eqs. 9 to 11. rise (ours): what is free, less what hp jobs that wait ask for, less the rise of
    their demand that history shows for this hour of the day."""
    p: float = 0.9
    """Guarantee rate: with this probability a spot job is not evicted within its guaranteed hours."""
    hours: int = 1
    """H, guaranteed from a run's first step on."""
    theta_s: float = 3600.0
    """Spot jobs that wait longer may let eta grow."""
    interval_s: float = 300.0
    """How often eta is updated."""
    estimator: Literal["forecast", "last-week-peak"] = "forecast"
    aggregation: Literal["paper", "pool"] = "paper"
    """paper: the sum over organisations of their quantiles; pool: one quantile of the total."""
    feedback: bool = True
    """False: eta stays 1."""
    scoring: Literal["criteria", "packing"] = "criteria"
    """Algorithm 1 with its three criteria, or with the first alone."""
    preemption: Literal["cost", "random"] = "cost"
    """Algorithm 2, or nodes and victims at random."""
    queue: Literal["requests", "service"] = "requests"
    """Spot jobs by GPUs of a pod, pods, arrival; or (ours) by expected remaining time x GPUs."""
    gamma: float = 0.8
    m: float = 3.0
    beta: float = 0.5
    long_h: float = 24.0
    """What the evictions of 24 hours are divided by (published code: 1)."""
    model: str = ""
    """A file with a trained model, on the controller's machine: it forecasts, and nothing is trained anew.
    Empty: the controller trains on its own hours."""
    trainer: Literal["xgboost-cqr", "orglinear"] = "xgboost-cqr"
    retrain_h: int = 24
    """Hours from training to training; 0: none."""
    holidays: str = ""
    """Country whose holidays a training knows (CN, DE-BY); empty: none."""
    order: str = ""
    """Another policy that orders, places and preempts the jobs of each class; empty: PTS."""
    share: str = ""
    """A policy that puts spot jobs beside spot jobs where the order finds nothing, and beside hp jobs where
    `sharing.hp` is on. Empty: nobody shares, but under `gfs-rise` with `sharing.hp`: there `castor-cost`
    decides."""

    def __post_init__(self) -> None:
        checks = (
            (not 0.5 <= self.p < 1.0, f"p must be from 0.5 to below 1, got {self.p}"),
            (not 1 <= self.hours <= HOURS_MAX, f"hours must be 1 to {HOURS_MAX}, got {self.hours}"),
            (not 0.0 <= self.theta_s <= 1e9, f"theta_s must be 0 to 1e9, got {self.theta_s}"),
            (
                not 10.0 <= self.interval_s <= 86_400.0,
                f"interval_s must be 10 to 86400, got {self.interval_s}",
            ),
            (not 0.0 <= self.gamma <= 1.0, f"gamma must be 0 to 1, got {self.gamma}"),
            (not 1.0 < self.m <= 100.0, f"m must be above 1, at most 100, got {self.m}"),
            (not 0.0 <= self.beta <= 1e9, f"beta must be 0 to 1e9, got {self.beta}"),
            (not 1.0 <= self.long_h <= 24.0, f"long_h must be 1 to 24, got {self.long_h}"),
            (not 0 <= self.retrain_h <= 8760, f"retrain_h must be 0 to 8760, got {self.retrain_h}"),
        )
        problem = next((text for is_wrong, text in checks if is_wrong), "")
        if problem:
            raise ValueError(f"gfs: {problem}")

    @classmethod
    def parse_variant(cls, name: str, parameters: Parameters) -> GfsParameters:
        """Returns the parameters of a variant, with what was given.

        Raises:
            ValueError: a wrong name, type or range.
        """
        found = msgspec.convert({**VARIANTS[name], **parameters}, cls, strict=False)
        if found.model or found.estimator != "forecast":
            return msgspec.structs.replace(found, retrain_h=0)
        return found

    @property
    def levels(self) -> tuple[float, ...]:
        """Quantiles of the demand: the forecast, and what the quota keeps free."""
        return tuple(sorted({0.5, self.p}))

    @property
    def promised_s(self) -> float:
        return 3600.0 * self.hours


VARIANTS: Final[Mapping[str, Parameters]] = {
    "gfs": {},
    "gfs-e": {"estimator": "last-week-peak"},
    "gfs-d": {"feedback": False},
    "gfs-s": {"scoring": "packing"},
    "gfs-p": {"preemption": "random"},
    "gfs-sp": {"scoring": "packing", "preemption": "random"},
    "gfs-rise": {"quota": "rise", "p": 0.95, "queue": "service", "retrain_h": 0},
}

ABOUT: Final = {
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
"""What each is, and when to choose it."""
