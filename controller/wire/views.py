"""What people and programs read of profiles, sharing and preemption: each struct here is the JSON of the
command line.

Rule: the controller makes a view, and `-o json` prints it as it came: msgspec's own JSON of the struct, with
its `schema` first. What does not apply, or was not measured, is null; times are RFC 3339 in UTC, durations
seconds. Times of what was shared are of the same steps, so that three of them (predicted, measured, alone)
can be compared; device-seconds are over all devices, each second of a device once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import field

from cotenant.controller import performance
from cotenant.controller.domain import JobId
from cotenant.controller.wire.times import Utc

STEPS_SHOWN: Final = (1, 2, 4, 8)
"""Accumulation steps shown, as far as each micro-batch has a sample."""
DEVICES_SHOWN: Final = 8
"""Devices shown at least; more for a job that has more."""


class JsonView(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema"):
    """Base of structs whose JSON has a `schema`."""


# --- Profiles --------------------------------------------------------------------------------------


class IndicatorView(msgspec.Struct, frozen=True, kw_only=True):
    mean: float | None = None
    variance: float | None = None
    source: str | None = None
    count: int = 0
    period_s: float | None = None


class ProfileView(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of a job. Every indicator is there, missing ones with nulls."""

    points: tuple[performance.ProfilePoint, ...] = ()
    """As measured."""
    modelled: tuple[performance.ProfilePoint, ...] = ()
    """What other parts of the batch would take, by a model of what was measured."""
    accumulates: bool | None = None
    memory_mib_peak: float | None = None
    static_mib: float | None = None
    """What of it no smaller sub-batch saves."""
    duty_cycle: float | None = None
    load_s: float | None = None
    steps: int = 0
    step_s: float | None = None
    """As it was started, where no batch size was said: then there are no points."""
    source: str | None = None
    indicators: dict[str, IndicatorView] = {}

    @property
    def has_indicators(self) -> bool:
        return any(each.mean is not None or each.variance is not None for each in self.indicators.values())

    def as_profile(self) -> performance.Profile:
        """Returns a profile to submit a job with: what was measured, without a model of it."""
        stats = {
            name: performance.IndicatorStats(
                mean=each.mean,
                variance=each.variance,
                source=each.source or "",
                count=each.count,
                period_s=each.period_s,
            )
            for name, each in self.indicators.items()
            if name in performance.INDICATOR_NAMES
        }
        return performance.Profile(
            points=self.points,
            accumulates=self.accumulates,
            memory_mib_peak=self.memory_mib_peak,
            static_mib=self.static_mib,
            duty_cycle=self.duty_cycle,
            load_s=self.load_s,
            steps=self.steps,
            step_s=self.step_s,
            source=self.source or "unknown",
            indicators=performance.Indicators(**stats) if self.has_indicators else None,
        )


def profile_view(profile: performance.Profile | None) -> ProfileView:
    """Null where nothing was measured."""
    known = profile if profile is not None else performance.Profile()
    return ProfileView(
        points=known.points,
        modelled=performance.modelled_points(known),
        accumulates=known.accumulates,
        memory_mib_peak=known.memory_mib_peak,
        static_mib=known.static_mib,
        duty_cycle=known.duty_cycle,
        load_s=known.load_s,
        steps=known.steps,
        step_s=known.step_s,
        source=None if profile is None else known.source,
        indicators=indicator_views(known.indicators),
    )


def indicator_views(indicators: performance.Indicators | None) -> dict[str, IndicatorView]:
    known = indicators if indicators is not None else performance.Indicators()
    named = {name: known.stats_of(name) for name in performance.INDICATOR_NAMES}
    return {
        name: IndicatorView(
            mean=stats.mean,
            variance=stats.variance,
            source=stats.source or None,
            count=stats.count,
            period_s=stats.period_s,
        )
        for name, stats in named.items()
    }


# --- The time of a step ----------------------------------------------------------------------------


class StepTimeView(msgspec.Struct, frozen=True, kw_only=True):
    """The step time of one gang at one s: as it was measured, and as the model predicts it with its range, in
    seconds."""

    devices: int
    hosts: int
    accumulation_steps: int
    measured_s: float | None
    step_s: float | None
    low_s: float | None
    high_s: float | None


class ThroughputView(JsonView, frozen=True, kw_only=True, tag="throughput/1"):
    """What a step should take on so many devices with so many micro-batches, and how far that may be off."""

    error_ratio: float
    points: int
    """How many measured steps stand behind it."""
    reaches: tuple[performance.Reach, ...]
    steps: tuple[StepTimeView, ...]


def throughput_view(
    profile: performance.Profile | None, batch_size: int | None, own: performance.Gang
) -> ThroughputView | None:
    """None without a model."""
    law = profile.throughput if profile is not None else None
    if profile is None or law is None or batch_size is None:
        return None
    return ThroughputView(
        error_ratio=law.error_ratio,
        points=law.steps,
        reaches=law.reaches,
        steps=tuple(_steps(profile, batch_size, own)),
    )


def _steps(profile: performance.Profile, batch_size: int, own: performance.Gang) -> Iterator[StepTimeView]:
    """What is known of gangs like the job's: measured, else by the model; nothing of what neither knows."""
    law = profile.throughput
    assert law is not None
    asked = {point.accumulation_steps for point in profile.points}
    for gang in _gangs(profile, own):
        for s in sorted(asked | {s for s in STEPS_SHOWN if s <= batch_size}):
            measured_s = _measured_s(profile, s, gang, own)
            predicted = law.predict(batch_size, s, gang)
            if measured_s is None and predicted is None:
                continue
            yield StepTimeView(
                devices=gang.devices,
                hosts=gang.hosts,
                accumulation_steps=s,
                measured_s=measured_s,
                step_s=None if predicted is None else predicted.step_s,
                low_s=None if predicted is None else predicted.low_s,
                high_s=None if predicted is None else predicted.high_s,
            )


def _gangs(profile: performance.Profile, own: performance.Gang) -> list[performance.Gang]:
    """Returns the gangs to show: one device, two, four, ... of one host, then of two; the job's own; those
    that were measured."""
    most = max(DEVICES_SHOWN, own.devices)
    doubled = [1 << power for power in range(most.bit_length()) if 1 << power <= most]
    listed = {own, *(point.gang for point in profile.points if point.gang is not None)}
    listed |= {performance.Gang(devices=devices) for devices in doubled}
    listed |= {performance.Gang(devices=devices, hosts=2) for devices in doubled if devices > 1}
    return sorted(listed, key=lambda gang: (gang.hosts, gang.devices))


def _measured_s(
    profile: performance.Profile, s: int, gang: performance.Gang, own: performance.Gang
) -> float | None:
    for point in profile.points:
        if point.accumulation_steps == s and (point.gang or own) == gang:
            return point.step_s
    return None


# --- Sharing and preemption ------------------------------------------------------------------------


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
    predicted_from: performance.XiSource | None
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
    idle_device_s: float = 0.0
    """Of them, those in which nothing used the devices."""
    idle_by_user: dict[str, float] = field(default_factory=dict)
    """The same by user, the most idle first."""
    energy_kwh: float = 0.0
    """What jobs used of GPUs, in all attempts but `energy_unknown_attempts`."""
    energy_unknown_attempts: int = 0
    sharing: SharingTotals
    interruptions: tuple[InterruptionView, ...]
    pairs: tuple[PairTotals, ...]
    """The best first."""
    more_pairs: int = 0
    formulas: dict[str, str] = field(default_factory=dict)
    not_known: tuple[str, ...] = ()
