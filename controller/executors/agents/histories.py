"""Whether an agent and this journal share one history, and what to do where they do not.

Rule: agents are the witnesses. A journal cannot see that it was restored from a copy, but an agent that has
followed what the copy lacks can; the first such hello begins another epoch, before the controller sends
anything else.
"""

from __future__ import annotations

import logging

from cotenant.controller.domain import EpochStanding, standing
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import agree
from cotenant.controller.store import Core
from cotenant.controller.wire import Hello, Report

log = logging.getLogger("cotenant.controller")


class Histories:
    def __init__(self, core: Core, lease_s: float | None) -> None:
        self._core = core
        self._hold_until_s = core.clock.now_s() + (lease_s or 0.0)
        """Until then attempts may run on leases from before this start."""
        self._knows_restored = False
        """An agent has shown that this journal was restored from a copy."""

    def standing(self, hello: Hello, reports_seen: int) -> EpochStanding:
        """How the agent's history and this journal's relate."""
        engine, name = self._core.state.engine, self._core.journal.name
        return standing(hello.followed, name, engine.ledger.epoch, engine.ledger.epochs_past, reports_seen)

    def refusal(self, hello: Hello) -> str:
        """Returns the refusal to an agent that has gone over to another controller."""
        self._core.counters["superseded"] += 1
        host_id, theirs = hello.report.host_id, hello.followed.epoch.number
        log.error("host %s follows epoch %d of another controller: is a second one running?", host_id, theirs)
        mine = self._core.state.engine.ledger.epoch.number
        return (
            f"this controller is of epoch {mine}, {host_id} follows {theirs} of another: stop the older one"
        )

    def restore(self, hello: Hello) -> bool:
        """The journal lacks what an agent has followed; attempts of that history must not be taken for ours.
        True: another epoch has begun, once in a run, and beyond each that an agent has followed."""
        core, followed = self._core, hello.followed
        if self._knows_restored and core.state.engine.ledger.epoch.number > followed.epoch.number:
            return False
        self._knows_restored = True
        hold_s = max(0.0, self._hold_until_s - core.clock.now_s())
        core.begin_epoch(followed.epoch.number, restored=True, hold_s=hold_s)
        core.counters["restored"] += 1
        log.warning(
            "this journal was restored from a copy: host %s has followed epoch %d to entry %d. What was lost "
            "is ended on its hosts; jobs that wait since before the start may wait for %.0f s more",
            hello.report.host_id,
            followed.epoch.number,
            followed.reached,
            hold_s,
        )
        return True

    def is_meant(self, report: Report) -> bool:
        """Whether the report is about the job and the attempt that have these numbers here. The end of an
        attempt of a lost history counts all the same: its job waits for it."""
        event, job = report.event, self._core.state.engine.jobs.get(report.event.job_id)
        if job is None or not agree(job.epoch, report.job_epoch):
            return job is None
        if event.attempt != job.attempt.number or isinstance(event, ev.AttemptEnded):
            return True
        return agree(job.attempt.epoch, report.epoch)
