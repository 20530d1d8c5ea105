"""What the demo says at the end: `report.json` (schema `demo/1`), a table, and whether it kept its word.
Pure.

Rule: fields come from what the jobs did; a job that did not finish has null where it has no number.
"""

from __future__ import annotations

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
    """Of the same training without an interruption; null for jobs where the demo does not repeat it."""

    @property
    def finished(self) -> bool:
        return self.final_loss is not None and self.parameters_sha256 is not None


class DemoReport(msgspec.Struct, frozen=True, kw_only=True):
    """All jobs, in the order of their submission."""

    jobs: tuple[JobReport, ...]


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
_RIGHT: Final = frozenset(("accum.", "preempted", "waiting", "loading", "running", "final loss"))


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
    lines = [HEADINGS, *(cells(job) for job in report.jobs)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADINGS))]
    shown = []
    for line in lines:
        aligned = (
            cell.rjust(width) if heading in _RIGHT else cell.ljust(width)
            for cell, width, heading in zip(line, widths, HEADINGS, strict=True)
        )
        shown.append("  ".join(aligned).rstrip())
    return "\n".join(shown) + "\n"


def _short(sha256: str | None) -> str:
    return "none" if sha256 is None else sha256[:12]
