"""Whose orders this host follows: one epoch of one controller's journal at a time. Pure.

Rule: the agent follows a controller of a later epoch from its `Welcome` on, and obeys no other. What an
earlier epoch has started stays, named with its epoch: the controller decides about it.
"""

from __future__ import annotations

from itertools import islice
from typing import Final, Literal

from cotenant.agent.daemon.core import edge, notes, remembered, reporting
from cotenant.controller.domain import Followed, StartAttempt
from cotenant.controller.domain import events as ev
from cotenant.controller.wire import CommandDelivery, LogReply, NotFollowed, ReadLog, Welcome

KEPT_TOLD_MAX: Final = 1000
"""In one hello; the others follow once these are forgotten."""

HelloAnswer = Literal["welcome", "greet-again", "refuse"]


class Following:
    def __init__(self, outbox: reporting.Outbox) -> None:
        self._out = outbox
        self._memory = outbox.memory
        self._taken: set[remembered.JobKey] = set()
        """Jobs whose start was refused because the number was in use: listed in every hello."""

    def refuses_journal(self, journal: str, running: int) -> str:
        """Why this state is not for the controller of this journal; empty if it is, from now on. Job 1 of
        another journal is another job 1: its fences, reports and logs must not meet ours."""
        memory = self._memory
        mine = memory.journal
        if mine == journal:
            return ""
        if mine and (running or memory.pending):
            return (
                f"this state folder belongs to another controller (journal {mine}), with {running} "
                f"attempts running and {len(memory.pending)} reports it has not heard: start that "
                "controller, or use another --state-dir"
            )
        if mine:
            for attempt in memory.attempts.values():
                if attempt.has_folder:
                    self._out.add(edge.RemoveAttempt(job_id=attempt.job_id, attempt=attempt.attempt))
            self._out.keep(notes.Reset())
        self._out.keep(notes.Bound(journal=journal))
        return ""

    def answer_welcome(self, message: Welcome) -> HelloAnswer:
        """Whether the agent may obey this controller. One whose journal was restored first learns what is
        here."""
        mine, theirs = self._memory.epoch, message.epoch
        if theirs == mine:
            return "greet-again" if message.restored else "welcome"
        if theirs.number <= mine.number:
            self._out.say(
                f"not obeying a controller of epoch {theirs.number}: this host follows {mine.number}",
                bad=True,
            )
            return "refuse"
        follows = notes.Follows(
            epoch=theirs,
            reached=message.reached,
            restored=message.restored,
            reports_seen=message.reports_seen,
        )
        self._out.keep(follows)
        if not message.restored:
            return "welcome"
        self._out.say("the controller's journal was put back from a copy: telling it what is here", bad=True)
        return "greet-again"

    def obeys(self, message: CommandDelivery) -> bool:
        """Answer an order of another epoch without obeying it."""
        if message.epoch == self._memory.epoch.token:
            return True
        self._out.send(NotFollowed(epoch=message.epoch))
        return False

    def is_taken(self, command: StartAttempt) -> None:
        """Refuse a start whose number an attempt of another epoch uses here."""
        attempts = self._memory.attempts.values()
        self._taken |= {attempt.job for attempt in attempts if attempt.job_id == command.job_id}
        self._taken.add((command.job_id, command.job_epoch))
        self._out.say(f"job {command.job_id} attempt {command.attempt}: its number is taken here", bad=True)

    def read_log(self, read: ReadLog) -> None:
        """Answers from the log of the job that the request means, not of one with the job's number in a lost
        history."""
        attempt = self._memory.attempts.get((read.job_id, read.attempt))
        if attempt is None or attempt.job_epoch in ("", read.job_epoch):
            self._out.add(edge.AnswerLog(read=read))
            return
        nothing = LogReply(
            request=read.request,
            data=b"",
            next_offset=max(0, read.offset),
            at_end=True,
            closed=True,
            missing=f"job {read.job_id} attempt {read.attempt} left no log here: it never started",
        )
        self._out.send(nothing)

    def forgets(self, forgotten: notes.Forgotten) -> None:
        self._taken.discard(forgotten.job)
        self._out.keep(forgotten)

    # --- For a hello -------------------------------------------------------------------------------

    def list_followed(self) -> Followed:
        memory = self._memory
        return Followed(
            journal=memory.journal or "",
            epoch=memory.epoch,
            reached=memory.reached,
            confirmed=memory.confirmed,
            past=memory.epochs_past,
        )

    def list_kept(self) -> tuple[ev.JobKept, ...]:
        """Jobs that the inventory does not name, and those whose numbers are taken."""
        jobs = dict.fromkeys((*self._taken, *self._memory.kept_jobs()))
        return tuple(self._describe_kept(job) for job in islice(jobs, KEPT_TOLD_MAX))

    def _describe_kept(self, job: remembered.JobKey) -> ev.JobKept:
        fence = self._memory.fences.get(job)
        if fence is None:
            return ev.JobKept(job_id=job[0], job_epoch=job[1])
        return ev.JobKept(job_id=job[0], job_epoch=job[1], attempt=fence.attempt, epoch=fence.epoch)
