"""Runs of a simulation as a table: a row per policy, the best value of each column marked.

Rule: all times of jobs have one unit, and so have loads, pauses and work done twice; each title names it.
What is compared must be comparable at a glance. With several seeds a value is the mean over them, and what it
may be off by.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from cotenant.controller.present import screen
from cotenant.controller.present.tables import Column
from cotenant.controller.present.units import NONE, plural
from cotenant.controller.sim import TaskRun
from cotenant.controller.sim.results.paired import ConfidenceInterval, interval

PolicySummary = dict[str, Any]

BEST: Final = "*"
_UNITS: Final = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))


class Measure(NamedTuple):
    """A column of the table. `value` gives None where a run has no such number."""

    title: str
    """Includes the unit after a comma; that of a time is added later, since it depends on the values."""
    value: Callable[[PolicySummary], float | None]
    time: str = ""
    """Of which kind of time it is, if it is one: all of a kind are in the unit that suits the first."""
    best: Callable[[Sequence[float]], float] | None = min
    rank: int = 0
    only_wide: bool = False
    decimals: int | None = None
    if_any: bool = False
    """Shown only where a run has such a number."""


def number_at(*keys: str) -> Callable[[PolicySummary], float | None]:
    """The number at a path of keys; None where the path or the number is missing."""

    def find(summary: PolicySummary) -> float | None:
        found: Any = summary
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return None if found is None else float(found)

    return find


def percent(*keys: str) -> Callable[[PolicySummary], float | None]:
    find = number_at(*keys)
    return lambda summary: None if (found := find(summary)) is None else 100.0 * found


def hours(*keys: str) -> Callable[[PolicySummary], float | None]:
    find = number_at(*keys)
    return lambda summary: None if (found := find(summary)) is None else found / 3600.0


MEASURES: Final = (
    Measure("JCT MEAN", number_at("jct_s", "mean"), time="job"),
    Measure("JCT MEDIAN", number_at("jct_s", "p50"), time="job"),
    Measure("JCT P95", number_at("jct_s", "p95"), time="job"),
    Measure("JCT P99", number_at("jct_s", "p99"), time="job", only_wide=True),
    Measure("WAIT MEAN", number_at("wait_s", "mean"), time="job", rank=1),
    Measure("WAIT P95", number_at("wait_s", "p95"), time="job", only_wide=True),
    Measure("LOAD MEAN", number_at("load_s", "mean"), time="overhead", only_wide=True),
    Measure("PAUSE MEAN", number_at("pause_s", "mean"), time="overhead", only_wide=True),
    Measure("REWORK MEAN", number_at("rework_s", "mean"), time="overhead", only_wide=True),
    Measure("MAKESPAN", number_at("makespan_s"), time="job", only_wide=True),
    Measure("SLOWDOWN P50", number_at("fairness", "slowdown", "p50"), only_wide=True),
    Measure("RHO P95", number_at("fairness", "rho", "p95"), only_wide=True),
    Measure("UNFAIR, %", percent("fairness", "rho", "above_1_ratio"), only_wide=True, decimals=1),
    Measure("JAIN", number_at("fairness", "jain"), only_wide=True, best=max, decimals=3),
    Measure("HP JCT", number_at("hp", "jct_s", "mean"), time="job", rank=1, if_any=True),
    Measure("HP WAIT", number_at("hp", "wait_s", "mean"), time="job", rank=1, if_any=True),
    Measure("SPOT JCT", number_at("spot", "jct_s", "mean"), time="job", rank=1, if_any=True),
    Measure("SPOT WAIT", number_at("spot", "wait_s", "mean"), time="job", rank=1, if_any=True),
    Measure("EVICTED, %", percent("spot", "eviction_rate"), rank=1, decimals=2, if_any=True),
    Measure("BROKEN, %", percent("spot", "broken_ratio"), rank=2, decimals=2, if_any=True),
    Measure("ALLOCATED, %", percent("allocation_ratio"), rank=5, best=max, decimals=1, if_any=True),
    Measure("LOST, GPU-H", hours("lost_gpu_s"), rank=5, decimals=1, if_any=True),
    Measure("ERROR, %", percent("prediction_error", "mean"), rank=1, if_any=True),
    Measure("ERROR P99, %", percent("prediction_error", "p99"), rank=2, if_any=True),
    Measure("PREEMPTED", number_at("preemptions"), rank=3, best=None, decimals=0),
    Measure("RESIZED", number_at("resizes"), rank=3, best=None, decimals=0, if_any=True),
    Measure("FUTILE", number_at("futile_preemptions"), rank=2, decimals=0),
    Measure("FUTILE, GPU-H", hours("futile_s", "total_gpu_s"), rank=4, decimals=1),
    Measure("ABORTED", number_at("aborted_preemptions"), only_wide=True, decimals=0),
    Measure("SHARED", number_at("shared_jobs"), only_wide=True, best=None, decimals=0),
    Measure("BENEFIT", number_at("sharing_benefit", "p50"), only_wide=True, best=None, decimals=2),
    Measure("PROMISED", number_at("promises", "given"), rank=6, best=None, decimals=0, if_any=True),
    Measure("BROKEN", number_at("promises", "broken"), rank=6, best=None, decimals=0, if_any=True),
    Measure("ETA HIT, %", percent("eta", "coverage_80"), rank=6, best=None, decimals=0, if_any=True),
    Measure(
        "ETA WIDTH/JCT",
        number_at("eta", "width_over_jct"),
        only_wide=True,
        best=None,
        decimals=2,
        if_any=True,
    ),
    Measure("ETA BIAS, %", percent("eta", "median_bias"), only_wide=True, best=None, decimals=0, if_any=True),
    Measure("BUSY, %", percent("gpu_busy_ratio"), rank=5, best=None, decimals=1),
    Measure("DECISION, ms", number_at("decision_ms", "mean"), rank=6, best=None, decimals=3),
    Measure("EVENTS", number_at("events"), only_wide=True, best=None, decimals=0),
    Measure("CPU, s", number_at("cpu_s"), only_wide=True, best=None, decimals=1),
)


class SummaryRow(NamedTuple):
    """The row of one policy over all its seeds."""

    label: str
    summaries: tuple[PolicySummary, ...]


class Filled(NamedTuple):
    """A measure with the values of all rows, and the unit they are shown in."""

    measure: Measure
    values: dict[str, ConfidenceInterval | None]
    scale: float
    unit: str
    best: frozenset[str]

    @property
    def title(self) -> str:
        return f"{self.measure.title}, {self.unit}" if self.unit else self.measure.title

    def text(self, row: SummaryRow) -> str:
        found = self.values[row.label]
        if found is None:
            return NONE
        decimals = self.measure.decimals
        text = number(found.mean / self.scale, decimals)
        if found.half is not None and found.half > 0.0:
            text += f" ±{number(found.half / self.scale, decimals)}"
        if self.best:
            text += BEST if row.label in self.best else " "
        return text


def rows_of(summaries: Sequence[PolicySummary]) -> list[SummaryRow]:
    """The rows in the order in which labels first appear; what was interrupted says so."""
    labels = list(dict.fromkeys(label_of(summary) for summary in summaries))
    return [SummaryRow(label, tuple(s for s in summaries if label_of(s) == label)) for label in labels]


def label_of(summary: PolicySummary) -> str:
    label = str(summary["label"])
    if not summary["interrupted"]:
        return label
    return f"{label} (interrupted: {summary['finished']:,} of {summary['jobs']:,} jobs)"


def table(summaries: Sequence[PolicySummary], *, wide: bool, width: int | None) -> str:
    columns, rows = laid_out(summaries, wide=wide)
    return screen.table(columns, rows, width)


def laid_out(summaries: Sequence[PolicySummary], *, wide: bool) -> tuple[list[Column], list[SummaryRow]]:
    """Columns and rows of the table, before they become text."""
    rows = rows_of(summaries)
    chosen = [measure for measure in MEASURES if wide or not measure.only_wide]
    chosen = [each for each in chosen if not each.if_any or any(each.value(s) is not None for s in summaries)]
    columns = [Column("POLICY", lambda row: row.label)]
    units = units_of(rows)
    columns += [column(fill(measure, rows, *units[measure.time])) for measure in chosen]
    return columns, rows


def units_of(rows: Sequence[SummaryRow]) -> dict[str, tuple[float, str]]:
    """The units by the kind of time: for each kind its unit, in seconds, and that unit's name."""
    units = {"": (1.0, "")}
    for measure in MEASURES:
        if measure.time not in units:
            means = (interval_over_seeds(measure, row) for row in rows)
            units[measure.time] = unit_for([each.mean for each in means if each is not None])
    return units


