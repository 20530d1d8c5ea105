"""A shadow policy: asked about every event of a journal, obeyed in nothing.

Rule: the engine follows the record, with the recorded decisions, and we compare its commands with
the recorded ones. The shadow sees the state that the policy in force has made, with waiting jobs in its own
order, and learns from the record. It does not get the wake-ups and computations that it asks for: we ask it
when something happens.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

from cotenant.controller import wire
from cotenant.controller.domain import Decision, Job, JobId, Phase, Place, Preempt, Reason, Share, render
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine, EngineConfig, Ledger, MakePolicy
from cotenant.controller.history import action_in_words
from cotenant.controller.planning import View
from cotenant.controller.policies.base import Parameters, Policy
from cotenant.controller.sim.past.journal import entries, extent, open_journal
from cotenant.controller.store import ControllerRun, JournalReader, RecoveredState, digest

LAST_KEPT: Final = 50
ShadowStart = Place | Share


class Comparison:
    """Counts where two decisions on the same event differ."""

    def __init__(self) -> None:
        self._decisions = self._alike = self._sooner_jobs = 0
        self._sooner_s = 0.0
        self._differing: Counter[str] = Counter()
        self._last: list[wire.Otherwise] = []
        self._wanted: dict[JobId, float] = {}
        """Waiting jobs that the shadow would have started -> since when."""
        self._left: set[tuple[JobId, int]] = set()
        """Attempts that the shadow would have preempted."""

    def tally(self, failed: str, unfollowed: int) -> wire.ShadowTally:
        return wire.ShadowTally(
            decisions=self._decisions,
            alike=self._alike,
            differing=dict(sorted(self._differing.items())),
            sooner_jobs=self._sooner_jobs,
            sooner_s=self._sooner_s,
            last=tuple(reversed(self._last)),
            failed=failed,
            unfollowed=unfollowed,
        )

    def compare(self, view: View, done: Decision, instead: Decision) -> None:
        """Compares the decision taken with the shadow's."""
        before = sum(self._differing.values())
        starts, would_start = _starts(done), _starts(instead)
        preempts, would_preempt = _preempts(done), _preempts(instead)
        if not (starts or would_start or preempts or would_preempt):
            return
        self._decisions += 1
        for job_id, action in would_start.items():
            self._would_start(view, job_id, action, starts.get(job_id))
        for job_id, action in starts.items():
            self._note_start(view, job_id, action, is_wanted=job_id in would_start)
        for job_id, leaves in would_preempt.items():
            attempt = (job_id, view.jobs[job_id].attempt.number)
            if job_id not in preempts and attempt not in self._left:
                self._left.add(attempt)
                self._differ("preempts", view, job_id, None, leaves)
        for job_id, leaves in preempts.items():
            if job_id not in would_preempt and (job_id, view.jobs[job_id].attempt.number) not in self._left:
                self._differ("keeps", view, job_id, leaves, None)
        self._alike += sum(self._differing.values()) == before
        self._forget(view)

    def _would_start(self, view: View, job_id: JobId, action: ShadowStart, done: ShadowStart | None) -> None:
        if done is not None:
            if (set(done.devices), done.accumulation_steps) != (
                set(action.devices),
                action.accumulation_steps,
            ):
                self._differ("elsewhere", view, job_id, done, action)
        elif job_id not in self._wanted:
            self._wanted[job_id] = view.now_s
            self._differ("starts", view, job_id, None, action)

    def _note_start(self, view: View, job_id: JobId, action: ShadowStart, *, is_wanted: bool) -> None:
        since_s = self._wanted.pop(job_id, None)
        if since_s is not None:
            self._sooner_jobs += 1
            self._sooner_s += view.now_s - since_s
        elif not is_wanted:
            self._differ("waits", view, job_id, action, None)

    def _differ(
        self,
        kind: str,
        view: View,
        job_id: JobId,
        done: ShadowStart | Preempt | None,
        instead: ShadowStart | Preempt | None,
    ) -> None:
        self._differing[kind] += 1
        told = instead or done
        assert told is not None
        self._last.append(
            wire.Otherwise(
                at_s=view.now_s,
                job_id=job_id,
                done=action_in_words(done) if done is not None else "",
                instead=action_in_words(instead) if instead is not None else "",
                reason=render(told.reason),
            )
        )
        del self._last[:-LAST_KEPT]

    def _forget(self, view: View) -> None:
        """Jobs that left the queue in another way; attempts that are over."""
        for job_id in [each for each in self._wanted if not _waits(view.jobs.get(each))]:
            del self._wanted[job_id]
        jobs = view.jobs
        self._left = {(j, a) for j, a in self._left if j in jobs and jobs[j].attempt.number == a}


