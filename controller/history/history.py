"""What happened to each job, for `show`, `explain` and timelines: its attempts on devices, and decisions.

Rule: it learns from events, commands and decisions alone, so that recovery, which folds the same, arrives at
the same history. It is bounded: old attempts and notes fall out, the journal keeps everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine
from cotenant.controller.history import attempt_account, attempt_records
from cotenant.controller.history.etas import policy_label

AttemptEvent = (
    ev.AttemptStarted
    | ev.FirstStepDone
    | ev.ProgressSeen
    | ev.CapabilitiesSeen
    | ev.CheckpointDurable
    | ev.AttemptEnded
)
"""What happens to one attempt."""
ATTEMPTS_KEPT = 100
NOTES_KEPT_PER_JOB = 40
NOTES_KEPT = 1_000
POLICIES_KEPT = 200
FORECASTS_KEPT = 200
"""Per attempt: one for each co-tenant."""


class PolicyInForce(msgspec.Struct, frozen=True, array_like=True):
    """The policy that decides from `from_s` on."""

    from_s: float
    label: str
    """Its name, with the parameters that were set."""


class SavedHistory(msgspec.Struct, kw_only=True):
    """The whole history as a value."""

    stretches: dict[domain.JobId, list[attempt_records.AttemptRecord]] = {}
    job_notes: dict[domain.JobId, list[attempt_records.HistoryNote]] = {}
    notes: list[attempt_records.HistoryNote] = []
    policies: list[PolicyInForce] = []
    """The oldest first; a journal's first one has been in force since before."""


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A job with its attempts and the decisions about it: what the journal keeps of one that is forgotten."""

    job: domain.Job
    attempts: Sequence[attempt_records.AttemptRecord]
    notes: Sequence[attempt_records.HistoryNote]
    """Oldest first."""


class History:
    """The history of jobs, which watches the engine; `observe` after every event."""

    def __init__(self, saved: SavedHistory | None = None) -> None:
        self._saved = saved if saved is not None else SavedHistory()
        self._open: dict[domain.JobId, attempt_records.AttemptRecord] = {}
        self._on_host: dict[domain.HostId, dict[domain.JobId, None]] = {}
        self.forgotten: list[JobRecord] = []
        """Jobs that the engine forgot at the last event."""
        self.closed: list[tuple[domain.Job, attempt_records.AttemptRecord]] = []
        """Attempts that ended at the last event, with their jobs."""
        for job_id, attempts in self._saved.stretches.items():
            if attempts and attempts[-1].ended_s is None:
                self._keep_open(job_id, attempts[-1])

    def save(self) -> SavedHistory:
        return self._saved

    # --- Reading -----------------------------------------------------------------------------------

    def attempts(self, job_id: domain.JobId) -> Sequence[attempt_records.AttemptRecord]:
        return self._saved.stretches.get(job_id, ())

    def newest(self, job_id: domain.JobId) -> attempt_records.AttemptRecord | None:
        known = self._saved.stretches.get(job_id)
        return known[-1] if known else None

    def notes(self, job_id: domain.JobId | None, limit: int) -> Iterator[attempt_records.HistoryNote]:
        """Yields the notes on a job, or on all, newest first."""
        notes = self._saved.notes if job_id is None else self._saved.job_notes.get(job_id, [])
        yield from notes[: -limit - 1 : -1]

    def record(self, job: domain.Job) -> JobRecord:
        notes = self._saved.job_notes.get(job.job_id, ())
        return JobRecord(job=job, attempts=self.attempts(job.job_id), notes=notes)

    def policies(self) -> Sequence[PolicyInForce]:
        return self._saved.policies

    # --- Watching ----------------------------------------------------------------------------------

    def observe(self, engine: Engine, event: ev.AnyEvent, commands: Iterable[domain.AnyCommand]) -> None:
        """Takes in what one `handle` (or `fold`) did."""
        now_s = engine.now_s
        name = type(event).__name__
        self.closed = []
        self._take_event(event, now_s)
        if isinstance(event, ev.PolicyChanged) or not self._saved.policies:
            self._policy_now(engine)
        touched = dict.fromkeys(self._affected_jobs(event))  # In order: the same history in every process.
        # Before a job that ends starts again elsewhere in the same event: its partners stay where it was.
        where = [self._open[job_id].devices for job_id in touched if job_id in self._open]
        started: list[domain.JobId] = []
        for command in commands:
            if isinstance(command, domain.StartAttempt):
                self._note_starts(engine, event, command, started)
            elif isinstance(command, domain.StopAttempt):
                self._stop_asked(engine, command)
                touched[command.job_id] = None
        for action in engine.decision.actions:
            if not isinstance(action, (domain.Wake, domain.Compute)):
                self._note(
                    attempt_records.HistoryNote(
                        now_s, name, action.job_id, attempt_records.action_in_words(action), action.reason
                    )
                )
        for refusal in engine.refusals:
            self._note(attempt_records.HistoryNote(now_s, name, None, "refused", refusal))
        where += [self._open[job_id].devices for job_id in touched if job_id in self._open]
        for job_id in touched:
            self._close_if_over(engine, job_id, event)
        for job_id in started:
            self._join_partners(engine, job_id)
            where.append(self._open[job_id].devices)
        here = (job_id for devices in where for device_id in devices for job_id in engine.tenants(device_id))
        for job_id in dict.fromkeys(here):
            self._turn(engine, job_id)
        self.forgotten = [self.record(job) for job in engine.forgotten]
        self._forget_old(engine)

    def _keep_open(self, job_id: domain.JobId, attempt_record: attempt_records.AttemptRecord) -> None:
        self._open[job_id] = attempt_record
        for host_id in attempt_record.hosts:
            self._on_host.setdefault(host_id, {})[job_id] = None

    def _take_event(self, event: ev.AnyEvent, now_s: float) -> None:
        if isinstance(event, ev.TroubleSeen):
            self._note(
                attempt_records.HistoryNote(
                    now_s, "TroubleSeen", event.job_id, "trouble", domain.because("trouble", event.what)
                )
            )
        elif isinstance(event, ev.OutputSeen):
            self._note_output(event)
        elif isinstance(event, ev.IdleSeen):
            self._note_idle(event, now_s)
        elif isinstance(event, ev.SpecChanged):
            words = ", ".join(f"{name} {value}" for name, value in event.changes.items())
            self._note(
                attempt_records.HistoryNote(
                    now_s, "SpecChanged", event.job_id, "set", domain.because("set-by", event.by, words)
                )
            )
        if not isinstance(event, AttemptEvent):
            return
        attempt_record = self._open.get(event.job_id)
        if attempt_record is not None and attempt_record.attempt == event.attempt:
            self._take_attempt_event(attempt_record, event, now_s)

    def _take_attempt_event(
        self, attempt_record: attempt_records.AttemptRecord, event: AttemptEvent, now_s: float
    ) -> None:
        """Something that happened to the newest attempt of a job."""
        if isinstance(event, ev.AttemptStarted):
            if attempt_record.launch != "cold":
                attempt_record.launch, attempt_record.launch_why = event.launch, event.launch_why
            return
        if isinstance(event, ev.ProgressSeen):
            attempt_record.account.count(now_s, event.step)
            if event.energy_j is not None and attempt_record.hosts:
                attempt_record.energy_by_host_j[attempt_record.hosts[0]] = event.energy_j
            return
        attempt_record.end_step = max(attempt_record.end_step, event.step)
        if isinstance(event, ev.FirstStepDone):
            self._first_step(attempt_record, event, now_s)
        elif isinstance(event, ev.CapabilitiesSeen):
            attempt_record.start_step = event.step
            attempt_record.proven = max(attempt_record.proven, event.capabilities.proven)
            if event.exact is not None and attempt_record.exact is None:
                attempt_record.exact = event.exact
                self._note(
                    attempt_records.HistoryNote(
                        now_s,
                        "CapabilitiesSeen",
                        event.job_id,
                        "resume",
                        attempt_records.resume_reason(event),
                    )
                )
        elif isinstance(event, ev.AttemptEnded):
            _note_end(attempt_record, event)
        elif isinstance(event, ev.CheckpointDurable):
            attempt_record.exact = (
                event.exact if attempt_record.exact is None else attempt_record.exact and event.exact
            )

    def _note_output(self, event: ev.OutputSeen) -> None:
        """The gang's first host has the lowest rank, whose word counts; what is lost on any is lost."""
        known = self._open.get(event.job_id)
        if known is None or known.attempt != event.attempt:
            return
        if known.hosts[0] == event.host_id or known.words == domain.JobWords():
            known.words = msgspec.structs.replace(event.words, lost=event.words.lost or known.words.lost)
        elif event.words.lost and not known.words.lost:
            known.words = msgspec.structs.replace(known.words, lost=event.words.lost)

    def _note_idle(self, event: ev.IdleSeen, now_s: float) -> None:
        """The attempt is idle, or works again. That it is stopped for it, the request to stop tells."""
        attempt_record = self._open.get(event.job_id)
        if attempt_record is None or attempt_record.attempt != event.attempt:
            return
        known = attempt_record.account.idle_now
        began_s = event.since_s if event.since_s is not None else known.from_s if known is not None else now_s
        attempt_record.account.note_idle(now_s, event.since_s)
        reason = domain.idle_reason("over" if event.since_s is None else event.stage, now_s - began_s)
        if event.stage != "stop":
            self._note(attempt_records.HistoryNote(now_s, "IdleSeen", event.job_id, "idle", reason))

    def _first_step(
        self, attempt_record: attempt_records.AttemptRecord, event: ev.FirstStepDone, now_s: float
    ) -> None:
        if event.assumed:
            if attempt_record.trains_since_s is None and attempt_record.stop_requested_s is None:
                self._ran_unseen(attempt_record, now_s)
            return
        if attempt_record.assumed_s is not None:
            if attempt_record.stop_requested_s is not None:
                return  # It leaves, and is not running any more.
            self._correct_start(event.job_id, attempt_record, attempt_record.assumed_s, now_s)
            attempt_record.assumed_s = None
        attempt_record.account.count(now_s, event.step)
        if attempt_record.first_step_s is None:
            attempt_record.first_step_s, attempt_record.first_step = now_s, event.step

    @staticmethod
    def _ran_unseen(attempt_record: attempt_records.AttemptRecord, now_s: float) -> None:
        """No step was seen: it counts as training since its launch."""
        attempt_record.assumed_s = attempt_record.launched_s
        attempt_record.account.worked_until(now_s)

    def _correct_start(
        self, job_id: domain.JobId, mine: attempt_records.AttemptRecord, assumed_s: float, now_s: float
    ) -> None:
        """The first step comes only now: what was counted since it was assumed was loading, and nobody
        trained beside the job in that time."""
        mine.account.loaded_until(now_s)
        for other_id in mine.co_tenants:
            for theirs in self.attempts(other_id):
                theirs.account.loaded_beside(job_id, assumed_s, now_s)

    def _policy_now(self, engine: Engine) -> None:
        known = self._saved.policies
        label = policy_label(engine)
        if not known or known[-1].label != label:
            known.append(PolicyInForce(engine.now_s, label))
            del known[:-POLICIES_KEPT]

    def _affected_jobs(self, event: ev.AnyEvent) -> Iterator[domain.JobId]:
        """Jobs of which this event may end an attempt, or change what it does."""
        if isinstance(event, (ev.HostLost, ev.HostJoined)):
            host_id = event.host_id if isinstance(event, ev.HostLost) else event.report.host_id
            yield from self._on_host.get(host_id, ())
        elif isinstance(event, (ev.AttemptEnded, ev.FirstStepDone, ev.IdleSeen)):
            yield event.job_id

    # --- Accounts ----------------------------------------------------------------------------------

    def _turn(self, engine: Engine, job_id: domain.JobId) -> None:
        """A job's co-tenants, or what it does on its devices, may have changed: the account goes on with a
        new span."""
        attempt_record = self._open.get(job_id)
        if attempt_record is None:
            return
        before, piece = attempt_record.account.now, piece_now(engine, job_id, attempt_record.devices)
        if before is None or (before.doing, before.beside, before.share) != (
            piece.doing,
            piece.beside,
            piece.share,
        ):
            attempt_record.account.turn(engine.now_s, piece)

    # --- Beginning and ending ----------------------------------------------------------------------

    def _note_starts(
        self, engine: Engine, event: ev.AnyEvent, command: domain.StartAttempt, started: list[domain.JobId]
    ) -> None:
        job_id = command.job_id
        known = self._open.get(job_id)
        if known is not None and known.attempt == command.attempt:
            return  # Its other hosts, or the same command once more.
        if known is not None:
            self._close(engine, job_id, known, event)
        attempt_record = attempt_records.AttemptRecord(
            attempt=command.attempt,
            devices=tuple(device for member in command.gang for device in member.devices),
            hosts=tuple(member.host_id for member in command.gang for _ in member.devices),
            accumulation_steps=command.accumulation_steps,
            sub_batch=command.sub_batch,
            launched_s=engine.now_s,
            start_step=command.resume_step,
            end_step=command.resume_step,
            account=attempt_account.AttemptAccount(promise=promise_of(engine.jobs[job_id].placement)),
            waited_s=engine.jobs[job_id].spent.wait_s,
            fraction=command.fraction,
        )
        self._keep_open(job_id, attempt_record)
        known_before = self._saved.stretches.setdefault(job_id, [])
        known_before.append(attempt_record)
        del known_before[:-ATTEMPTS_KEPT]
        started.append(job_id)

    def _join_partners(self, engine: Engine, job_id: domain.JobId) -> None:
        mine = self._open[job_id]
        for other_id in engine.partners(job_id):
            mine.co_tenants = attempt_records.add_if_missing(mine.co_tenants, other_id)
            theirs = self._open.get(other_id)
            if theirs is not None:
                theirs.co_tenants = attempt_records.add_if_missing(theirs.co_tenants, job_id)
            xi = engine.ledger.pairs.interference(engine.jobs[job_id], engine.jobs[other_id])
            expect(
                mine,
                attempt_account.Foretold(beside=other_id, xi=xi.first, source=xi.source, margin=xi.margin(0)),
            )
            if theirs is not None:
                expect(
                    theirs,
                    attempt_account.Foretold(
                        beside=job_id, xi=xi.second, source=xi.source, margin=xi.margin(1)
                    ),
                )

    def _stop_asked(self, engine: Engine, command: domain.StopAttempt) -> None:
        attempt_record = self._open.get(command.job_id)
        if attempt_record is None or attempt_record.attempt != command.attempt:
            return
        if attempt_record.stop_requested_s is None:
            attempt_record.stop_requested_s = engine.now_s
        attempt_record.stop_reason = command.reason
        attempt_record.reason = domain.render_whole(command.reason)
        attempt_record.public_reason = domain.render(command.reason)
        job = engine.jobs.get(command.job_id)
        attempt_record.cause = (
            attempt_records.CAUSES.get(job.attempt.stop_cause, "") if job is not None else ""
        )
        if attempt_record.cause == "preempted" and command.reason.code.startswith("parted-"):
            attempt_record.cause = "parted"
        if not any(  # The policy's own action tells it.
            isinstance(action, (domain.Preempt, domain.Resize))
            and (action.job_id, action.reason) == (command.job_id, command.reason)
            for action in engine.decision.actions
        ):
            self._note(
                attempt_records.HistoryNote(
                    engine.now_s, "StopAttempt", command.job_id, "stop", command.reason
                )
            )

    def _close_if_over(self, engine: Engine, job_id: domain.JobId, event: ev.AnyEvent) -> None:
        attempt_record, job = self._open.get(job_id), engine.jobs.get(job_id)
        if attempt_record is None:
            return
        if job is None or job.attempt.number != attempt_record.attempt or job.phase not in domain.ON_DEVICES:
            self._close(engine, job_id, attempt_record, event)

    def _close(
        self,
        engine: Engine,
        job_id: domain.JobId,
        attempt_record: attempt_records.AttemptRecord,
        event: ev.AnyEvent,
    ) -> None:
        del self._open[job_id]
        for host_id in set(attempt_record.hosts):
            del self._on_host[host_id][job_id]
        present = engine.jobs.get(job_id)
        is_present = present is not None and present.attempt.number == attempt_record.attempt
        end_s = engine.now_s - (present.attempt.late_s if present is not None and is_present else 0.0)
        attempt_record.ended_s = end_s
        is_orderly = isinstance(event, ev.AttemptEnded) and event.verdict.outcome in ("finished", "stopped")
        attempt_record.account.end(end_s, attempt_record.end_step if is_orderly else None)
        ended_now = (each for each in engine.forgotten if each.job_id == job_id)
        job = engine.jobs.get(job_id) or next(ended_now, None)
        if job is None:
            return
        is_whole = job.phase is domain.Phase.DONE or (job.phase in domain.ENDED and not job.attempt.capable)
        if is_whole and not attempt_record.cause and attempt_record.trains_since_s is None:
            self._ran_unseen(attempt_record, end_s)
        earlier = sum(each.cause == "crowded" for each in self.attempts(job_id))
        if job.counts.crowded + job.outgrown > earlier:
            attempt_record.cause = "crowded"
        attempt_record.outcome = attempt_records.outcome_of(job, attempt_record, event)
        what = f"attempt {attempt_record.attempt} {attempt_record.outcome}"
        reason = attempt_records.why_it_ended(job, attempt_record, event)
        why = attempt_record.reason = domain.render_whole(reason)
        attempt_record.public_reason = domain.render(reason)
        if isinstance(event, ev.AttemptEnded) and event.verdict.outcome == "stopped" and event.verdict.detail:
            # What the request to stop came to: saved at a step, or ended at the deadline and gone back.
            if event.verdict.detail not in why and why not in event.verdict.detail:
                attempt_record.reason += f"; {event.verdict.detail}"
                attempt_record.public_reason += f"; {event.verdict.said[1]}"
            if attempt_record.stop_reason == reason:  # Why is told already, by the note of the request.
                said = (each.removesuffix(f" ({domain.render(reason)})") for each in event.verdict.said)
                reason = domain.because("stopped-as", *said)
        self._note(attempt_records.HistoryNote(engine.now_s, type(event).__name__, job_id, what, reason))
        self.closed.append((job, attempt_record))

    def _note(self, note: attempt_records.HistoryNote) -> None:
        if note.job_id is not None:
            mine = self._saved.job_notes.setdefault(note.job_id, [])
            if mine and (mine[-1].what, mine[-1].reason) == (note.what, note.reason):
                return  # Held back again for the same reason.
            mine.append(note)
            del mine[:-NOTES_KEPT_PER_JOB]
        self._saved.notes.append(note)
        if len(self._saved.notes) > 2 * NOTES_KEPT:
            del self._saved.notes[:-NOTES_KEPT]

    def _forget_old(self, engine: Engine) -> None:
        """Now and then forgets the ended jobs that the engine has forgotten."""
        for table in (self._saved.stretches, self._saved.job_notes):
            if len(table) > len(engine.jobs) + 1_000:
                for job_id in [job_id for job_id in table if job_id not in engine.jobs]:
                    del table[job_id]


