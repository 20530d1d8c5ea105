"""What must be true after every event, whatever happened, seen from outside the engine.

Rule: nothing here asks the ledger's own bookkeeping; it is kept again from events and commands.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cache, lru_cache

from cotenant.controller.domain import (
    ENDED,
    LEAVING,
    ON_DEVICES,
    AnyCommand,
    AttemptNo,
    DeviceId,
    HostId,
    JobId,
    Phase,
    Reason,
    StartAttempt,
    StopAttempt,
    reasons,
    render,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine
from cotenant.controller.planning import Plan


@cache
def operands_of(code: str) -> int:
    templates = reasons.TEMPLATES[code] + reasons.FOR_OTHERS.get(code, "")
    return max((int(n) + 1 for n in re.findall(r"\{(\d+)(?::\w+)?\}", templates)), default=0)


@lru_cache(10_000)
def check_reason(reason: Reason) -> None:
    """A known code, as many operands as its template has, and a sentence comes out."""
    assert reason.code in reasons.TEMPLATES, reason
    assert len(reason.operands) == operands_of(reason.code), (reason, reasons.TEMPLATES[reason.code])
    text = render(reason)
    assert text
    assert "{" not in text
    assert "  " not in text, text


class Watcher:
    """Follows one engine from its first event on."""

    def __init__(self, engine: Engine, *, within_s: float = 0.0) -> None:
        self.engine = engine
        self._within_s = within_s
        """How far sums of times may be off: nothing where all times are whole numbers."""
        self._running: dict[tuple[JobId, AttemptNo], set[HostId]] = {}
        """Hosts of each attempt that have been told to start it and have not said that it is gone."""
        self._last: dict[JobId, AttemptNo] = defaultdict(lambda: AttemptNo(0))
        self._last_command = 0
        self._over: set[JobId] = set()
        """Jobs that have ended and were looked at since."""

    def saw(self, event: ev.AnyEvent, commands: Iterable[AnyCommand], *, explain: bool = True) -> None:
        self._apply(event)
        for command in commands:
            assert command.command_id > self._last_command
            self._last_command = command.command_id
            if isinstance(command, StartAttempt):
                self._started(command)
            elif isinstance(command, StopAttempt):
                check_reason(command.reason)
        self._check_devices()
        for job in self.engine.jobs.values():
            if job.job_id not in self._over:
                self._check_job(job.job_id, explain)
        for refusal in self.engine.refusals:
            check_reason(refusal)

    def _apply(self, event: ev.AnyEvent) -> None:
        if isinstance(event, ev.AttemptEnded):
            self._running.get((event.job_id, event.attempt), set()).discard(event.host_id)
        elif isinstance(event, ev.HostLost):
            for hosts in self._running.values():
                hosts.discard(event.host_id)

    def _started(self, command: StartAttempt) -> None:
        job = self.engine.jobs[command.job_id]
        assert command.attempt == job.attempt.number
        assert job.placement is not None
        gang = [d for member in command.gang for d in member.devices]
        assert tuple(gang) == job.placement.devices, "a command for devices that are not the job's"
        assert job.spec.gpus_min <= len(gang) <= job.spec.gpus_max
        assert command.host_id in {member.host_id for member in command.gang}
        assert [m.first_rank for m in command.gang] == [
            sum(len(m.devices) for m in command.gang[:i]) for i in range(len(command.gang))
        ]
        if (
            self.engine.current.name != "hostile"
        ):  # It reserves, and what it was allowed then may be wrong now.
            view = self.engine.ledger
            for partner in self.engine.partners(command.job_id):
                assert not (job.counts.crowded or self.engine.jobs[partner].counts.crowded), (
                    "it ran out of memory like that"
                )
                known = view.pairs.interference(job, self.engine.jobs[partner])
                assert not known.crowded, "such a pair has been"
                assert not known.faulted, "a GPU fault has parted such a pair, and not long ago"
        newest = self._last[command.job_id]
        assert command.attempt >= newest, "an attempt number was used twice"
        for (job_id, attempt), hosts in self._running.items():
            if job_id == command.job_id and attempt != command.attempt:
                assert not hosts, f"attempt {command.attempt} of {job_id} starts, {attempt} is on {hosts}"
        self._last[command.job_id] = command.attempt
        self._running.setdefault((command.job_id, command.attempt), set()).add(command.host_id)
        self._check_host(command.host_id)

    def _check_host(self, host_id: HostId) -> None:
        """Those who have processes there, or had and leave, ask for no more than it has."""
        report = self.engine.hosts[host_id].report
        here = {job_id for (job_id, _), hosts in self._running.items() if host_id in hosts}
        specs = [self.engine.jobs[job_id].spec for job_id in here if job_id in self.engine.jobs]
        assert sum(each.cpus for each in specs) <= report.cpus, (host_id, specs)
        assert sum(each.host_memory_mib for each in specs) <= (report.memory_mib or 1 << 60), (host_id, specs)

    def _check_devices(self) -> None:
        on: dict[DeviceId, list[JobId]] = defaultdict(list)
        for job in self.engine.jobs.values():
            if job.phase in ON_DEVICES:
                assert job.placement is not None
                for device_id in job.placement.devices:
                    if device_id.rpartition("/")[0] in job.attempt.hosts_left:
                        on[device_id].append(job.job_id)
        for device_id, here in on.items():
            device = self.engine.ledger.devices[device_id]
            parts = [placed.fraction for j in here if (placed := self.engine.jobs[j].placement) is not None]
            if min(parts) < 1.0:  # So a whole tenant beside them would be too much.
                assert sum(parts) <= 1.0 + 1e-9, (device_id, here, parts)
            else:
                assert len(here) <= device.max_tenants, (device_id, here)
            if len(here) > 1:
                planned = [self.engine.jobs[j].planned_mib for j in here]
                assert sum(mib or device.memory_mib for mib in planned) <= device.usable_mib
                assert all(self.engine.jobs[j].spec.share == "auto" for j in here)
                uids = {self.engine.jobs[j].spec.launch.uid for j in here}
                assert device.sharing != "mps" or len(uids) == 1

    def _check_job(self, job_id: JobId, explain: bool) -> None:
        job, now_s = self.engine.jobs[job_id], self.engine.now_s
        until_s = job.ended_s if job.ended_s is not None else job.phase_since_s
        spent_s = job.spent.wait_s + job.spent.load_s + job.spent.run_s + job.spent.pause_s
        off_s = abs(spent_s - (until_s - job.submitted_s))
        assert off_s <= self._within_s, f"job {job_id}: JCT is not W + L + T + P"
        assert job.spent.queued_s <= job.spent.wait_s + self._within_s
        assert (job.phase in ENDED) == (job.ended_s is not None)
        check_reason(job.reason)
        if job.phase in ENDED:
            self._over.add(job_id)
        if explain:
            for reason in self.engine.explain(job_id, now_s):
                check_reason(reason)
        if job.phase in LEAVING and job.attempt.stop_cause == "preempted":
            assert job.spec.job_class == "spot"
        alarm_s = self.engine.next_alarm_s
        asked_again = alarm_s is not None and alarm_s <= now_s  # The policy goes on in this very moment.
        if job.phase is Phase.QUEUED and not asked_again:
            # What sharing costs changes with time: a job that could share now is asked at the next event.
            fits = Plan(self.engine.ledger).find_free(job) is not None
            next_in_line = self.engine.explain(job_id, now_s)[0].code == "next-event"
            assert not (fits and next_in_line), f"job {job_id} fits and waits"