def column(filled: Filled) -> Column:
    return Column(
        filled.title,
        filled.text,
        rank=filled.measure.rank,
        right=True,
        colour=lambda row: "green" if row.label in filled.best else "",
    )


def fill(measure: Measure, rows: Sequence[SummaryRow], scale: float, unit: str) -> Filled:
    values = {row.label: interval_over_seeds(measure, row) for row in rows}
    known = {label: found.mean for label, found in values.items() if found is not None}
    return Filled(measure, values, scale, unit, best_of(measure, rows, known))


def interval_over_seeds(measure: Measure, row: SummaryRow) -> ConfidenceInterval | None:
    found = [value for summary in row.summaries if (value := measure.value(summary)) is not None]
    return interval(found) if found else None


def best_of(measure: Measure, rows: Sequence[SummaryRow], known: dict[str, float]) -> frozenset[str]:
    """The labels of the rows that are best. Whole runs compete, and no row that leaves out jobs which were
    preempted; where all are equal none is best."""
    racing = {
        row.label: known[row.label]
        for row in rows
        if row.label in known
        and not any(each["interrupted"] or each.get("left_out_preemptions") for each in row.summaries)
    }
    if measure.best is None or len(set(racing.values())) < 2:
        return frozenset()
    best = measure.best(list(racing.values()))
    return frozenset(label for label, value in racing.items() if value == best)


