"""Profiles as tables, pages and JSON: `profile/1` is one series, `known-profile/1` is kept of one kind."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from cotenant.controller.cli.frame import screen
from cotenant.controller.cli.frame.screen import NONE, Column, duration, size
from cotenant.controller.cli.jobs.view import wall_clock
from cotenant.controller.cli.profiles.series import SeriesPlan, SeriesResult
from cotenant.controller.cli.profiles.throughput import throughput_json, throughput_lines
from cotenant.controller.domain.indicators import INDICATOR_NAMES, Indicators
from cotenant.controller.domain.perf import Profile, ProfilePoint
from cotenant.controller.domain.throughput import Gang
from cotenant.controller.wire.clients import KnownProfile, KnownProfiles


def seconds(value: float | None) -> str:
    """A step time: three digits that matter."""
    return NONE if value is None else f"{value:.3g}s"


# --- JSON -------------------------------------------------------------------------------------------


def profile_json(profile: Profile | None) -> dict[str, Any]:
    """What was measured; null where nothing was. Every indicator is there, missing ones with nulls."""
    known = profile if profile is not None else Profile()
    return {
        "points": [msgspec.to_builtins(point) for point in known.points],
        "accumulates": known.accumulates,
        "memory_mib_peak": known.memory_mib_peak,
        "duty_cycle": known.duty_cycle,
        "load_s": known.load_s,
        "steps": known.steps,
        "source": known.source if profile is not None else None,
        "indicators": indicators_json(known.indicators),
    }


def indicators_json(indicators: Indicators | None) -> dict[str, dict[str, float | str | None]]:
    known = indicators if indicators is not None else Indicators()
    return {
        name: {
            "mean": known.of(name).mean,
            "variance": known.of(name).variance,
            "source": known.of(name).source or None,
            "count": known.of(name).count,
            "period_s": known.of(name).period_s,
        }
        for name in INDICATOR_NAMES
    }


def series_json(plan: SeriesPlan, results: Sequence[SeriesResult]) -> dict[str, Any]:
    return {
        "schema": "profile/1",
        "command": list(plan.spec.launch.argv),
        "batch_size": plan.spec.batch_size,
        "code_sha256": plan.spec.code_sha256 or None,
        "profile_s": plan.profile_s,
        "device_time_s": {
            "estimated": plan.estimated_device_s,
            "measured": sum(each.device_s for each in results),
        },
        "configurations": [
            {
                "gpus": each.configuration.gpus,
                "hosts": each.configuration.hosts,
                "job": each.job.job_id,
                "state": each.job.phase.value,
                "reason": each.job.reason,
                "devices": list(each.job.devices),
                "device_time_s": each.device_s,
                **profile_json(each.profile),
            }
            for each in results
        ],
    }


def known_json(known: KnownProfile, reply: KnownProfiles) -> dict[str, Any]:
    wall = wall_clock(reply.now_s, reply.wall_s)
    return {
        "key": known.key,
        "kind": known.kind,
        "user": known.user,
        "name": known.name,
        "command": list(known.command),
        "gpus": known.gpus,
        "hosts": known.hosts,
        "device_type": known.device_type,
        "batch_size": known.batch_size,
        "complete": known.is_complete,
        "learned_at": screen.utc(wall(known.learned_s)),
        "used": known.used,
        "job": known.job_id,
        **profile_json(known.profile),
        "throughput": throughput_json(known.profile, known.batch_size, _gang(known)),
    }


def _gang(known: KnownProfile) -> Gang:
    return Gang(devices=max(known.gpus, known.hosts), hosts=known.hosts)


# --- For a person -----------------------------------------------------------------------------------


def _first(profile: Profile) -> ProfilePoint | None:
    return min(profile.points, key=lambda point: point.accumulation_steps, default=None)


def _step(profile: Profile) -> str:
    first = _first(profile)
    return NONE if first is None else seconds(first.step_s)


def _memory(profile: Profile) -> str:
    first = _first(profile)
    return size(profile.memory_mib_peak if first is None else first.memory_mib)


def _s(profile: Profile) -> str:
    return ",".join(str(point.accumulation_steps) for point in profile.points)


KNOWN_COLUMNS: Final = (
    Column("KEY", lambda k: k.key),
    Column("NAME", lambda k: k.name, limit=20),
    Column("USER", lambda k: k.user, rank=4, limit=10),
    Column("GPUS", lambda k: f"{k.gpus}" if k.hosts == 1 else f"{k.gpus}/{k.hosts} hosts", right=True),
    Column("TYPE", lambda k: k.device_type, rank=2),
    Column("BATCH", lambda k: NONE if k.batch_size is None else str(k.batch_size), rank=1, right=True),
    Column("S", lambda k: _s(k.profile)),
    Column("STEP", lambda k: _step(k.profile), right=True),
    Column("MEMORY", lambda k: _memory(k.profile), right=True),
    Column("USED", lambda k: str(k.used), rank=3, right=True),
    Column("WHOLE", lambda k: "yes" if k.is_complete else "no", rank=5),
)


def series_table(results: Sequence[SeriesResult]) -> str:
    """One line per configuration and s; a configuration that was not measured has one with the reason."""
    rows: list[tuple[SeriesResult, ProfilePoint | None]] = []
    for each in results:
        points = each.profile.points if each.profile is not None else ()
        rows += [(each, point) for point in points] or [(each, None)]
    columns = (
        Column("GPUS", lambda row: str(row[0].configuration.gpus), right=True),
        Column("HOSTS", lambda row: str(row[0].configuration.hosts), right=True),
        Column("JOB", lambda row: str(row[0].job.job_id)),
        Column("S", lambda row: NONE if row[1] is None else str(row[1].accumulation_steps), right=True),
        Column("SUB-BATCH", lambda row: NONE if row[1] is None else str(row[1].sub_batch), right=True),
        Column("STEP", lambda row: NONE if row[1] is None else seconds(row[1].step_s), right=True),
        Column("MEMORY", lambda row: size(_memory_of(*row)), right=True),
        Column("DEVICE TIME", lambda row: duration(row[0].device_s), right=True),
        Column("REASON", lambda row: row[0].job.reason),
    )
    return screen.table(columns, rows, screen.terminal_width())


def _memory_of(result: SeriesResult, point: ProfilePoint | None) -> float | None:
    if point is not None:
        return point.memory_mib
    return None if result.profile is None else result.profile.memory_mib_peak


def known_page(known: KnownProfile, reply: KnownProfiles) -> str:
    """Everything about one kind."""
    profile = known.profile
    wall = wall_clock(reply.now_s, reply.wall_s)
    lines = [
        f"profile {known.key}  {known.name}",
        f"  command   {shlex.join(known.command)}",
        f"  measured  {screen.local_time(wall(known.learned_s))} on job {known.job_id}, {profile.source}"
        + ("" if known.is_complete else ", not to its end"),
        f"  devices   {known.gpus} of type {known.device_type} on {screen.plural(known.hosts, 'host')}",
        f"  memory    {size(profile.memory_mib_peak)} at the whole batch",
        f"  load      {duration(profile.load_s)}; {screen.plural(profile.steps, 'step')} counted",
    ]
    if profile.points:
        lines += ["", screen.table(POINT_COLUMNS, profile.points, None)]
    lines += throughput_lines(profile, known.batch_size, _gang(known))
    lines += ["", screen.table(INDICATOR_COLUMNS, list(indicators_json(profile.indicators).items()), None)]
    return "\n".join(lines)


POINT_COLUMNS: Final = (
    Column("S", lambda p: str(p.accumulation_steps), right=True),
    Column("SUB-BATCH", lambda p: str(p.sub_batch), right=True),
    Column("STEP", lambda p: seconds(p.step_s), right=True),
    Column("MEMORY", lambda p: size(p.memory_mib), right=True),
)


def _number(value: float | str | None) -> str:
    return NONE if not isinstance(value, float) else f"{value:.4g}"


INDICATOR_COLUMNS: Final = (
    Column("INDICATOR", lambda row: row[0]),
    Column("MEAN", lambda row: _number(row[1]["mean"]), right=True),
    Column("VARIANCE", lambda row: _number(row[1]["variance"]), right=True),
    Column("SOURCE", lambda row: row[1]["source"] or "not measured"),
)
