"""Who held which device when in a simulated run, for its picture.

Rule: it sees the engine's events and commands, and has no part in the run. It keeps so many attempts, and
says where it stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cotenant.controller.domain import ENDED, ON_DEVICES, AnyCommand, JobId, StartAttempt, StopAttempt
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine
from cotenant.controller.timeline import AttemptTimes, DeviceRow, JobTimes, Timeline, timeline_of

ATTEMPTS_MAX: Final = 20_000


class Placements:
    """Observes the engine after each event."""

    def __init__(self, attempts_max: int = ATTEMPTS_MAX) -> None:
        self._attempts_max = attempts_max
        self._kept = 0
        self._now_s = 0.0
        self._submitted_s: dict[JobId, float] = {}
        self._ended_s: dict[JobId, float] = {}
        self._attempts: dict[JobId, list[AttemptTimes]] = {}
        self._open: dict[JobId, AttemptTimes] = {}
        self._devices: dict[str, DeviceRow] = {}

    def __call__(self, engine: Engine, event: ev.AnyEvent, commands: Sequence[AnyCommand]) -> None:
        if self._kept >= self._attempts_max:
            return
        self._now_s = now_s = engine.now_s
        match event:
            case ev.JobArrived():
                self._submitted_s[event.spec.job_id] = now_s
            case ev.FirstStepDone() if known := self._open.get(event.job_id):
                if known.first_step_s is None:
                    self._open[event.job_id] = known._replace(first_step_s=now_s)
            case ev.AttemptEnded():
                self._look(engine, event.job_id)
            case ev.HostLost():
                for job_id in list(self._open):
                    self._look(engine, job_id)
            case _:
                pass
        for command in commands:
            if isinstance(command, StartAttempt):
                self._note_start(engine, command)
            elif isinstance(command, StopAttempt):
                stopped = self._open.get(command.job_id)
                if stopped is not None and stopped.stop_requested_s is None:
                    self._open[command.job_id] = stopped._replace(stop_requested_s=now_s)

    def _note_start(self, engine: Engine, command: StartAttempt) -> None:
        known = self._open.get(command.job_id)
        if known is not None and known.attempt == command.attempt:
            return  # The gang's other hosts.
        if known is not None:
            self._close(command.job_id, known, preempted=False)
        if not self._devices:
            self._devices = {
                device.device_id: DeviceRow(device=device.device_id)
                for host in engine.hosts.values()
                for device in host.report.devices
            }
        self._kept += 1
        self._open[command.job_id] = AttemptTimes(
            attempt=command.attempt,
            devices=tuple(device for member in command.gang for device in member.devices),
            launched_s=self._now_s,
            first_step_s=None,
            stop_requested_s=None,
            ended_s=None,
            accumulation_steps=command.accumulation_steps,
            resumed_from_step=command.resume_step if command.attempt > 1 else None,
        )

    def _look(self, engine: Engine, job_id: JobId) -> None:
        """An attempt is over when none of its hosts has it any more."""
        known, job = self._open.get(job_id), engine.jobs.get(job_id)
        is_over = job is None or job.phase in ENDED
        if is_over:
            self._ended_s[job_id] = self._now_s
        if known is None or (
            job is not None and job.phase in ON_DEVICES and job.attempt.number == known.attempt
        ):
            return
        self._close(job_id, known, preempted=known.stop_requested_s is not None and not is_over)

    def _close(self, job_id: JobId, known: AttemptTimes, *, preempted: bool) -> None:
        self._open.pop(job_id)
        closed = known._replace(ended_s=self._now_s, preempted=preempted)
        self._attempts.setdefault(job_id, []).append(closed)

    def timeline(self, title: str, policy: str, subtitle: str = "") -> Timeline:
        jobs = [
            JobTimes(
                job=job_id,
                name=job_id,
                submitted_s=submitted_s,
                known_to_s=self._ended_s.get(job_id, self._now_s),
                has_ended=job_id in self._ended_s,
                attempts=[
                    *self._attempts.get(job_id, ()),
                    *([self._open[job_id]] if job_id in self._open else []),
                ],
            )
            for job_id, submitted_s in self._submitted_s.items()
        ]
        if self._kept >= self._attempts_max:
            subtitle = f"{subtitle} The first {self._attempts_max:,} attempts.".strip()
        return timeline_of(
            jobs, list(self._devices.values()), [(0.0, policy)], title=title, subtitle=subtitle
        )
