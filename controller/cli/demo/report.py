"""What the demo says at the end: `report.json` (schema `demo/1`), a table, and whether it kept its word.
Pure.

Rule: fields come from what the jobs did; a job that did not finish has null where it has no number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from rich.table import Table

SCHEMA: Final = "demo/1"


class JobReport(msgspec.Struct, frozen=True, kw_only=True):
    """One job over all its attempts. Field for field an entry of `jobs` in `report.json`."""

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
    """With their loads, which the promised time leaves out."""
    sequential_s: float
    """Expected if they ran one after the other."""


class DemoReport(msgspec.Struct, frozen=True, kw_only=True):
    """All jobs, in the order of their submission."""

    jobs: tuple[JobReport, ...]
    shared: tuple[BesideReport, ...] = ()
    promises: tuple[PromiseReport, ...] = ()


def to_json(report: DemoReport) -> bytes:
    """The content of `report.json`."""
    content = {"schema": SCHEMA, **msgspec.to_builtins(report)}
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"


def failures(report: DemoReport) -> tuple[str, ...]:
    """Why the demo must not exit with 0; empty when every job finished and the resume was exact."""
    found = [f"job {each.job} did not finish" for each in report.jobs if not each.finished]
    preempted = [each for each in report.jobs if each.preemptions > 0]
    if not preempted:
        found.append("no job was preempted, so no resume was shown")
    for each in preempted:
        if each.uninterrupted_sha256 is None:
            found.append(f"job {each.job} was preempted and has no uninterrupted run to compare with")
        elif each.uninterrupted_sha256 != each.parameters_sha256:
            found.append(
                f"job {each.job} resumed to other parameters ({_short(each.parameters_sha256)}) than an "
                f"uninterrupted run ({_short(each.uninterrupted_sha256)})"
            )
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
    """For a terminal."""
    from rich.table import Table

    table = Table(header_style="bold")
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading in _RIGHT else "left")
    for job in report.jobs:
        style = "" if job.finished else "red"
        table.add_row(*cells(job), style=style)
    return table


def plain_table(report: DemoReport) -> str:
    """For a file or a pipe."""
    return aligned([HEADINGS, *(cells(job) for job in report.jobs)])


SHARED_HEADINGS: Final = ("job", "beside", "steps", "predicted", "measured", "alone", "device-s won")


def what_sharing_brought(report: DemoReport) -> str:
    """Whether the policies kept their word, in the columns of `show` and `report`."""
    if not report.shared:
        return "no two jobs trained together\n"
    rows = [
        (
            each.job,
            " and ".join(each.beside),
            f"{each.steps:.0f}",
            _slowed(each.predicted_s, each),
            _slowed(each.measured_s, each),
            _seconds(each.alone_s),
            "-" if each.won_device_s is None else f"{each.won_device_s:+.1f}",
        )
        for each in report.shared
    ]
    known = [each.won_device_s for each in report.shared if each.won_device_s is not None]
    lines = ["What sharing brought: three times for the same steps", aligned([SHARED_HEADINGS, *rows])]
    if known:
        verb = "won" if sum(known) >= 0.0 else "lost"
        lines.append(f"in all {abs(sum(known)):.1f} device-seconds {verb} against taking turns\n")
    lines += [
        f"average completion of {each.job} and {each.beside}: promised {each.promised_s:.1f} s, took "
        f"{_seconds(each.took_s)} with their loads; one after the other, {each.sequential_s:.1f} s expected\n"
        for each in report.promises
    ]
    return lines[0] + "\n" + "".join(lines[1:])


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f} s"


def _slowed(seconds: float | None, row: BesideReport) -> str:
    if seconds is None or not row.alone_s:
        return _seconds(seconds)
    return f"{seconds:.1f} s ({seconds / row.alone_s:.2f}x)"


def aligned(rows: Sequence[Sequence[str]]) -> str:
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
