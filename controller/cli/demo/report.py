"""What the demo says at the end, from the controller's answers: `report.json` (schema `demo/1`), a table, a
picture, and whether it kept its word. Pure but for reading result files.

Rule: fields come from what the jobs did; a job that did not finish has null where it has no number.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from cotenant.controller.cli.demo.others import OthersLoad
from cotenant.controller.timeline import DeviceRow, JobTimes, Timeline, attempt_times
from cotenant.controller.timeline import timeline_of as drawn_of
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import wall_s

if TYPE_CHECKING:
    from rich.table import Table

SCHEMA: Final = "demo/1"


class JobReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of one job over all its attempts. Field for field an entry of `jobs` in `report.json`."""

    job: str
    devices: tuple[str, ...]
    """Every device it held, in the order in which it got them."""
    co_tenants: tuple[str, ...] = ()
    """Every job it shared a device with."""
    accumulation_steps: int = 1
    """The largest of its attempts."""
    preemptions: int = 0
    wait_s: float = 0.0
    load_s: float = 0.0
    run_s: float = 0.0
    pause_s: float = 0.0
    """Saving, from the request until the devices were free."""
    final_loss: float | None = None
    parameters_sha256: str | None = None
    uninterrupted_sha256: str | None = None
    """That of the same training without interruption; null for jobs whose training is not repeated."""

    @property
    def finished(self) -> bool:
        return self.final_loss is not None and self.parameters_sha256 is not None


class BesideReport(msgspec.Struct, frozen=True, kw_only=True):
    """The steps that a job did beside others: three times for the same work."""

    job: str
    beside: tuple[str, ...]
    steps: float
    predicted_s: float | None
    """As predicted when they were placed together."""
    measured_s: float
    alone_s: float | None
    """With the whole batch and nobody beside it."""
    won_device_s: float | None
    """Its part: its work alone minus what it took of its devices."""


class PromiseReport(msgspec.Struct, frozen=True, kw_only=True):
    """The average completion that a policy expected of a job beside another, and the actual one."""

    job: str
    beside: str
    promised_s: float
    took_s: float | None
    """With the load of the one that came later, which the promised time leaves out."""
    load_s: float
    """That load; half of it is in the average."""
    sequential_s: float
    """Expected if they ran one after the other."""

    @property
    def took_without_load_s(self) -> float | None:
        return None if self.took_s is None else self.took_s - self.load_s / 2


class DemoReport(msgspec.Struct, frozen=True, kw_only=True):
    """All jobs, in the order of their submission."""

    jobs: tuple[JobReport, ...]
    shared: tuple[BesideReport, ...] = ()
    promises: tuple[PromiseReport, ...] = ()
    others: OthersLoad | None = None
    """How busy other programs kept the cores."""
    left_out: tuple[str, ...] = ()
    """What this machine could not show, a sentence each."""


def to_json(report: DemoReport) -> bytes:
    """The content of `report.json`."""
    content = {"schema": SCHEMA, **msgspec.to_builtins(report)}
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"


def failures(report: DemoReport) -> tuple[str, ...]:
    """Why the demo must not exit with 0; empty when every job finished and each resume was exact."""
    found = [f"job {each.job} did not finish" for each in report.jobs if not each.finished]
    for each in report.jobs:
        if each.preemptions == 0:
            continue
        if each.uninterrupted_sha256 is None:
            found.append(f"job {each.job} was preempted and has no uninterrupted run to compare with")
        elif each.uninterrupted_sha256 != each.parameters_sha256:
            found.append(
                f"job {each.job} resumed to other parameters ({_short(each.parameters_sha256)}) than an "
                f"uninterrupted run ({_short(each.uninterrupted_sha256)})"
            )
    return tuple(found)


def not_shown(report: DemoReport) -> tuple[str, ...]:
    """What the jobs happened not to do on this machine, a sentence each."""
    found = []
    if not report.shared:
        found.append("no two jobs trained together: none would have ended sooner that way")
    if not any(each.preemptions for each in report.jobs):
        found.append("no job was preempted, so no resume was shown")
    return tuple(found)


HEADINGS: Final = (
    "job",
    "devices",
    "co-tenant",
    "accum.",
    "preempted",
    "waiting",
    "loading",
    "running",
    "final loss",
    "exact resume",
)
_RIGHT: Final = frozenset(
    (
        *("accum.", "preempted", "waiting", "loading", "running", "final loss"),
        *("steps", "predicted", "measured", "alone", "device-s won"),
    )
)


def cells(job: JobReport) -> tuple[str, ...]:
    """A job's row under `HEADINGS`."""
    exact = "-"
    if job.uninterrupted_sha256 is not None:
        exact = "yes" if job.uninterrupted_sha256 == job.parameters_sha256 else "NO"
    return (
        job.job,
        ", ".join(job.devices) or "-",
        ", ".join(job.co_tenants) or "-",
        f"s = {job.accumulation_steps}",
        str(job.preemptions),
        f"{job.wait_s:.1f} s",
        f"{job.load_s:.1f} s",
        f"{job.run_s:.1f} s",
        "-" if job.final_loss is None else f"{job.final_loss:.4f}",
        exact,
    )


def rich_table(report: DemoReport) -> Table:
    """The table of the report's jobs for a terminal."""
    from rich.table import Table

    table = Table(header_style="bold")
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading in _RIGHT else "left")
    for job in report.jobs:
        style = "" if job.finished else "red"
        table.add_row(*cells(job), style=style)
    return table


def plain_table(report: DemoReport) -> str:
    """The table of the report's jobs for a file or a pipe."""
    return aligned_table([HEADINGS, *(cells(job) for job in report.jobs)])


