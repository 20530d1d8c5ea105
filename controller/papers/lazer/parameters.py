"""Lazer's named options; the defaults are the paper's."""

from __future__ import annotations

from typing import Annotated, Literal

from cotenant.controller.policies.base import PolicyParameters, Within
from cotenant.controller.policies.toolkit import NewcomerRule


class LazerParameters(PolicyParameters, frozen=True, kw_only=True):
    """What the paper fixes, and what it leaves open as one option each."""

    x_max_s: Annotated[float, Within(0.0, 86_400.0)] = 100.0
    """Longest deferral (h of section 4.2); the shortest is 0. With 0 nothing is predicted, learned or
    deferred: `srtf` with the same `newcomers`, command by command."""
    newcomers: NewcomerRule = "first"
    """Who may preempt: a job that never had devices (Algorithm 1), or every job that comes to the queue."""
    bootstrap: Annotated[int, Within(2)] = 10
    """M: samples collected by Latin hypercube before the model is asked (footnote 2)."""
    updates_min: int = 100
    """Samples the model has learned from before the acquisition stage may end."""
    updates_max: Annotated[int, Within(0, 1000)] = 300
    """Samples after which it ends in any case: ours, since a decision costs more with each of them."""
    ei_stop: Annotated[float, Within(0.0, 1.0, above=True)] = 0.10
    """The acquisition stage ends when the expected improvement of the chosen X is below this share of how far
    the best observed f lies below the mean f (both standardised: the mean is 0, so that is |f_best|)."""
    chain: Literal["first", "last"] = "first"
    """Which arrival within the window counts for F, when several would have preempted the newcomer."""
    dwq_offered: bool = False
    """Offer devices that become free to deferred newcomers too (the paper offers them to WQ alone)."""
    protect_loading: bool = False
    """Jobs that load are not in RQ, so no job is preempted before its first step."""
    reserve_head: bool = False
    """The first in WQ that does not fit keeps those behind it from free devices, so that wide jobs do not
    starve (the paper passes it over)."""
    window_s: Annotated[float, Within(0.0, 604_800.0, above=True)] = 3600.0
    """The past over which the mean time between arrivals is taken (section 4.2)."""
    refit_every: Annotated[int, Within(1)] = 10
    """New samples between two fits of the hyperparameters; in between samples join with the old ones."""
    seed: Annotated[int, Within(0)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        problems = (
            (self.updates_min < self.bootstrap, "updates_min must not be below bootstrap"),
            (self.updates_max < self.updates_min, "updates_max must be updates_min to 1000"),
            (self.ei_stop == 1.0, "ei_stop must be below 1"),
        )
        wrong = next((text for is_wrong, text in problems if is_wrong), "")
        if wrong:
            raise ValueError(f"lazer: {wrong}")