def _waits(job: Job | None) -> bool:
    return job is not None and job.phase is Phase.QUEUED


def _starts(decision: Decision) -> dict[JobId, ShadowStart]:
    return {each.job_id: each for each in decision.actions if isinstance(each, Place | Share)}


def _preempts(decision: Decision) -> dict[JobId, Preempt]:
    return {each.job_id: each for each in decision.actions if isinstance(each, Preempt)}


class RecordedPolicy:
    """Stands in for the engine's policy: answers as recorded, and asks the shadow first."""

    def __init__(self, recorded: Policy, follower: ShadowFollower) -> None:
        self._recorded, self._follower = recorded, follower
        self.name = recorded.name
        self.queue_key = recorded.queue_key

    def __getattr__(self, name: str) -> Any:
        """Attributes of the inner policy beyond the protocol."""
        return getattr(self._recorded, name)

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        decision = self._follower.recorded
        self._follower.ask(view, event, self._recorded)
        return decision

    def observe(self, view: View, event: ev.AnyEvent, decision: Decision) -> None:
        self._recorded.observe(view, event, decision)
        self._follower.learn(view, event, decision)

    def explain(self, view: View, job: Job) -> Reason:
        return self._recorded.explain(view, job)

    def save(self) -> bytes:
        return self._recorded.save()

    def load(self, state: bytes) -> None:
        self._recorded.load(state)


class ShadowFollower:
    """Follows one journal, some entries at a time."""

    def __init__(self, policy: Policy, begin_s: float, make_policy: MakePolicy) -> None:
        self._shadow, self._begin_s, self._make = policy, begin_s, make_policy
        self._comparison, self._failed, self._unfollowed = Comparison(), "", 0
        self._engine: Engine | None = None
        self._now_s = 0.0
        self.recorded = Decision()
        self.reached = 0
        self.reached_s = 0.0

    def tally(self) -> wire.ShadowTally:
        return self._comparison.tally(self._failed, self._unfollowed)

    def advance(self, where: Path | str, entries_max: int) -> bool:
        """Whether the end was reached.

        Raises:
            JournalError: it cannot be read.
        """
        with open_journal(where) as journal:
            runs, _, _ = extent(journal)
            if self._engine is None:
                self._engine = self._begin(journal, runs)
            count = 0
            following = entries(
                journal, runs, self._engine, self._policy, after=self.reached, limit=entries_max
            )
            for engine, entry, event, decision in following:
                self._engine, self.recorded, self._now_s = engine, decision, entry.now_s
                commands = engine.handle(event, entry.now_s)
                self._unfollowed += digest(commands) != entry.commands
                self.reached, self.reached_s = entry.seq, entry.now_s
                count += 1
        return count < entries_max

    def _policy(self, name: str, parameters: Parameters) -> Policy:
        return RecordedPolicy(self._make(name, parameters), self)

    def _begin(self, journal: JournalReader, runs: list[ControllerRun]) -> Engine:
        """Starts from the newest snapshot before the beginning, else from the journal's first entry."""
        for seq, data in journal.snapshots():
            if seq >= journal.first_at(self._begin_s):
                continue
            begun = [run.configuration for run in runs if run.first_seq <= seq] or [runs[0].configuration]
            state = RecoveredState(Engine(self._policy, wire.unpack(begun[-1], EngineConfig)))
            try:
                state.load(data)
            except wire.BadMessage:
                continue
            self.reached = seq
            return state.engine
        return Engine(self._policy, wire.unpack(runs[0].configuration, EngineConfig))

    # --- The shadow --------------------------------------------------------------------------------

    def ask(self, view: View, event: ev.AnyEvent, recorded: Policy) -> None:
        """Asks the shadow what it would do now; its errors stay its own."""
        if self._failed or self._now_s < self._begin_s:
            return
        assert isinstance(view, Ledger)
        view.queue.reorder(self._shadow.queue_key)
        try:
            instead = self._shadow.decide(view, event)
        except Exception as error:  # noqa: BLE001 - a policy may fail in any way
            self._failed = f"{type(error).__name__}: {error}"
            return
        finally:
            view.queue.reorder(recorded.queue_key)
        self._comparison.compare(view, self.recorded, instead)

    def learn(self, view: View, event: ev.AnyEvent, decision: Decision) -> None:
        if not self._failed:
            try:
                self._shadow.observe(view, event, decision)
            except Exception as error:  # noqa: BLE001 - as above
                self._failed = f"{type(error).__name__}: {error}"