SHARED_HEADINGS: Final = ("job", "beside", "steps", "predicted", "measured", "alone", "device-s won")


def what_sharing_brought(report: DemoReport) -> str:
    """Whether the policies kept their word, in the columns of `show` and `report`."""
    if not report.shared:
        return ""
    rows = [
        (
            each.job,
            " and ".join(each.beside),
            f"{each.steps:.0f}",
            _seconds(each.predicted_s),
            _seconds(each.measured_s),
            _seconds(each.alone_s),
            "-" if each.won_device_s is None else f"{each.won_device_s:+.1f}",
        )
        for each in report.shared
    ]
    known = [each.won_device_s for each in report.shared if each.won_device_s is not None]
    lines = ["What sharing brought: three times for the same steps", aligned_table([SHARED_HEADINGS, *rows])]
    if known:
        verb = "won" if sum(known) >= 0.0 else "lost"
        lines.append(f"in all {abs(sum(known)):.1f} device-seconds {verb} against taking turns\n")
    lines += map(_slowdown_line, report.shared)
    lines += [
        f"average completion of {each.job} and {each.beside}: promised {each.promised_s:.1f} s, took "
        f"{_seconds(each.took_without_load_s)}, and {_seconds(each.took_s)} with the load of {each.job}; one "
        f"after the other, {each.sequential_s:.1f} s expected\n"
        for each in report.promises
    ]
    if report.others is not None:
        lines.append(f"{report.others.sentence()}\n")
    return lines[0] + "\n" + "".join(lines[1:])


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f} s"


def _slowdown_line(row: BesideReport) -> str:
    """How many times as long as alone it took."""
    if not row.alone_s:
        return ""
    predicted = "" if row.predicted_s is None else f", {row.predicted_s / row.alone_s:.2f} predicted"
    ratio = row.measured_s / row.alone_s
    return f"{row.job} beside {' and '.join(row.beside)}: {ratio:.2f} times as long as alone{predicted}\n"


def aligned_table(rows: Sequence[Sequence[str]]) -> str:
    """A table of words, the headings first."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        shown = (
            cell.rjust(width) if heading in _RIGHT else cell.ljust(width)
            for cell, width, heading in zip(row, widths, rows[0], strict=True)
        )
        lines.append("  ".join(shown).rstrip())
    return "\n".join(lines) + "\n"


def _short(sha256: str | None) -> str:
    return "none" if sha256 is None else sha256[:12]


def job_reports(shown: Sequence[wire.Shown], results: Path, uninterrupted: dict[str, str]) -> DemoReport:
    """The report on the jobs, one entry per job, in order of submission."""
    names = {s.job.job_id: s.job.name for s in shown}
    reports = []
    for s in shown:
        result = read_result(results / f"{s.job.name}.json")
        loss, sha256 = result.get("final_loss"), result.get("parameters_sha256")
        devices = dict.fromkeys(device for attempt in s.attempts for device in attempt.devices)
        reports.append(
            JobReport(
                job=s.job.name,
                devices=tuple(device.rpartition("/")[2] for device in devices),
                co_tenants=tuple(names.get(other, other) for other in s.job.co_tenants_ever),
                accumulation_steps=max((a.accumulation_steps for a in s.attempts), default=1),
                preemptions=s.job.preemptions,
                wait_s=round(s.job.wait_s, 3),
                load_s=round(s.job.load_s, 3),
                run_s=round(s.job.run_s, 3),
                pause_s=round(s.job.pause_s, 3),
                final_loss=loss if isinstance(loss, float) and s.job.phase == "done" else None,
                parameters_sha256=sha256 if isinstance(sha256, str) and s.job.phase == "done" else None,
                uninterrupted_sha256=uninterrupted.get(s.job.name),
            )
        )
    return DemoReport(
        jobs=tuple(reports),
        shared=tuple(
            BesideReport(
                job=s.job.name,
                beside=tuple(names.get(other, other) for other in row.beside),
                steps=round(row.steps, 1),
                predicted_s=row.predicted_s,
                measured_s=row.measured_s,
                alone_s=row.alone_s,
                won_device_s=row.won_device_s,
            )
            for s in shown
            for row in s.job.shared
        ),
        promises=tuple(
            PromiseReport(
                job=s.job.name,
                beside=names.get(each.beside, each.beside),
                promised_s=each.promised_s,
                took_s=each.took_s,
                load_s=round(s.job.load_s, 3),
                sequential_s=each.sequential_s,
            )
            for s in shown
            for each in s.job.promises
        ),
    )


def read_result(path: Path) -> dict[str, object]:
    """What the training wrote about itself, or nothing."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return result if isinstance(result, dict) else {}


def timeline_of(
    shown: Sequence[wire.Shown],
    nodes: Sequence[wire.NodeView],
    policies: Sequence[tuple[float, str]],
    subtitle: str,
) -> Timeline:
    """The content of the timeline picture; time 0 is the first submission."""
    jobs = [
        JobTimes(
            job=s.job.name,
            name=s.job.name,
            submitted_s=s.job.submitted_s,
            known_to_s=max((a.ended_s for a in s.attempts if a.ended_s is not None), default=wall_s(s.now)),
            has_ended=True,
            attempts=attempt_times(s.attempts),
        )
        for s in shown
    ]
    devices = [
        DeviceRow(device=d.device_id, about=f"{len(d.cores)} core, {d.memory_mib} MiB declared")
        for node in nodes
        for d in node.devices
    ]
    return drawn_of(jobs, devices, policies, title="cotenant demo", subtitle=subtitle)
