"""Microsoft's Philly: `cluster_job_log` of msr-fiddle/philly-traces (Jeon et al., ATC '19), JSON.

Rule: a job's duration is the sum of its attempts, for Philly retried on its own; its GPUs are those of its
last attempt. A job whose last attempt has no end was still running when the log was taken.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from cotenant.controller.sim.traces.drafting import CLOCK_TIME, Draft, clock_s, finish, from_first
from cotenant.controller.sim.traces.problems import TraceProblem, shown
from cotenant.controller.sim.traces.trace import Labels, Trace

SOURCE = "Microsoft Philly 2017 (Jeon et al., ATC '19)"
NEVER_STARTED = "never started"


class _Job(NamedTuple):
    job_id: str
    user: str
    vc: str
    state: str
    submit_s: float
    duration_s: float
    gpus: float


def read_philly(text: str, *, name: str) -> Trace:
    """Raises TraceProblem where the text is no Philly log, or no job is left."""
    try:
        entries = json.loads(text)
    except ValueError as error:
        line = getattr(error, "lineno", None)
        raise TraceProblem(f"is not JSON: {error}", file=name, line=line) from None
    except RecursionError:
        raise TraceProblem("is not a list of jobs: it is nested too deeply", file=name) from None
    if not isinstance(entries, list):
        raise TraceProblem("is not a list of jobs", file=name)
    jobs = [_job(entry, name, number) for number, entry in enumerate(entries, 1)]
    started = [number for number, job in enumerate(jobs) if job.gpus > 0.0]
    excluded = {NEVER_STARTED: len(jobs) - len(started)} if len(started) < len(jobs) else {}
    submit_s = from_first(np.array([job.submit_s for job in jobs]))
    kept = [jobs[number] for number in started]
    return finish(
        Draft(
            name=name,
            source=SOURCE,
            licence="CC-BY-4.0",
            lines=np.array(started, np.int64) + 1,
            submit_s=submit_s[started] if started else np.empty(0),
            duration_s=np.array([job.duration_s for job in kept]),
            gpus=np.array([job.gpus for job in kept]),
            job_ids=_unique([job.job_id for job in kept], name),
            user=Labels.of([job.user for job in kept]),
            vc=Labels.of([job.vc for job in kept]),
            state=Labels.of([job.state for job in kept]),
            excluded=excluded,
            notes=[],
        )
    )


def _job(entry: object, file: str, number: int) -> _Job:
    """One entry of the list; `number` counts from 1 and stands for the line in messages."""
    try:
        if not isinstance(entry, dict):
            raise ValueError("it is no object")
        attempts = entry.get("attempts")
        if not isinstance(attempts, list) or not all(isinstance(each, dict) for each in attempts):
            raise ValueError("attempts is no list of attempts")
        duration_s, gpus = _execution(attempts)
        return _Job(
            job_id=_text(entry, "jobid"),
            user=_text(entry, "user"),
            vc=_text(entry, "vc"),
            state=_text(entry, "status"),
            submit_s=_time(entry, "submitted_time"),
            duration_s=duration_s,
            gpus=gpus,
        )
    except ValueError as error:
        raise TraceProblem(f"job {number} of the list: {error}", file=file) from None


def _execution(attempts: list[dict[str, Any]]) -> tuple[float, float]:
    """Seconds over all attempts (NaN if the last has no end), and the GPUs of the last that names some."""
    duration_s, gpus = 0.0, 0.0
    for attempt in attempts:
        detail = attempt.get("detail") or []
        if not isinstance(detail, list) or not all(isinstance(host, dict) for host in detail):
            raise ValueError("an attempt's detail is no list of hosts")
        devices = [host.get("gpus") or [] for host in detail]
        if not all(isinstance(each, list) for each in devices):
            raise ValueError("a host's gpus is no list")
        gpus = float(sum(map(len, devices))) or gpus
        started_s, ended_s = _time(attempt, "start_time"), _time(attempt, "end_time")
        lasted_s = ended_s - started_s
        last = attempt is attempts[-1]
        duration_s += lasted_s if last or not math.isnan(lasted_s) else 0.0
    return duration_s, gpus


def _text(entry: Mapping[str, Any], key: str) -> str:
    value = entry.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{key} is no text")
    return value


def _time(entry: Mapping[str, Any], key: str) -> float:
    text = _text(entry, key)
    try:
        return clock_s(text)
    except (ValueError, OverflowError):
        raise ValueError(f"{key} {shown(text)} is not {CLOCK_TIME}") from None


def _unique(ids: list[str], file: str) -> tuple[str, ...]:
    if not all(ids):
        return ()
    if len(set(ids)) != len(ids):
        twice, _ = Counter(ids).most_common(1)[0]
        raise TraceProblem(f"jobid {shown(twice)} is there twice", file=file)
    return tuple(ids)
