"""The report of a run on a GPU host: outcomes, skip reasons and measured numbers, as JSON and a page. Pure.

Rule: a report says what it lacks. It is complete only if every test of every part ran on a CUDA device, and
whatever keeps it from that is the first thing on the page. A number stands there only if a test measured it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

SCHEMA: Final = "hardware-report/1"
Outcome = Literal["passed", "failed", "skipped"]
VERDICTS: Final[tuple[Outcome, ...]] = ("failed", "skipped", "passed")
Value = float | str | bool | None


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One number (or a program's own words) that a test found out."""

    name: str
    value: Value
    """None: it was looked for and could not be had; `note` says why."""
    unit: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.value, float) and not math.isfinite(self.value):
            raise ValueError(f"{self.name}: {self.value} is no measurement; use None and say why in `note`")
        if self.value is None and not self.note:
            raise ValueError(f"{self.name}: a missing value needs a note that says why")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one test."""

    test: str
    """`test_pairs.py::test_name[parameter]`."""
    outcome: Outcome
    reason: str = ""
    """Of a skip or a failure, one line."""
    duration_s: float = 0.0
    measured: tuple[Measured, ...] = ()
    at: str = ""
    """When it ended, RFC 3339 UTC."""

    @property
    def part(self) -> str:
        return self.test.partition("::")[0].removeprefix("test_").removesuffix(".py")


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where it ran. Two records belong into one report only if this is the same for both."""

    gpus: tuple[str, ...] = ()
    """Names, in NVML's order."""
    driver: str = ""
    cuda_of_driver: str = ""
    torch: str = ""
    cuda_of_torch: str = ""
    python: str = ""
    linux: str = ""
    processor: str = ""
    cores: int = 0
    memory_gib: int = 0
    commit: str = ""
    changed: bool = False
    """The working tree differs from the commit."""
    device: str = "cuda"
    """`cpu`: a dry run, which says nothing about GPUs."""
    fake: bool = False
    """Made up, in a test of the report itself."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One JSON file."""

    schema: str = SCHEMA
    machine: Machine
    started: str
    """RFC 3339 UTC."""
    complete: bool
    gaps: tuple[str, ...]
    """Why it is not complete, most important first."""
    records: tuple[Record, ...]


class Mismatch(Exception):
    """Two runs that cannot be one report; the text says in what they differ."""


def make(
    machine: Machine,
    records: Sequence[Record],
    *,
    started: str,
    parts: Iterable[str] = (),
    left_out: int = 0,
    interrupted: str = "",
) -> Report:
    """The report of what has run.

    Args:
        parts: every part of the suite, whether it ran or not.
        left_out: tests that were deselected.
        interrupted: why the run ended early, or is not over; empty where it came to its end.
    """
    ordered = tuple(sorted(records, key=lambda record: record.test))
    gaps = _gaps(machine, ordered, tuple(parts), left_out, interrupted)
    return Report(machine=machine, started=started, complete=not gaps, gaps=gaps, records=ordered)


def _gaps(
    machine: Machine, records: Sequence[Record], parts: Sequence[str], left_out: int, interrupted: str
) -> tuple[str, ...]:
    gaps = ["made-up records: not a result"] if machine.fake else []
    if machine.device != "cuda":
        gaps.append(f"a dry run on {machine.device}: it shows that the suite works, and nothing about a GPU")
    if interrupted:
        gaps.append(interrupted)
    failed = _count(records, "failed")
    skipped = _count(records, "skipped")
    if failed:
        gaps.append(f"{failed} of {len(records)} tests failed")
    if skipped:
        gaps.append(f"{skipped} of {len(records)} tests were skipped")
    if left_out:
        gaps.append(f"{left_out} tests were left out on the command line")
    missing = sorted(set(parts) - {record.part for record in records})
    if missing:
        gaps.append(f"these parts did not run: {', '.join(missing)}")
    if not records:
        gaps.append("no test ran")
    return tuple(gaps)


def _count(records: Sequence[Record], outcome: Outcome) -> int:
    return sum(record.outcome == outcome for record in records)


