"""What the demo says at the end, from the controller's answers: `report.json` (schema `demo/1`), tables, and
whether it kept its word. Pure but for reading result files.

Rule: fields come from what the jobs did; a job that did not finish has null where it has no number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from cotenant.controller.cli.demo.others import OthersLoad
from cotenant.controller.domain import Phase
from cotenant.controller.present import screen
from cotenant.controller.present.tables import Column
from cotenant.controller.present.units import NONE
from cotenant.controller.wire import clients as wire

T = TypeVar("T", bound=msgspec.Struct)

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


CHECKS: Final[tuple[tuple[str, Callable[[JobReport], bool]], ...]] = (
    ("did not finish", lambda job: job.finished),
    (
        "was preempted and has no uninterrupted run to compare with",
        lambda job: job.preemptions == 0 or job.uninterrupted_sha256 is not None,
    ),
    (
        "resumed to other parameters ({mine}) than an uninterrupted run ({whole})",
        lambda job: job.uninterrupted_sha256 in (None, job.parameters_sha256),
    ),
)
"""What must hold of every job, each after what is said where it does not."""

SHOWN: Final[tuple[tuple[str, Callable[[DemoReport], bool]], ...]] = (
    ("no two jobs trained together: none would have ended sooner that way", lambda all: bool(all.shared)),
    (
        "no job was preempted, so no resume was shown",
        lambda all: any(job.preemptions for job in all.jobs),
    ),
)
"""What the jobs may happen not to do on a machine, each after what is said then."""


def failures(report: DemoReport) -> tuple[str, ...]:
    """Why the demo must not exit with 0; empty when every job finished and each resume was exact."""
    return tuple(
        f"job {job.job} "
        + said.format(mine=_short(job.parameters_sha256), whole=_short(job.uninterrupted_sha256))
        for said, holds in CHECKS
        for job in report.jobs
        if not holds(job)
    )


def _short(sha256: str | None) -> str:
    return "none" if sha256 is None else sha256[:12]


def not_shown(report: DemoReport) -> tuple[str, ...]:
    """What the jobs happened not to do on this machine, a sentence each."""
    return tuple(said for said, was_shown in SHOWN if not was_shown(report))


def _exact(job: JobReport) -> str:
    if job.uninterrupted_sha256 is None:
        return NONE
    return "yes" if job.uninterrupted_sha256 == job.parameters_sha256 else "NO"


def _seconds(seconds: float | None) -> str:
    return NONE if seconds is None else f"{seconds:.1f} s"


JOBS: Final = (
    Column("job", lambda job: job.job, colour=lambda job: "" if job.finished else "red"),
    Column("devices", lambda job: ", ".join(job.devices)),
    Column("co-tenant", lambda job: ", ".join(job.co_tenants)),
    Column("accum.", lambda job: f"s = {job.accumulation_steps}", right=True),
    Column("preempted", lambda job: str(job.preemptions), right=True),
    Column("waiting", lambda job: _seconds(job.wait_s), right=True),
    Column("loading", lambda job: _seconds(job.load_s), right=True),
    Column("running", lambda job: _seconds(job.run_s), right=True),
    Column("final loss", lambda job: "" if job.final_loss is None else f"{job.final_loss:.4f}", right=True),
    Column("exact resume", _exact),
)
SHARED: Final = (
    Column("job", lambda row: row.job),
    Column("beside", lambda row: " and ".join(row.beside)),
    Column("steps", lambda row: f"{row.steps:.0f}", right=True),
    Column("predicted", lambda row: _seconds(row.predicted_s), right=True),
    Column("measured", lambda row: _seconds(row.measured_s), right=True),
    Column("alone", lambda row: _seconds(row.alone_s), right=True),
    Column(
        "device-s won",
        lambda row: "" if row.won_device_s is None else f"{row.won_device_s:+.1f}",
        right=True,
    ),
)


def job_table(report: DemoReport) -> str:
    return screen.table(JOBS, report.jobs, None)


def what_sharing_brought(report: DemoReport) -> str:
    """Whether the policies kept their word: three times in a row, as in `show` and `report`, and promises."""
    if not report.shared:
        return ""
    lines = [
        "What sharing brought: three times for the same steps",
        screen.table(SHARED, report.shared, None),
    ]
    known = [each.won_device_s for each in report.shared if each.won_device_s is not None]
    if known:
        verb = "won" if sum(known) >= 0.0 else "lost"
        lines.append(f"in all {abs(sum(known)):.1f} device-seconds {verb} against taking turns")
    lines += [_slowdown(each, each.alone_s) for each in report.shared if each.alone_s]
    lines += [
        f"average completion of {each.job} and {each.beside}: promised {each.promised_s:.1f} s, took "
        f"{_seconds(each.took_without_load_s)}, and {_seconds(each.took_s)} with the load of {each.job}; one "
        f"after the other, {each.sequential_s:.1f} s expected"
        for each in report.promises
    ]
    if report.others is not None:
        lines.append(report.others.sentence())
    return "\n".join(lines) + "\n"


def _slowdown(row: BesideReport, alone_s: float) -> str:
    """How many times as long as alone it took."""
    predicted = "" if row.predicted_s is None else f", {row.predicted_s / alone_s:.2f} predicted"
    beside = " and ".join(row.beside)
    return f"{row.job} beside {beside}: {row.measured_s / alone_s:.2f} times as long as alone{predicted}"


def report_of(shown: Sequence[wire.Shown], results: Path, uninterrupted: dict[str, str]) -> DemoReport:
    """The report on the jobs, one entry per job, in order of submission."""
    names = {s.job.job_id: s.job.name for s in shown}
    return DemoReport(
        jobs=tuple(_job(s, names, results, uninterrupted) for s in shown),
        shared=tuple(
            _take(
                BesideReport,
                row,
                job=s.job.name,
                beside=tuple(names.get(other, other) for other in row.beside),
                steps=round(row.steps, 1),
            )
            for s in shown
            for row in s.job.shared
        ),
        promises=tuple(
            _take(
                PromiseReport,
                each,
                job=s.job.name,
                beside=names.get(each.beside, each.beside),
                load_s=round(s.job.load_s, 3),
            )
            for s in shown
            for each in s.job.promises
        ),
    )


def _job(s: wire.Shown, names: dict[Any, str], results: Path, uninterrupted: dict[str, str]) -> JobReport:
    result = read_result(results / f"{s.job.name}.json") if s.job.phase is Phase.DONE else {}
    loss, sha256 = result.get("final_loss"), result.get("parameters_sha256")
    devices = dict.fromkeys(device for attempt in s.attempts for device in attempt.devices)
    return _take(
        JobReport,
        s.job,
        job=s.job.name,
        devices=tuple(device.rpartition("/")[2] for device in devices),
        co_tenants=tuple(names.get(other, other) for other in s.job.co_tenants_ever),
        accumulation_steps=max((a.accumulation_steps for a in s.attempts), default=1),
        wait_s=round(s.job.wait_s, 3),
        load_s=round(s.job.load_s, 3),
        run_s=round(s.job.run_s, 3),
        pause_s=round(s.job.pause_s, 3),
        final_loss=loss if isinstance(loss, float) else None,
        parameters_sha256=sha256 if isinstance(sha256, str) else None,
        uninterrupted_sha256=uninterrupted.get(s.job.name),
    )


def _take(kind: type[T], view: object, **own: object) -> T:
    """A report of a view: what it has of its own, and all other fields as the view has them."""
    fields = {name: getattr(view, name) for name in kind.__struct_fields__ if name not in own}
    return kind(**own, **fields)


def read_result(path: Path) -> dict[str, object]:
    """What the training wrote about itself, or nothing."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return result if isinstance(result, dict) else {}
