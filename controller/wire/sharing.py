"""What `-o json` says of sharing and preemption: predicted, measured, alone, won and lost.

Rule: times are of the same steps, so that three of them can be compared; device-seconds are over all devices,
each second of a device once.
"""

from __future__ import annotations

import msgspec
from msgspec import field

from cotenant.controller.domain import JobId, XiSource
from cotenant.controller.wire.views import JsonView, Utc


class SharingView(msgspec.Struct, frozen=True, kw_only=True):
    """What a job did beside the same others, over all its attempts."""

    beside: tuple[JobId, ...]
    steps: float
    predicted_s: float | None
    """Time of these steps as predicted when the jobs were placed together."""
    measured_s: float
    alone_s: float | None
    """These steps at the whole batch with nobody beside it."""
    predicted_slowdown: float | None
    """The first time: step time beside them, its sub-batch included, over that alone at the whole batch."""
    predicted_from: XiSource | None
    predicted_margin_s: float | None = None
    """Half the width of the prediction's interval; null without a trained model."""
    device_s: float
    """Its part of what its devices took."""
    won_device_s: float | None
    """`alone_s` on all its devices, minus `device_s`; null while one of them is not known alone."""


class PromiseView(msgspec.Struct, frozen=True, kw_only=True):
    """What the policy expected of placing a job beside another: when they end from its launch, on average."""

    beside: JobId
    promised_s: float
    took_s: float | None
    """Loads included, which no promise has; null before both have finished."""
    sequential_s: float
    """Expected if they ran one after the other."""


class SharingTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Over all jobs that trained beside others."""

    jobs: int
    alone_device_s: float
    measured_device_s: float
    won_device_s: float
    """The first minus the second."""
    unknown_device_s: float
    """Measured, where one side is not known alone: in none of the others."""
    cost_device_s: float
    """Of parting pairs, and of what ended jobs beside others."""
    net_device_s: float


class InterruptionView(msgspec.Struct, frozen=True, kw_only=True):
    """What it cost that jobs had to leave their devices, for one cause."""

    cause: str
    count: int
    save_device_s: float
    load_device_s: float
    rework_device_s: float
    futile_device_s: float
    cost_device_s: float
    """The sum of the four."""
    rework_unknown_steps: int
    """Done once more by jobs whose step alone is not known: in no sum."""


class PairTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Two kinds of jobs, both ways together."""

    first: str
    second: str
    alone_device_s: float
    measured_device_s: float
    won_device_s: float


class ReportView(JsonView, frozen=True, kw_only=True, tag="report/1"):
    """What sharing and preemption brought and cost on this cluster."""

    now: Utc
    since: Utc | None
    """What was asked for; null: all that is remembered."""
    remembered_since: Utc | None
    """When the oldest job that is remembered was submitted; null: there is none."""
    forgotten_jobs: int
    """Jobs that ended so long ago that only the journal knows them: they count in nothing here."""
    held_device_s: float
    """Seconds in which devices were held."""
    sharing: SharingTotals
    interruptions: tuple[InterruptionView, ...]
    pairs: tuple[PairTotals, ...]
    """The best first."""
    more_pairs: int = 0
    formulas: dict[str, str] = field(default_factory=dict)
    not_known: tuple[str, ...] = ()