def joined(before: Report, machine: Machine, records: Sequence[Record]) -> tuple[Record, ...]:
    """The records of an earlier run, replaced where a test ran again and did not merely skip.

    Raises:
        Mismatch: it ran on another machine, with other versions or another commit.
    """
    old, new = msgspec.to_builtins(before.machine), msgspec.to_builtins(machine)
    apart = [f"{key} ({old[key]} then, {new[key]} now)" for key in new if old[key] != new[key]]
    if apart:
        raise Mismatch(f"the report is of another machine or state: {', '.join(apart)}")
    known = {record.test: record for record in before.records}
    for record in records:
        if record.outcome != "skipped" or known.get(record.test, record).outcome == "skipped":
            known[record.test] = record
    return tuple(known.values())


# --- Formats ---------------------------------------------------------------------------------------


def as_json(report: Report) -> str:
    return msgspec.json.format(msgspec.json.encode(report), indent=1).decode() + "\n"


def from_json(text: str | bytes) -> Report:
    """Raises ValueError: not such a report."""
    try:
        report = msgspec.json.decode(text, type=Report)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a hardware report: {error}") from None
    if report.schema != SCHEMA:
        raise ValueError(f"not a hardware report of this version: {report.schema!r}, not {SCHEMA!r}")
    return report


def as_markdown(report: Report) -> str:
    """A page for people: what it lacks, the machine, a line for each test, every number."""
    counts = ", ".join(f"{_count(report.records, name)} {name}" for name in reversed(VERDICTS))
    lines = [
        "# Hardware report",
        "",
        _standing(report),
        "",
        f"Tests: {counts}. Started {report.started}.",
        "",
    ]
    lines += [f"* {count} skipped: {_cell(reason)}" for reason, count in _skips(report.records).most_common()]
    lines += [
        "",
        "| machine | |",
        "| --- | --- |",
        *(f"| {k} | {_cell(v)} |" for k, v in _facts(report.machine)),
    ]
    for part, records in _by_part(report.records).items():
        lines += ["", f"## {part.replace('_', ' ')}", ""]
        lines += ["| test | outcome | s | why |", "| --- | --- | ---: | --- |"]
        lines += [
            f"| {_cell(record.test.partition('::')[2])} | {record.outcome} | {record.duration_s:.1f} "
            f"| {_cell(record.reason)} |"
            for record in records
        ]
        numbers = [each for record in records for each in record.measured]
        if numbers:
            lines += ["", "| measured | value | unit | note |", "| --- | ---: | --- | --- |"]
            lines += [f"| {' | '.join(map(_cell, _numbers(each)))} |" for each in numbers]
    return "\n".join(lines) + "\n"


def _standing(report: Report) -> str:
    if report.complete:
        return "**Complete**: every test of the suite ran here and passed."
    return "**Partial.** " + "; ".join(report.gaps) + "."


def _facts(machine: Machine) -> list[tuple[str, str]]:
    plain = {
        "GPUs": ", ".join(machine.gpus) or "none",
        "driver": machine.driver or "none",
        "CUDA of the driver": machine.cuda_of_driver or "-",
        "torch": machine.torch or "none",
        "CUDA of torch": machine.cuda_of_torch or "-",
        "Python": machine.python,
        "Linux": machine.linux,
        "processor": f"{machine.processor}, {machine.cores} cores, {machine.memory_gib} GiB",
        "commit": machine.commit + (" and changes" if machine.changed else ""),
        "device": machine.device,
    }
    return list(plain.items())


def _skips(records: Sequence[Record]) -> Counter[str]:
    """How many tests each lack costs."""
    return Counter(record.reason for record in records if record.outcome == "skipped")


def _by_part(records: Sequence[Record]) -> Mapping[str, list[Record]]:
    parts: dict[str, list[Record]] = {}
    for record in records:
        parts.setdefault(record.part, []).append(record)
    return parts


def _numbers(each: Measured) -> tuple[str, str, str, str]:
    return each.name, number(each.value), each.unit, each.note


def number(value: Value) -> str:
    """Four significant digits; words as they are."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else f"{value:.4g}"


def _cell(text: str) -> str:
    """One line of a table, whatever a program said."""
    return " / ".join(text.split("\n")).replace("|", "\\|").strip()[:300]