def _note_end(attempt_record: attempt_records.AttemptRecord, event: ev.AttemptEnded) -> None:
    """What a host says at its part's end."""
    if event.energy_j is not None:
        attempt_record.energy_by_host_j[event.host_id] = event.energy_j
    if event.gpu_fault in ("culprit", "suspect", "hit") and attempt_record.co_tenants:
        attempt_record.cause = "faulted"
    outcome = event.verdict.outcome
    if event.verdict.refusal:
        attempt_record.refused, attempt_record.failure = event.verdict.refusal, event.verdict.detail
    elif outcome == "user-failed" or (outcome == "infra-failed" and not attempt_record.failed_as):
        attempt_record.failed_as = outcome
        attempt_record.failure, attempt_record.public_failure = event.verdict.said


def piece_now(
    engine: Engine, job_id: domain.JobId, devices: Sequence[domain.DeviceId]
) -> attempt_account.HeldSpan:
    """What a job on devices does there just now, beside whom, and how much of them is its own."""
    job, now_s = engine.jobs[job_id], engine.now_s
    doing: attempt_account.Activity = (
        "loads"
        if job.phase is domain.Phase.LOADING
        else "trains"
        if job.phase is domain.Phase.RUNNING
        else "leaves"
    )
    held = [tenants for device_id in devices if job_id in (tenants := engine.tenants(device_id))]
    part = job.placement.fraction if job.placement is not None else 1.0
    others = {other: engine.jobs[other] for tenants in held for other in tenants if other != job_id}
    if part < 1.0:
        others = {}  # They have theirs.
    others = {} if job.attempt.idle is not None else others  # Who is idle does not train beside anybody.
    working = (o for o in others.values() if o.phase is domain.Phase.RUNNING and o.attempt.idle is None)
    training = sorted(working, key=lambda o: o.number)
    slowest = max((engine.ledger.pairs.interference(job, other).first for other in training), default=1.0)
    return attempt_account.HeldSpan(
        doing=doing,
        from_s=now_s,
        to_s=now_s,
        beside=tuple(other.job_id for other in training) if doing == "trains" else (),
        pace=1.0 / slowest,
        share=sum(1.0 / len(tenants) for tenants in held) if part == 1.0 else part * len(held),
    )


def promise_of(placement: domain.Placement | None) -> attempt_account.Promise | None:
    """The numbers of a sharing decision, where the reason has them."""
    match placement.reason if placement is not None else None:
        case domain.Reason("sharing-pays", (beside, float(shared_s), float(sequential_s), *_)):
            return attempt_account.Promise(
                beside=domain.JobId(str(beside)), shared_s=shared_s, sequential_s=sequential_s
            )
    return None


def expect(attempt_record: attempt_records.AttemptRecord, forecast: attempt_account.Foretold) -> None:
    """Keeps the first forecast about each co-tenant."""
    account = attempt_record.account
    if all(known.beside != forecast.beside for known in account.forecasts):
        account.forecasts.append(forecast)
        del account.forecasts[:-FORECASTS_KEPT]
