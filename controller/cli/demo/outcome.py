"""From the controller's answers to the demo's report and picture. Pure but for reading result files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from cotenant.controller.cli.demo.plan import MeasuredJob
from cotenant.controller.cli.demo.report import BesideReport, DemoReport, JobReport, PromiseReport
from cotenant.controller.cli.demo.timeline import (
    AttemptSpan,
    DeviceRow,
    JobName,
    Phase,
    PolicyChange,
    Preemption,
    Segment,
    Timeline,
    WaitSpan,
)
from cotenant.controller.wire import AttemptView, NodeView, Shown, wall_s

SHORTEST_WAIT_S = 0.2


def job_reports(
    shown: Sequence[Shown], measured: dict[str, MeasuredJob], results: Path, uninterrupted: dict[str, str]
) -> DemoReport:
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
    start_s = min(s.job.submitted_s for s in shown)
    attempts = [(s, attempt) for s in shown for attempt in s.attempts]
    return Timeline(
        title="cotenant demo",
        subtitle=subtitle,
        devices=tuple(
            DeviceRow(device=d.device_id, about=f"{len(d.cores)} core, {d.memory_mib} MiB declared")
            for node in nodes
            for d in node.devices
        ),
        jobs=tuple(JobName(job=s.job.name, name=s.job.name) for s in shown),
        segments=tuple(segment for s, attempt in attempts for segment in _segments(s, attempt, start_s)),
        attempts=tuple(
            AttemptSpan(
                job=s.job.name,
                attempt=attempt.attempt,
                accumulation_steps=attempt.accumulation_steps,
                resumed_from_step=attempt.start_step if attempt.attempt > 1 else None,
            )
            for s, attempt in attempts
        ),
        waits=tuple(wait for s in shown for wait in _waits(s, start_s)),
        preemptions=tuple(
            Preemption(
                at_s=_asked_s(s, attempt) - start_s,
                device=attempt.devices[0],
                victim=s.job.name,
                newcomer=_newcomer(shown, attempt.devices[0], _end_s(s, attempt)),
            )
            for s, attempt in attempts
            if attempt.outcome == "preempted"
        ),
        policies=tuple(PolicyChange(at_s=max(0.0, at_s - start_s), policy=name) for at_s, name in policies),
    )


def _end_s(s: Shown, attempt: AttemptView) -> float:
    return attempt.ended_s if attempt.ended_s is not None else wall_s(s.now)


def _asked_s(s: Shown, attempt: AttemptView) -> float:
    """When it was asked to leave, or its end."""
    return attempt.stop_requested_s if attempt.stop_requested_s is not None else _end_s(s, attempt)


def _segments(s: Shown, attempt: AttemptView, start_s: float) -> Iterator[Segment]:
    """What the attempt did on each of its devices."""
    end_s, asked_s = _end_s(s, attempt), _asked_s(s, attempt)
    trained_s = attempt.first_step_s if attempt.first_step_s is not None else end_s
    spans: tuple[tuple[Phase, float, float], ...] = (
        ("loading", attempt.launched_s, min(trained_s, asked_s)),
        ("running", trained_s, asked_s),
        ("checkpointing", asked_s, end_s),
    )
    for device in attempt.devices:
        for phase, from_s, to_s in spans:
            if to_s > from_s:
                yield Segment(
                    job=s.job.name,
                    attempt=attempt.attempt,
                    device=device,
                    phase=phase,
                    start_s=from_s - start_s,
                    end_s=to_s - start_s,
                )


def _waits(s: Shown, start_s: float) -> Iterator[WaitSpan]:
    """The times before and between its attempts that are long enough to see."""
    waiting_s = s.job.submitted_s
    for attempt in s.attempts:
        if attempt.launched_s - waiting_s > SHORTEST_WAIT_S:
            yield WaitSpan(job=s.job.name, start_s=waiting_s - start_s, end_s=attempt.launched_s - start_s)
        waiting_s = _end_s(s, attempt)


def _newcomer(shown: Sequence[Shown], device: str, at_s: float) -> str:
    """The job that started on the device when the victim had left."""
    after = [
        (attempt.launched_s, s.job.name)
        for s in shown
        for attempt in s.attempts
        if device in attempt.devices and attempt.launched_s >= at_s - 1e-6
    ]
    return min(after)[1] if after else "?"
