"""Profiles as tables, pages and JSON: `profile/1` is one series, `known-profile/1` is kept of one kind; and
what a step should take on so many devices with so many micro-batches, and how far that may be off.

Rule: a measured time is shown as one, a predicted one with its range; of a reach that was never measured the
model says nothing, and so does the table.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from cotenant.controller.client.profile_series import SeriesPlan, SeriesResult
from cotenant.controller.performance import ProfilePoint
from cotenant.controller.present import screen, units
from cotenant.controller.present.devices import LEGEND
from cotenant.controller.present.tables import Column
from cotenant.controller.present.throughput import seconds, throughput_lines
from cotenant.controller.present.units import NONE, duration, local_time, size
from cotenant.controller.wire import ProfileView, profile_view, wall_s
from cotenant.controller.wire import clients as wire

AnyProfile = wire.KnownProfile | ProfileView

# --- JSON -------------------------------------------------------------------------------------------


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
                **msgspec.to_builtins(each.profile or profile_view(None)),
            }
            for each in results
        ],
    }


# --- For a person -----------------------------------------------------------------------------------


def _first(profile: AnyProfile) -> ProfilePoint | None:
    return min(profile.points, key=lambda point: point.accumulation_steps, default=None)


def _step(profile: AnyProfile) -> str:
    first = _first(profile)
    return NONE if first is None else seconds(first.step_s)


def _memory(profile: AnyProfile) -> str:
    first = _first(profile)
    return size(profile.memory_mib_peak if first is None else first.memory_mib)


def _s(profile: AnyProfile) -> str:
    return ",".join(str(point.accumulation_steps) for point in profile.points)


def _gpus(known: wire.KnownProfile) -> str:
    return f"{known.gpus}" if known.hosts == 1 else f"{known.gpus}/{known.hosts} hosts"


KNOWN_COLUMNS: Final = (
    Column("KEY", lambda k: k.key),
    Column("NAME", lambda k: k.name, limit=20),
    Column("USER", lambda k: k.user, rank=4, limit=10),
    Column("GPUS", lambda k: _gpus(k), right=True),
    Column("TYPE", lambda k: k.device_type, rank=2),
    Column("BATCH", lambda k: NONE if k.batch_size is None else str(k.batch_size), rank=1, right=True),
    Column("S", lambda k: _s(k)),
    Column("STEP", lambda k: _step(k), right=True),
    Column("MEMORY", lambda k: _memory(k), right=True),
    Column("USED", lambda k: str(k.used), rank=3, right=True),
    Column("WHOLE", lambda k: "yes" if k.is_complete else "no", rank=5),
    Column("LEARNED", lambda k: local_time(wall_s(k.learned_at)), rank=6),
    Column("COMMAND", lambda k: shlex.join(k.command)),
)
"""With the command, and with when it was measured: kinds differ in these where a name is one for many."""


class FamilyRow(NamedTuple):
    """The profiles of one program with other numbers, which are one line."""

    key: str
    members: tuple[wire.KnownProfile, ...]

    @property
    def last(self) -> wire.KnownProfile:
        return self.members[-1]


def families_of(profiles: Sequence[wire.KnownProfile]) -> list[FamilyRow]:
    """The families of profiles, in the order of their last members."""
    found: dict[str, list[wire.KnownProfile]] = {}
    for each in profiles:
        key = each.family or each.key
        found[key] = [*found.pop(key, ()), each]
    return [
        FamilyRow(key if len(members) > 1 else members[0].key, tuple(members))
        for key, members in found.items()
    ]


def _range(values: Sequence[float], text: Callable[[float], str]) -> str:
    low, high = (text(min(values)), text(max(values))) if values else (NONE, NONE)
    return low if low == high else f"{low} to {high}"


def _range_over(members: Sequence[AnyProfile], name: str, text: Callable[[float], str]) -> str:
    points = [(each, _first(each)) for each in members]
    own = {"step_s": "step_s", "memory_mib": "memory_mib_peak"}[name]
    values = (getattr(each, own) if point is None else getattr(point, name) for each, point in points)
    return _range([value for value in values if value is not None], text)


FAMILY_COLUMNS: Final = (
    Column("KEY", lambda f: f.key),
    Column("NAME", lambda f: f.last.name, limit=20),
    Column("USER", lambda f: f.last.user, rank=4, limit=10),
    Column("GPUS", lambda f: _gpus(f.last), right=True),
    Column("TYPE", lambda f: f.last.device_type, rank=2),
    Column(
        "BATCH", lambda f: NONE if f.last.batch_size is None else str(f.last.batch_size), rank=3, right=True
    ),
    Column("KINDS", lambda f: str(len(f.members)), right=True),
    Column("STEP", lambda f: _range_over(f.members, "step_s", seconds), right=True),
    Column("MEMORY", lambda f: _range_over(f.members, "memory_mib", size), right=True),
    Column("RUNS", lambda f: str(len(f.last.family_run_s)), rank=1, right=True),
    Column("LENGTH", lambda f: _range(f.last.family_run_s, duration), right=True),
    Column("COMMAND", lambda f: " ".join(f.last.command if len(f.members) == 1 else f.last.family_words)),
)
"""One line for commands that differ in numbers only."""


def series_table(results: Sequence[SeriesResult]) -> str:
    """The table of a series, one line per configuration and s; a configuration that was not measured has one
    with the reason."""
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


def known_page(known: wire.KnownProfile) -> str:
    """Everything about one kind."""
    lines = [
        f"profile {known.key}  {known.name}",
        f"  command   {shlex.join(known.command)}",
        f"  measured  {units.local_time(wall_s(known.learned_at))} on job {known.job_id}, {known.source}"
        + ("" if known.is_complete else ", not to its end"),
        f"  devices   {known.gpus} of type {known.device_type} on {units.plural(known.hosts, 'host')}",
        f"  memory    {size(known.memory_mib_peak)} at the whole batch",
        f"  load      {duration(known.load_s)}; {units.plural(known.steps, 'step')} counted",
    ]
    if known.points:
        rows = [(point, "measured") for point in known.points]
        rows += [(point, "modelled") for point in known.modelled]
        rows.sort(key=lambda row: row[0].accumulation_steps)
        lines += ["", screen.table(POINT_COLUMNS, rows, None)]
    lines += throughput_lines(known.points, known.throughput, known.batch_size)
    lines += ["", screen.table(INDICATOR_COLUMNS, list(known.indicators.items()), None)]
    return "\n".join(lines)


POINT_COLUMNS: Final = (
    Column("S", lambda row: str(row[0].accumulation_steps), right=True),
    Column("SUB-BATCH", lambda row: str(row[0].sub_batch), right=True),
    Column("STEP", lambda row: seconds(row[0].step_s), right=True),
    Column("MEMORY", lambda row: size(row[0].memory_mib), right=True),
    Column("SOURCE", lambda row: row[1]),
)


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.4g}"


INDICATOR_COLUMNS: Final = (
    Column("INDICATOR", lambda row: row[0]),
    Column("UNIT", lambda row: LEGEND.get(row[0], ("", NONE))[1]),
    Column("MEAN", lambda row: _number(row[1].mean), right=True),
    Column("VARIANCE", lambda row: _number(row[1].variance), right=True),
    Column("SOURCE", lambda row: row[1].source or "not measured"),
)
