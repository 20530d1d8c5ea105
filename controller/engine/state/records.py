"""The records of jobs: where each stands, and one method for each fact that changes a record.

Rule: only the ledger assigns to a `Job`: here, and its phase in `phases.py`. The caller decides what to do
about a fact; this module writes, once, what the fact changes in the record. `dispatch.py` and `estimating.py`
write a few facts themselves, which move no job in the queue (`tests/house/test_records.py` has the list).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.engine.state.ordering import JobQueue
from cotenant.controller.engine.state.phases import Phases, expect_left
from cotenant.controller.performance import Profile, SeenBatch, alone_step_s

REQUEUED = "requeued-by"
"""Stop reason after which the job's time limit begins anew."""
CHECKPOINTS_KNOWN = 4
"""Per job, the newest."""
Spread = tuple[float | None, float | None]
UNSPREAD: Final = (None, None)


class Records:
    """Writes what happens to jobs into their records."""

    def __init__(self, phases: Phases, queue: JobQueue) -> None:
        self._phases, self._queue = phases, queue

    # --- Phases ------------------------------------------------------------------------------------

    def release(self, job: domain.Job, reason: domain.Reason) -> None:
        """A held job may go on, and whatever it was held for is forgotten."""
        job.counts.infra_failures, job.failed_end, job.workdir_missing = 0, None, ()
        self._phases.change(job, domain.Change.RELEASE, reason)

    def reserve(self, job: domain.Job, placement: domain.Placement, victims: Sequence[domain.JobId]) -> None:
        """The job gets these devices when the victims have left them."""
        job.placement, job.waits_for = placement, tuple(dict.fromkeys(victims))
        leaving = " and ".join(f"job {each}" for each in job.waits_for)
        self._phases.change(job, domain.Change.RESERVE, domain.because("waits-for-victims", leaving))

    def resize(self, job: domain.Job, placement: domain.Placement) -> None:
        """The job is asked to leave its devices, and goes on with these."""
        job.resize_to = placement

    def reserve_resized(self, job: domain.Job) -> None:
        """Reserves the new devices of a job that is resized and whose processes are gone: the job goes on as
        soon as all others have left its new devices."""
        assert job.resize_to is not None
        job.placement, job.resize_to, job.waits_for = job.resize_to, None, ()
        self._phases.change(job, domain.Change.RESERVE, job.placement.reason)

    def lose_reservation(
        self, job: domain.Job, change: domain.Change, reason: domain.Reason, *, preempted: bool
    ) -> None:
        """Takes the reservation from a job. `preempted`: its devices are for somebody else now, and its
        victims left them for nothing."""
        job.counts.aborted_preemptions += preempted
        job.placement, job.waits_for = None, ()
        self._phases.change(job, change, reason)

    def begin_attempt(
        self, job: domain.Job, placement: domain.Placement, gang: tuple[domain.GangMember, ...], epoch: str
    ) -> None:
        """The next attempt, on the hosts of this gang and from the last durable step: nothing is known of it
        yet."""
        now_s = self._phases.now_s
        if job.first_start_s is None:
            job.first_start_s = now_s
        first, *others = gang
        hosts = tuple([member.host_id for member in gang]) if others else (first.host_id,)
        taken, before = job.attempts_taken, job.attempt.number
        step = job.durable_step if job.progress.checkpoints else 0
        job.attempt = domain.CurrentAttempt(
            number=domain.AttemptNo((taken if taken > before else before) + 1),
            epoch=epoch,
            hosts_left=hosts,
            start_step=step,
            known_to_resume=step > 0,
            began_s=now_s,
            after_preemption=job.attempt.stop_cause in domain.PREEMPTED,
        )
        job.placement, job.waits_for, job.progress.step = placement, (), step
        job.visited = tuple(dict.fromkeys((*job.visited, *hosts))) if job.visited else hosts
        steps, estimate = placement.accumulation_steps, job.estimate
        estimate.remaining_at_s = now_s
        estimate.slowdown = job.split_slowdown(steps) if steps > 1 or job.measured.curve is not None else 1.0
        self._phases.change(job, domain.LAUNCH, placement.reason)

    def preempt_early(self, job: domain.Job) -> None:
        """The job is preempted before the promised time of its run is over."""
        job.counts.early_preemptions += 1

    def idle(self, job: domain.Job, spell: domain.IdleSpell | None) -> None:
        """The job holds its devices idle, or (None) works again."""
        job.attempt.idle = spell
        if spell is not None and spell.lends:
            self._phases.asked_for.add("idle")

    def stop(
        self,
        job: domain.Job,
        cause: domain.StopCause,
        reason: domain.Reason,
        *,
        save: bool,
        interrupt: bool = False,
    ) -> None:
        """Records that the job is asked to leave its devices; `interrupt`: by SIGINT."""
        job.attempt.stop_cause, job.attempt.stop_reason = cause, reason
        job.attempt.sent_sigint = interrupt
        if job.phase is domain.LOADING and cause == "preempted":
            job.counts.futile_preemptions += 1
            job.spent.futile_s += self._phases.now_s - job.phase_since_s
        elif cause in ("cancelled", "time-limit") and not job.attempt.capable:
            self.ran_unseen(job)
        self._phases.change(job, domain.Change.SAVE_AND_STOP if save else domain.Change.STOP, reason)

    def blame_stop(self, job: domain.Job, cause: domain.StopCause, reason: domain.Reason) -> None:
        """Why its attempt ends, or will have ended."""
        job.attempt.stop_cause, job.attempt.stop_reason = cause, reason

    def left_host(
        self, job: domain.Job, host_id: domain.HostId, verdict: domain.ExitVerdict, *, is_blamed: bool
    ) -> None:
        """All its processes on a host are gone; `verdict`: how the attempt has ended as far as is known."""
        left = job.attempt.hosts_left
        job.attempt.hosts_left = () if left == (host_id,) else tuple([h for h in left if h != host_id])
        job.attempt.verdict = verdict
        if is_blamed:
            job.attempt.to_blame = (*job.attempt.to_blame, host_id)

    def requeue(
        self,
        job: domain.Job,
        change: domain.Change,
        reason: domain.Reason,
        step: int,
        remaining_s: float | None,
    ) -> None:
        """All processes are gone and the job waits again, with what is left from its last durable `step`."""
        if job.phase is domain.RUNNING:
            # What is left is counted from now, not from the job's last report.
            job.estimate.remaining_at_s = self._phases.now_s
        if job.attempt.stop_cause in domain.PREEMPTED:
            job.counts.preemptions += 1
            job.spent.interrupted_s += max(0, job.progress.step - step) * (job.attempt.step_s or 0.0)
        job.counts.resizes += job.attempt.stop_cause == "resized"
        job.spent.wait_s += job.attempt.late_s
        job.placement, job.progress.step, job.estimate.slowdown = None, step, 1.0
        expect_left(job.estimate, remaining_s)
        job.attempt.start_assumed_s = None
        job.counts.limits_over += job.attempt.stop_cause == "time-limit"
        self._phases.change(job, change, reason)
        if job.attempt.stop_cause == "time-limit" or (
            job.attempt.stop_reason is not None and job.attempt.stop_reason.code == REQUEUED
        ):
            job.spent.past_limit_s = job.spent.load_s + job.spent.run_s

    def note_lateness(self, job: domain.Job, late_s: float) -> None:
        """The attempt had ended so long before anybody heard of it."""
        job.attempt.late_s = late_s

    def leave_out_lateness(self, job: domain.Job) -> None:
        """Counts the attempt's time up to its end: it takes the rest off the present phase, and off those
        before it, the last first."""
        now_s, spent, left_s = self._phases.now_s, job.spent, job.attempt.late_s
        cut_s = min(left_s, now_s - job.phase_since_s)
        job.phase_since_s, left_s = job.phase_since_s + cut_s, left_s - cut_s
        from_run_s = min(left_s, spent.run_s) if job.phase is not domain.RUNNING else 0.0
        spent.run_s -= from_run_s
        from_load_s = min(left_s - from_run_s, spent.load_s)
        spent.load_s -= from_load_s
        spent.run_s = max(0.0, spent.run_s - (left_s - from_run_s - from_load_s))

    def ran_unseen(self, job: domain.Job) -> None:
        """A job whose attempt ends without a step that could be seen has run, and not loaded, all the time;
        where it does not finish, only if its library did not say hello."""
        if job.phase is domain.LOADING:
            job.spent.run_s += self._phases.now_s - job.phase_since_s
            job.phase_since_s = self._phases.now_s

    def end(
        self, job: domain.Job, change: domain.Change, reason: domain.Reason, *, is_complete: bool = False
    ) -> None:
        """All processes are gone and the job is over; `is_complete`: it has done all that it was to do."""
        if not job.attempt.capable:
            self.ran_unseen(job)
        self._phases.change(job, change, reason)
        job.placement, job.attempt.start_assumed_s = None, None
        if job.ended_s is not None:
            job.ended_s -= job.attempt.late_s
        if is_complete:
            expect_left(job.estimate, 0.0)

    def begin_again(self, job: domain.Job, reason: domain.Reason, remaining_s: float | None) -> None:
        """A job that had ended waits once more: what its attempts reached stays, their failures do not count,
        and its time limit and its budget begin anew."""
        (
            job.ended_s,
            job.attempt.exit_code,
            job.attempt.verdict,
            job.attempt.stop_cause,
            job.attempt.stop_reason,
        ) = None, None, None, "", None
        job.counts.user_failures = job.counts.infra_failures = job.counts.quick_requeues = 0
        job.failed_end = None
        job.workdir_missing, job.avoid, job.aged, job.spent.queued_s = (), (), False, 0.0
        job.spent.past_limit_s, job.progress.step = job.spent.load_s + job.spent.run_s, job.durable_step
        expect_left(job.estimate, remaining_s)
        self._phases.change(job, domain.Change.BEGIN_AGAIN, reason)
        job.budget = None if job.budget is None else domain.BudgetUse(step=job.durable_step)
        self._phases.take_note(job)

    def respecify(self, job: domain.Job, spec: domain.JobSpec) -> None:
        """A job's options change; one that waits then stands where a new job with them would."""
        assert job.phase not in domain.ENDED, f"job {job.job_id} is {job.phase}"
        is_queued = job.phase is domain.QUEUED
        if is_queued:
            self._queue.remove(job)
        job.spec = spec
        self._phases.take_note(job)
        if is_queued:
            self._queue.add(job, is_new=True)
        if spec.job_class == "hp":
            self._phases.hp.put(job)
        else:
            self._phases.hp.remove(job)
        if self._phases.entered is not None:
            self._phases.entered.append(job)

    def explain(self, job: domain.Job, reason: domain.Reason) -> None:
        """Why it is where it is, said anew."""
        job.reason = reason

    def rank(self, job: domain.Job, rank: int) -> None:
        """Where it stands before the policy's order counts."""
        if job.rank != rank:
            job.rank = rank
            self._phases.move(job)

    def age(self, job: domain.Job, reason: domain.Reason) -> None:
        """The job has waited so long that all others wait for it."""
        job.aged = True
        if job.phase is domain.QUEUED:
            job.reason = reason
        self._phases.move(job)

    def promise(self, job: domain.Job, state: domain.PromiseState, why: domain.Reason | None = None) -> None:
        """Whether the end that it was promised was kept."""
        job.promise, job.promise_why = state, why

    # --- What attempts tell ------------------------------------------------------------------------

    def started_on(self, job: domain.Job, host_id: domain.HostId, launch: domain.LaunchKind) -> None:
        """Records that the attempt has started on a host; the launch of a job counts as warm if those of all
        hosts are warm."""
        if not job.attempt.started_hosts:
            job.attempt.began_s = self._phases.now_s
        if not job.attempt.started_hosts or launch == "cold":
            job.attempt.launched = launch
        job.attempt.started_hosts = (*job.attempt.started_hosts, host_id)

    def can_resume(self, job: domain.Job, capable: tuple[domain.HostId, ...], *, everywhere: bool) -> None:
        """All ranks on these hosts have said that they can; `everywhere`: there are no others."""
        job.attempt.capable, job.progress.resumable = capable, job.progress.resumable or everywhere

    def cannot_resume(self, job: domain.Job) -> None:
        """Its library cannot. It may save by itself: the user's own word stays."""
        job.progress.resumable = job.spec.resumable is True and not job.progress.went_otherwise
        job.attempt.capable, job.attempt.known_to_resume = (), False

    def learn_capabilities(self, job: domain.Job, said: domain.Capabilities) -> None:
        """The job's library has said what it can do; its last word counts."""
        job.progress.capabilities = job.progress.capabilities.learn(said)

    def resumed_at(self, job: domain.Job, step: int, remaining_s: float | None) -> None:
        """The step at which the attempt resumes."""
        job.attempt.start_step = job.progress.step = step
        expect_left(job.estimate, remaining_s)
        self._phases.move(job)

    def loaded_longer(self, job: domain.Job) -> float:
        """A running job makes its first step only now: all its time since that was assumed was its load.
        Returns how long the attempt took to load."""
        load_s = job.attempt.load_assumed_s + self._phases.now_s - job.phase_since_s
        job.spent.run_s -= job.attempt.load_assumed_s
        job.spent.load_s, job.phase_since_s = job.spent.load_s + load_s, self._phases.now_s
        job.attempt.load_s = load_s
        if job.attempt.after_preemption:
            job.spent.interrupted_s += load_s
        return load_s

    def first_step(self, job: domain.Job, step: int, *, assumed: bool) -> None:
        """The job trains from now on; where that is assumed, it has since its start."""
        job.attempt.start_assumed_s = self._phases.now_s if assumed else None
        job.attempt.load_assumed_s = self._phases.now_s - job.phase_since_s if assumed else 0.0
        job.estimate.remaining_at_s = self._phases.now_s
        if step > job.progress.step:
            job.progress.step = step
        if job.phase is domain.LOADING:
            assert job.placement is not None
            if assumed:
                done_s, job.phase_since_s = job.attempt.load_assumed_s, self._phases.now_s
                job.spent.run_s += done_s
                if job.estimate.remaining_s is not None:
                    expect_left(job.estimate, max(0.0, job.estimate.remaining_s - done_s))
            job.attempt.load_s = self._phases.now_s - job.phase_since_s
            self._phases.change(job, domain.FIRST_STEP, job.placement.reason)
        else:
            self._phases.move(job)

    def learn_pace(self, job: domain.Job, step_s: float, solo_step_s: float | None, slowdown: float) -> None:
        """What its steps take, now and alone; how far it is follows."""
        job.attempt.step_s, job.measured.solo_step_s, job.estimate.slowdown = step_s, solo_step_s, slowdown

    def note_progress(
        self,
        job: domain.Job,
        step: int,
        remaining_s: float | None,
        source: str | None = None,
        spread_s: Spread = UNSPREAD,
    ) -> None:
        """How far it is by now, and what is expected from here on."""
        job.progress.step, job.estimate.remaining_at_s = step, self._phases.now_s
        self.expect(job, remaining_s, source, spread_s)

    def see_batch(self, job: domain.Job, batch: SeenBatch) -> None:
        """How many rows its model gets at a time; a number stays known."""
        if batch.rows is not None or (batch.note and job.measured.batch.rows is None):
            job.measured.batch = batch

    def note_checkpoint(self, job: domain.Job, record: domain.CheckpointRecord) -> None:
        """The job can go on from this checkpoint, and will if it waits."""
        known = sorted((*job.progress.checkpoints, record), key=lambda c: (c.attempt, c.step))
        job.progress.checkpoints = tuple(known[-CHECKPOINTS_KNOWN:])
        if job.phase not in domain.ON_DEVICES:
            job.progress.step = max(job.progress.step, job.durable_step)
        self._phases.move(job)

    def prove_resume(self, job: domain.Job, step: int, steps: int) -> bool:
        """The attempt has resumed at this step, and made so many steps as they had been made before. Returns
        whether this is news: each host of a gang says so, and says it again."""
        is_news, job.attempt.resume_proven = not job.attempt.resume_proven, True
        known, newest = job.progress.checkpoints, job.resumed_from
        if newest is not None and newest.step == step:
            proven = msgspec.structs.replace(newest, proven=steps)
            job.progress.checkpoints = tuple(proven if each is newest else each for each in known)
        return is_news

    def went_otherwise(self, job: domain.Job, how: str) -> bool:
        """The attempt was not the run that was left. What it was resumed from counts no more, nor does
        anything that nobody has proven. Returns whether this is news: each host of a gang may say so."""
        is_news, newest = not job.progress.went_otherwise, job.resumed_from
        kept = tuple(each for each in job.progress.checkpoints if each.proven and each is not newest)
        job.progress.checkpoints, job.progress.went_otherwise = kept, how
        self.cannot_resume(job)
        return is_news

    def lose_checkpoints(self, job: domain.Job, checkpoint_domain: str) -> None:
        """Nobody can read that host's files any more."""
        job.progress.checkpoints = tuple(c for c in job.progress.checkpoints if c.domain != checkpoint_domain)
        if job.phase not in domain.ON_DEVICES:
            job.progress.step = job.durable_step
        self._phases.move(job)

    def last_words(self, job: domain.Job, said: ev.AttemptEnded) -> None:
        """What a host has said of the attempt's end there."""
        if said.step > job.progress.step:
            job.progress.step = said.step
        if said.verdict.exit_code is not None:
            job.attempt.exit_code = said.verdict.exit_code
        if said.verdict.host_fault:
            job.attempt.host_faults = (*job.attempt.host_faults, said.host_id)
        if said.verdict.workdir_missing:
            job.workdir_missing = tuple(dict.fromkeys((*job.workdir_missing, said.host_id)))

    # --- What is expected of it --------------------------------------------------------------------

    def expect(
        self,
        job: domain.Job,
        remaining_s: float | None,
        source: str | None = None,
        spread_s: Spread = UNSPREAD,
    ) -> None:
        """What is left of it, by another estimate; `source`: where that comes from, if from elsewhere, with
        what a tenth of such jobs stay below and exceed."""
        expect_left(job.estimate, remaining_s)
        if source is not None:
            job.estimate.source, (job.estimate.low_s, job.estimate.high_s) = source, spread_s
        self._phases.move(job)

    def note_training(self, job: domain.Job, use: domain.BudgetUse) -> None:
        """What it has used of its budget."""
        job.budget = use

    def repace(self, job: domain.Job, slowdown: float) -> None:
        """The job has another pace from now on."""
        expect_left(job.estimate, job.remaining_now_s(self._phases.now_s))
        job.estimate.remaining_at_s = self._phases.now_s
        job.estimate.slowdown = slowdown
        self._phases.move(job)

    def learn_profile(self, job: domain.Job, profile: Profile, *, given: bool = False) -> None:
        """What was measured of it, or (`given`) of a job like it."""
        job.measured.profile, job.measured.profile_given = profile, given
        self.see_batch(job, profile.batch)
        alone_s = alone_step_s(profile, job.gang)
        if alone_s is not None:
            job.measured.solo_step_s = alone_s
        self._phases.move(job)

    def refine_profile(self, job: domain.Job, profile: Profile) -> None:
        """Replaces the profile by one of the same measurements, with more known of them."""
        job.measured.profile = profile
        self._phases.move(job)

    def plan_memory(self, job: domain.Job, memory_mib: int) -> None:
        """What it takes of each of its devices, now that it was measured."""
        assert job.placement is not None
        job.placement = msgspec.structs.replace(job.placement, memory_mib=memory_mib)

    # --- Beside others, and blame ------------------------------------------------------------------

    def share(self, job: domain.Job, other: domain.Job) -> None:
        """The two are on a device together."""
        for one, two in ((job, other), (other, job)):
            one.co_tenants = tuple(dict.fromkeys((*one.co_tenants, two.job_id)))

    def suspect(self, job: domain.Job, evidence: int) -> None:
        """The job may have caused a fatal fault of a GPU."""
        job.counts.fault_evidence += evidence

    def forgive(self, job: domain.Job) -> None:
        """The job has started: earlier failures of hosts no longer count."""
        job.counts.infra_failures, job.avoid = 0, ()

    def avoid(self, job: domain.Job, host_id: domain.HostId) -> None:
        """The job failed on this host, and perhaps the host is why."""
        job.avoid = tuple(dict.fromkeys((*job.avoid, host_id)))[-3:]

    def note_failed_end(self, job: domain.Job, end: domain.FailedEnd) -> None:
        """An attempt ended like this, for reasons of the infrastructure as far as is known."""
        job.failed_end = end

    def count_failure(self, job: domain.Job, *, by_user: bool) -> int:
        """Counts a failed attempt, of the program or of a host; returns how many there are now."""
        if by_user:
            job.counts.user_failures += 1
            return job.counts.user_failures
        job.counts.infra_failures += 1
        return job.counts.infra_failures

    def count_quick_requeue(self, job: domain.Job, *, is_quick: bool) -> int:
        """Counts that a job was put back so soon after its start; returns how often in a row by now."""
        job.counts.quick_requeues = job.counts.quick_requeues + 1 if is_quick else 0
        return job.counts.quick_requeues

    # --- Histories that this journal has lost ------------------------------------------------------

    def take_numbers(self, job: domain.Job, attempt: domain.AttemptNo) -> None:
        """Records that another history has used the attempt numbers up to this one."""
        job.attempts_taken = max(job.attempts_taken, attempt)

    def was_on(self, job: domain.Job, host_id: domain.HostId) -> None:
        """The host keeps files of the job."""
        job.visited = tuple(dict.fromkeys((*job.visited, host_id)))

    def stray_on(self, job: domain.Job, host_id: domain.HostId) -> None:
        """The host is still ending an attempt of the job that this ledger does not know."""
        job.strays = tuple(dict.fromkeys((*job.strays, host_id)))

    def stray_gone(self, job: domain.Job, host_id: domain.HostId) -> None:
        job.strays = tuple(each for each in job.strays if each != host_id)
