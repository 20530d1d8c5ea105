"""From the controller's answers to the demo's report and picture. Pure but for reading result files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from cotenant.controller.cli.demo.report import BesideReport, DemoReport, JobReport, PromiseReport
from cotenant.controller.timeline import DeviceRow, JobTimes, Timeline, attempt_times
from cotenant.controller.timeline import timeline_of as drawn_of
from cotenant.controller.wire import NodeView, Shown, wall_s


def job_reports(shown: Sequence[Shown], results: Path, uninterrupted: dict[str, str]) -> DemoReport:
    """One entry per job, in order of submission."""
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
    shown: Sequence[Shown], nodes: Sequence[NodeView], policies: Sequence[tuple[float, str]], subtitle: str
) -> Timeline:
    """The picture's content; time 0 is the first submission."""
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