def differences(paired: Sequence[dict[str, Any]]) -> list[str]:
    """The mean JCT of each policy against the first one's, seed by seed; or what was paired by windows."""
    lines = []
    for each in paired:
        if "windows" in each:
            lines.append(ratios(each))
            continue
        if each["measure"] != "jct_s.mean":
            continue
        scale, unit = unit_for([abs(each["difference"])])
        sign = "-" if each["difference"] < 0 else "+"
        text = f"{sign}{number(abs(each['difference']) / scale)} ±{number(each['half'] / scale)} {unit}"
        sure = "" if abs(each["difference"]) > each["half"] else ", which shows no difference"
        lines.append(f"{each['policy']} against {each['against']}, seed by seed: mean JCT {text}{sure}")
    return lines


def ratios(each: dict[str, Any]) -> str:
    """JCT, waiting time and bounded slowdown over those of the first policy."""
    said = []
    for name, title in (("jct_ratio", "JCT"), ("wait_ratio", "wait"), ("bsld_ratio", "bounded slowdown")):
        found = each[name]
        if found is None:
            continue
        text = f"{title} x {found['mean']:.3f}"
        if found["low"] is not None:
            alike = "" if not found["low"] <= 1.0 <= found["high"] else ", no difference shown"
            text += f" ({found['low']:.3f} to {found['high']:.3f}{alike})"
        said.append(text)
    where = f"over {plural(each['windows'], 'window')}"
    return f"{each['policy']} against {each['against']} {where}: " + "; ".join(said)


def unit_for(values: Sequence[float]) -> tuple[float, str]:
    """The largest unit in which the middle value is at least 1."""
    middle = statistics.median(values) if values else 0.0
    return next((each for each in _UNITS if middle >= each[0]), (1.0, "s"))


def number(value: float, decimals: int | None = None) -> str:
    """About four significant digits, or as many decimals as asked for."""
    if decimals is None:
        decimals = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 3
        decimals += 0.0 < abs(value) < 0.1
    return f"{value:,.{decimals}f}"


def seeds_line(summaries: Sequence[PolicySummary]) -> str:
    seeds = sorted({int(summary["seed"]) for summary in summaries})
    windows = {summary.get("window") for summary in summaries} - {None}
    if windows:
        drawn = f"seed {seeds[0]}" if len(seeds) == 1 else plural(len(seeds), "seed")
        return f"means over {plural(len(windows), 'window')} ({drawn}) with half of their 95 % interval"
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    return f"means over {plural(len(seeds), 'seed')} with half of their 95 % interval (Student)"


def knowledge_line(runs: Sequence[TaskRun]) -> list[str]:
    """What policies knew of lengths, where not all was said as jobs arrived."""
    knowledge = runs[0].task.workload.knowledge
    return [str(knowledge)] if knowledge.options() else []


def file_name(label: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in label)
