"""The engine under a virtual clock: jobs with true durations on hosts that always do as they are told.

Rule: this is the loop that a simulator is, at its smallest. A job trains one step a second alone and slower
beside others; it takes time to load and to save; what the policy believes is only what the events say.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from cotenant.controller.domain import (
    ENDED,
    AnyCommand,
    AttemptNo,
    Capabilities,
    ExitVerdict,
    HostId,
    HostReport,
    JobId,
    JobSpec,
    StartAttempt,
    StopAttempt,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine
from tests.controller.watching import Watcher

Key = tuple[JobId, AttemptNo]


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """What a job is; the engine never sees it."""

    train_s: float
    """Alone, in all."""
    load_s: float = 2.0
    save_s: float = 3.0
    resumable: bool = True
    slowed: float = 1.5
    """Beside a co-tenant."""


class Run(msgspec.Struct, kw_only=True):
    """One attempt as it truly goes."""

    start: StartAttempt
    hosts: set[HostId]
    begun: set[HostId] = set()
    done_s: float
    since_s: float = 0.0
    pace: float = 0.0
    """Seconds of training per second; 0 while loading or saving."""
    version: int = 0


class Driver:
    def __init__(self, engine: Engine, hosts: Sequence[HostReport]) -> None:
        self.engine = engine
        self.watcher = Watcher(engine, within_s=1e-6)
        self.now_s = 0.0
        self.truths: dict[JobId, Truth] = {}
        self.saved_s: dict[JobId, float] = {}
        self.runs: dict[Key, Run] = {}
        self.trained_s: dict[JobId, float] = {}
        """All training that was ever done, lost work included."""
        self._upcoming: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        for each in hosts:
            self.tell(ev.HostJoined(report=each))

    # --- Time --------------------------------------------------------------------------------------

    def submit(self, spec: JobSpec, truth: Truth, at_s: float) -> None:
        self.truths[spec.job_id] = truth
        self._at(at_s, lambda: self.tell(ev.JobArrived(spec=spec)))

    def run(self, until_s: float = 1e9) -> Driver:
        """Until nothing more happens, or all jobs have ended."""
        while len(self.engine.jobs) < len(self.truths) or not self._is_over():
            alarm_s = self.engine.next_alarm_s
            if not self._upcoming and alarm_s is None:
                break
            next_s = self._upcoming[0][0] if self._upcoming else until_s
            if alarm_s is not None and alarm_s <= next_s:
                self.now_s = max(self.now_s, alarm_s)
                self.tell(ev.AlarmRang())
                continue
            if next_s > until_s or not self._upcoming:
                break
            at_s, _, do = heapq.heappop(self._upcoming)
            self.now_s = max(self.now_s, at_s)
            do()
        return self

    def _is_over(self) -> bool:
        return all(job.phase in ENDED for job in self.engine.jobs.values())

    def _at(self, at_s: float, do: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._upcoming, (at_s, self._count, do))

    def tell(self, event: ev.AnyEvent) -> None:
        commands = self.engine.handle(event, self.now_s)
        self.watcher.saw(event, commands, explain=self._count % 7 == 0)
        for command in commands:
            self._obey(command)
        self._repace()

    # --- Hosts -------------------------------------------------------------------------------------

    def _obey(self, command: AnyCommand) -> None:
        if isinstance(command, StartAttempt):
            self._start(command)
        elif isinstance(command, StopAttempt):
            self._stop(command)

    def _start(self, command: StartAttempt) -> None:
        key = (command.job_id, command.attempt)
        hosts = {member.host_id for member in command.gang}
        run = self.runs.setdefault(
            key, Run(start=command, hosts=hosts, done_s=self.saved_s.get(command.job_id, 0.0))
        )
        run.begun.add(command.host_id)
        if run.begun == run.hosts:
            self._at(self.now_s + self.truths[command.job_id].load_s, lambda: self._loaded(key, run.version))

    def _loaded(self, key: Key, version: int) -> None:
        run = self.runs.get(key)
        if run is None or run.version != version:
            return
        truth = self.truths[key[0]]
        for host_id in sorted(run.hosts):
            of = self._of(key, host_id)
            self.tell(
                ev.CapabilitiesSeen(
                    **of,
                    resumable=truth.resumable,
                    capabilities=Capabilities(accumulates=True),
                    step=int(run.done_s),
                )
            )
            self.tell(ev.FirstStepDone(**of, step=int(run.done_s) + 1))
        run.since_s, run.pace = self.now_s, 1e-9
        self._repace()

    def _of(self, key: Key, host_id: HostId) -> dict[str, Any]:
        return {"job_id": key[0], "attempt": key[1], "host_id": host_id}

    def _stop(self, command: StopAttempt) -> None:
        key = (command.job_id, command.attempt)
        run = self.runs.get(key)
        if run is None or command.host_id != min(run.hosts):
            return
        self._train(run)
        trains, run.pace = run.pace > 0, 0.0
        run.version += 1
        wait_s = self.truths[key[0]].save_s if command.save and trains else 0.1
        self._at(self.now_s + wait_s, lambda: self._stopped(key, saved=command.save and trains))

    def _stopped(self, key: Key, *, saved: bool) -> None:
        run = self.runs.pop(key)
        step = int(run.done_s)
        if saved:
            self.saved_s[key[0]] = step
            first = self._of(key, min(run.hosts))
            self.tell(ev.CheckpointDurable(**first, step=max(1, step)))
        for host_id in sorted(run.hosts):
            self.tell(
                ev.AttemptEnded(**self._of(key, host_id), verdict=ExitVerdict(outcome="stopped"), step=step)
            )

    # --- Training ----------------------------------------------------------------------------------

    def _train(self, run: Run) -> None:
        """Up to now, at the pace since the last change."""
        job_id = run.start.job_id
        trained_s = (self.now_s - run.since_s) * run.pace
        run.done_s += trained_s
        self.trained_s[job_id] = self.trained_s.get(job_id, 0.0) + trained_s
        run.since_s = self.now_s

    def _repace(self) -> None:
        """Tenants came or went."""
        for key, run in list(self.runs.items()):
            if run.pace == 0.0:
                continue
            truth = self.truths[key[0]]
            shared = bool(self.engine.partners(key[0]))
            pace = 1.0 / ((truth.slowed if shared else 1.0) * run.start.accumulation_steps**0.1)
            if pace != run.pace:
                self._train(run)
                run.pace = pace
                run.version += 1
                left_s = max(0.0, truth.train_s - run.done_s) / pace
                version = run.version
                self._at(self.now_s + left_s, lambda key=key, version=version: self._finished(key, version))  # type: ignore[misc]

    def _finished(self, key: Key, version: int) -> None:
        run = self.runs.get(key)
        if run is None or run.version != version:
            return
        self._train(run)
        del self.runs[key]
        for host_id in sorted(run.hosts):
            self.tell(
                ev.AttemptEnded(
                    **self._of(key, host_id), verdict=ExitVerdict(outcome="finished", exit_code=0)
                )
            )
