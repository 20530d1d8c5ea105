"""What the supervisor of one attempt does, on one host: pure, so that simulations run it unchanged.

Rule: `handle(event, now_s)` is the only way in, and its effects the only way out. No clock, no sockets,
no processes. A job is asked to stop or save only through the two-phase agreement, and only when all its
ranks have said that they can resume; every other job gets SIGTERM, time, and SIGKILL.

    starting -> running -> (leaving ->) clearing -> done

`leaving` means that we have told the processes to go, for the reason in `_cause`; `clearing` that those
we started are gone and what they left behind is being ended.
"""

from __future__ import annotations

from math import inf
from typing import Final, Literal

import msgspec

from cotenant.agent.channel import CompanyNow, GangIn, LeaseNow, SaveNow, StopNow
from cotenant.agent.coordination import MEMBER_PERIOD_S, Coordination, Voice
from cotenant.agent.ends import Cause, Ending, Exit, StartProblem, decide
from cotenant.agent.profiling import Profiling
from cotenant.agent.progress import Progress
from cotenant.agent.records import Order, Result, Status
from cotenant.agent.supervision_edge import (
    AllGone,
    AnyEffect,
    AnyHappening,
    ClearLeftovers,
    CouldNotStart,
    EndRanks,
    Finish,
    Heard,
    Noted,
    OverMemory,
    Publish,
    RankExited,
    Sampled,
    Started,
    TakeSample,
)
from cotenant.agent.words import (
    AnyRankWord,
    Confirm,
    DurableSaid,
    Failed,
    FirstStep,
    Hello,
    Saving,
    Step,
    Stopped,
    Stretch,
)

LOADING_GRACE_S: Final = 5.0
"""Between SIGTERM and SIGKILL for a job that has nothing to lose."""
PLAIN_GRACE_S: Final = 30.0
"""For a script that may want to save by itself on SIGTERM."""
KILL_GRACE_S: Final = 5.0
PEER_GRACE_S: Final = 20.0
"""After one rank failed: time for the others to fail by themselves, with their own words in the log."""
LINGER_S: Final = 20.0
"""A rank that said `stopped` should exit within this."""
SAVE_RETRY_S: Final = 5.0
QUIET_S: Final = 60.0
"""A job that has not said hello for this long does not know the library."""
SAVE_AT_LEASE: Final = 0.6
STOP_AT_LEASE: Final = 0.8
PUBLISH_PERIOD_S: Final = 1.0
KEEP_PERIOD_S: Final = 15.0
ALIVE_DUTY: Final = 0.05
"""A job without the library counts as started if it has used this much of a core lately."""


class Stop(msgspec.Struct, kw_only=True):
    """What the agent wants, all its words taken together."""

    save: bool
    asked_s: float
    until_s: float
    allowed_s: float
    reason: str
    is_asked: bool = False
    retry_s: float = inf

    @property
    def patience_s(self) -> float:
        """Until when a word from ranks elsewhere is waited for."""
        return min(self.until_s, self.asked_s + 2 * MEMBER_PERIOD_S)


class Lease(msgspec.Struct, kw_only=True):
    ends_s: float
    full_s: float
    is_saved: bool = False
    is_judged: bool = False

    @property
    def save_s(self) -> float:
        return self.ends_s - (1.0 - SAVE_AT_LEASE) * self.full_s

    @property
    def stop_s(self) -> float:
        return self.ends_s - (1.0 - STOP_AT_LEASE) * self.full_s


class Supervision:
    """One attempt on one host."""

    def __init__(self, order: Order, now_s: float) -> None:
        self._order = order
        self._now_s = now_s
        self._progress = Progress(order)
        self._coordination = Coordination(order, self._progress)
        self._profiling = Profiling(order, self._progress, self._coordination)
        self._phase: Literal["starting", "running", "leaving", "clearing", "done"] = "starting"
        self._alive = {each.rank for each in order.ranks}
        self._exits: list[Exit] = []
        self._stopped: set[int] = set()
        self._stop: Stop | None = None
        self._lease: Lease | None = None
        self._set_lease(order.lease_s, order.lease_s)
        self._cause: Cause = ""
        self._problem: StartProblem | None = None
        self._over_mib: float | None = None
        self._started_s = now_s
        self._start_judged = False
        self._half_way: Sampled | None = None
        self._sample = Sampled()
        self._save_s = inf
        self._peer_s = inf
        self._linger_s = inf
        self._kill_s = inf
        self._is_news, self._is_important = False, False
        self._published_s, self._kept_s = -inf, -inf
        self._out: list[AnyEffect] = []

    @property
    def status(self) -> Status:
        return self._progress.status

    @property
    def is_done(self) -> bool:
        return self._phase == "done"

    @property
    def is_profiling(self) -> bool:
        """Indicators are wanted with each sample."""
        return self._profiling.is_sampling

    def handle(self, event: AnyHappening, now_s: float) -> list[AnyEffect]:
        """Take in what happened; returns what is to be done, in order."""
        if self._phase == "done":
            return []
        self._now_s = now_s
        self._out = []
        self._take_in(event)
        self._advance()
        self._publish()
        return self._out

    @property
    def next_alarm_s(self) -> float:
        """When to send `Ticked` if nothing else happens before."""
        alarms = [self._kill_s]
        if self._is_news:
            alarms.append(self._published_s + PUBLISH_PERIOD_S)
        if self._phase == "running":
            alarms += [self._peer_s, self._linger_s, self._save_s]
            alarms += [self._coordination.next_alarm_s, self._profiling.next_alarm_s]
            if self._stop is not None and not self._all_stopped:
                alarms += [self._stop.until_s, self._stop.retry_s]
                if self._coordination.waits_for_members:
                    alarms.append(self._stop.patience_s)
            alarms += [] if self._is_start_judged else [self._start_deadline_s]
            if self._lease is not None and not self._lease.is_judged:
                alarms.append(self._lease.stop_s if self._lease.is_saved else self._lease.save_s)
        return min(alarms)

    # --- Taking in ----------------------------------------------------------------------------------

    def _take_in(self, event: AnyHappening) -> None:
        match event:
            case Heard(word=word):
                self._hear(word)
            case Sampled():
                self._sampled(event)
            case RankExited():
                self._exited(event)
            case Started() if self._phase == "starting":
                self._phase, self._started_s = "running", self._now_s
                self._profiling.started(self._now_s)
                self._changed(self._progress.change(started=True))
            case CouldNotStart(problem=problem) if self._phase == "starting":
                self._problem = problem
                self._alive.clear()  # Those that did start are ended as leftovers: they never ran as a gang.
                self._phase = "running"
            case StopNow():
                self._asked_to_stop(event)
            case SaveNow():
                self._save_now()
            case LeaseNow(left_s=left_s, full_s=full_s):
                self._set_lease(left_s, full_s)
            case CompanyNow(alone=alone):
                self._coordination.alone = alone
                self._coordination.report_soon(self._now_s)
            case GangIn():
                self._say(self._coordination.hear(event, self._now_s))
            case OverMemory(used_mib=used_mib):
                self._over_mib = used_mib
                self._leave("memory", 0.0)
                if self._phase == "leaving":
                    self._kill_s = min(self._kill_s, self._now_s)
            case Noted(text=text):
                self._progress.note(text)
                self._changed(True)
            case AllGone():
                self._finish(event)
            case _:  # Ticked, and a start that is told twice.
                pass

    def _hear(self, word: AnyRankWord) -> None:
        progress, coordination, now_s = self._progress, self._coordination, self._now_s
        if not self._is_of(word.rank):
            return
        match word:
            case Hello():
                self._changed(progress.hello(word, self._expected_here(word)))
                coordination.hello(word, now_s)
            case FirstStep(rank=rank, step=step):
                self._changed(progress.first_step(word))
                coordination.saw_step(rank, step, now_s)
                coordination.report_soon(now_s)
                self._profiling.first_step(now_s)
                if self._save_s == inf and coordination.is_first and self._order.checkpoint_every_s > 0:
                    self._save_s = now_s + self._order.checkpoint_every_s
            case Step(rank=rank, step=step):
                self._is_news |= progress.step(word)
                coordination.saw_step(rank, step, now_s)
                self._profiling.stepped(word, now_s)
            case Stretch(rank=rank, step=step):
                self._say(coordination.reached(rank, step, now_s))
                if self._profiling.stretch_over(word, now_s):
                    self._out.append(TakeSample())
            case Saving(rank=rank, step=step):
                self._changed(progress.change(saving=True))
                self._say(coordination.reached(rank, step, now_s))
            case DurableSaid():
                self._changed(progress.durable(word))
            case Confirm():
                self._say(coordination.confirmed(word, now_s))
            case Stopped(rank=rank, step=step):
                self._stopped.add(rank)
                self._changed(progress.change(saving=False, stop_step=step, step=step))
                self._say(coordination.reached(rank, step, now_s))
            case Failed(what=what):
                self._changed(progress.failed(word))
                if (
                    what == "save" and self._stop is not None
                ):  # The job goes on; there may be time to try again.
                    self._stop.retry_s = min(self._stop.retry_s, now_s + SAVE_RETRY_S)

    def _sampled(self, event: Sampled) -> None:
        self._sample = event
        self._is_news |= self._progress.sampled(event.memory_mib, event.duty_cycle)
        self._profiling.sampled(event.samples, event.others_mib)
        half_s = self._started_s + self._order.start_deadline_s / 2
        if self._half_way is None and self._now_s >= half_s:
            self._half_way = event

    def _exited(self, event: RankExited) -> None:
        if event.rank not in self._alive:
            return
        self._alive.discard(event.rank)
        told = self._phase == "leaving"
        exit_ = Exit(rank=event.rank, exit_code=event.exit_code, signal=event.signal, was_told=told)
        self._exits.append(exit_)
        if not told and not exit_.is_good and event.rank not in self._stopped:
            self._peer_s = min(self._peer_s, self._now_s + PEER_GRACE_S)
        if self._order.launch.mode == "worker":
            self._say(self._coordination.exited(event.rank, self._now_s))

    def _asked_to_stop(self, word: StopNow) -> None:
        until_s = self._now_s + word.deadline_s
        if self._stop is None:
            self._stop = Stop(
                save=word.save,
                asked_s=self._now_s,
                until_s=until_s,
                allowed_s=word.deadline_s,
                reason=word.reason,
            )
        else:
            self._stop.until_s = min(self._stop.until_s, until_s)
            if self._stop.save and not word.save:
                self._stop.save, self._stop.reason = False, word.reason
        if self._phase == "leaving" and not word.save:
            self._kill_s = min(self._kill_s, self._now_s + self._grace_s())

    def _save_now(self) -> None:
        if self._phase == "running" and self._stop is None and self._coordination.can_save:
            self._say(self._coordination.ask_to_save(self._now_s))
            if self._save_s < inf:
                self._save_s = self._now_s + self._order.checkpoint_every_s

    def _set_lease(self, left_s: float | None, full_s: float | None) -> None:
        full_s = full_s or self._order.lease_s
        if left_s is None or full_s is None:
            self._lease = None
            return
        lease = Lease(ends_s=self._now_s + left_s, full_s=full_s)
        # A word that says nothing new (the agent is itself cut off) must not make us save again.
        if self._lease is not None and self._now_s >= lease.save_s:
            lease.is_saved, lease.is_judged = self._lease.is_saved, self._lease.is_judged
        self._lease = lease

    def _is_of(self, rank: int) -> bool:
        """Whether that rank can be here. A launcher starts ranks that we do not know."""
        order = self._order
        return order.launch.mode != "worker" or any(each.rank == rank for each in order.ranks)

    def _expected_here(self, hello: Hello) -> int:
        """How many ranks of this host must say hello. A launcher may start more than there are devices."""
        if len(self._order.gang) == 1:
            return hello.world_size
        return next(len(m.devices) for m in self._order.gang if m.host_id == self._order.host_id)

    def _say(self, voice: Voice) -> None:
        self._out += voice
        if self._coordination.stop_step is not None and not self._stopped:
            self._changed(self._progress.change(stop_step=self._coordination.stop_step))

    # --- Going on -----------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Whatever is due. Each judgement is made from the state alone; the more important come first."""
        if self._phase in ("running", "leaving") and not self._alive:
            self._phase, self._kill_s = "clearing", inf
            self._out.append(ClearLeftovers())
        if self._phase == "running":
            self._judge_stop()
        if self._phase == "running":
            self._judge_lease()
        if self._phase == "running":
            self._judge_start()
        if self._phase == "running" and self._now_s >= self._peer_s:
            self._leave("peer", KILL_GRACE_S)
        if self._phase == "running":
            self._judge_linger()
        if self._phase == "running":
            self._keep_agreeing()
        self._say(
            self._profiling.advance(self._now_s, may_ask=self._phase == "running" and self._stop is None)
        )
        self._tell_profile(is_over=self._phase == "clearing")
        if self._phase == "leaving" and self._now_s >= self._kill_s:
            self._out.append(EndRanks(force=True))
            self._kill_s = self._now_s + KILL_GRACE_S  # Again, for what was forked meanwhile.

    def _leave(self, cause: Cause, grace_s: float) -> None:
        if self._phase != "running":
            return
        self._phase, self._cause = "leaving", cause
        self._kill_s = self._now_s + grace_s
        self._out.append(EndRanks(force=False))

    def _grace_s(self) -> float:
        """Between SIGTERM and SIGKILL, when the job is to end without a save."""
        if self._progress.hellos and self.status.first_step is None:
            return LOADING_GRACE_S
        allowed_s = self._stop.allowed_s if self._stop is not None else PLAIN_GRACE_S
        return max(1.0, min(allowed_s, PLAIN_GRACE_S))

    def _judge_stop(self) -> None:
        stop = self._stop
        if stop is None:
            return
        if self._all_stopped:
            return  # Its state is durable, and it is on its way out; `_judge_linger` waits for it.
        if stop.save and self._coordination.waits_for_members and self._now_s < stop.patience_s:
            return
        if not stop.save or not self._coordination.can_save:
            self._leave("stop", self._grace_s())
        elif self._now_s >= stop.until_s:
            self._leave("deadline", KILL_GRACE_S)
        elif not stop.is_asked or self._now_s >= stop.retry_s:
            stop.is_asked, stop.retry_s = True, inf
            self._say(self._coordination.ask_to_stop(self._now_s))
        elif self._coordination.gave_up("stop"):
            self._leave("no-agreement", KILL_GRACE_S)

    def _judge_lease(self) -> None:
        lease = self._lease
        if lease is None or lease.is_judged:
            return
        if not lease.is_saved and self._now_s >= lease.save_s:
            lease.is_saved = True
            self._save_now()
        if self._now_s >= lease.stop_s:
            lease.is_judged = True
            if self._may_run_elsewhere:
                self._leave("lease", min(KILL_GRACE_S, (1.0 - STOP_AT_LEASE) / 2 * lease.full_s))

    @property
    def _may_run_elsewhere(self) -> bool:
        """Whether the controller could requeue the job when the lease ends: only if it can resume.

        Before the first step that may not be known here yet, and nothing is lost by stopping. A job that was
        started from a checkpoint goes back to it elsewhere, whatever it says of itself now.
        """
        if self._order.resume_step > 0:
            return True
        if self.status.resumable is not None:
            return self.status.resumable
        if self.status.first_step is not None:
            return False
        return bool(self._progress.hellos) or self._now_s < self._started_s + QUIET_S

    @property
    def _start_deadline_s(self) -> float:
        return self._started_s + self._order.start_deadline_s

    @property
    def _is_start_judged(self) -> bool:
        return self._start_judged or self.status.first_step is not None

    def _judge_start(self) -> None:
        """A job that hangs at start. Without the library there is no first step: work or output count."""
        if self._is_start_judged or self._now_s < self._start_deadline_s:
            return
        self._start_judged = True
        half = self._half_way
        if half is not None and not self._progress.hellos:
            used_s = self._sample.cpu_s - half.cpu_s
            if used_s >= ALIVE_DUTY * self._order.start_deadline_s / 2:
                return
            if self._sample.output_bytes > half.output_bytes:
                return
        self._leave("start-deadline", KILL_GRACE_S)

    @property
    def _all_stopped(self) -> bool:
        hellos = self._progress.hellos
        return bool(hellos) and hellos.keys() <= self._stopped

    def _judge_linger(self) -> None:
        if self._all_stopped:
            self._linger_s = min(self._linger_s, self._now_s + LINGER_S)
        if self._now_s >= self._linger_s:
            self._leave("linger", KILL_GRACE_S)

    def _keep_agreeing(self) -> None:
        if self._now_s >= self._save_s:
            self._save_s = self._now_s + self._order.checkpoint_every_s
            self._save_now()
        self._say(self._coordination.tick(self._now_s))
        if self._coordination.gave_up("save"):
            self._progress.note("save: the ranks could not agree on a step; the next one is tried as planned")
            self._changed(True)

    # --- Saying so ----------------------------------------------------------------------------------

    def _tell_profile(self, *, is_over: bool) -> None:
        profile = self._profiling.take_result(is_over=is_over)
        if profile is not None:
            fields = {
                "profile": profile,
                "profile_no": self.status.profile_no + 1,
                "profile_complete": self._profiling.is_complete,
            }
            self._changed(self._progress.change(**fields))

    def _changed(self, changed: bool) -> None:
        self._is_news |= changed
        self._is_important |= changed

    def _publish(self) -> None:
        """Facts at once, progress about once a second."""
        if not self._is_news or self._phase == "done":
            return
        if not self._is_important and self._now_s < self._published_s + PUBLISH_PERIOD_S:
            return
        keep = self._is_important or self._now_s >= self._kept_s + KEEP_PERIOD_S
        self._published_s = self._now_s
        self._kept_s = self._now_s if keep else self._kept_s
        self._is_news, self._is_important = False, False
        self._out.append(Publish(status=self.status, keep=keep))

    def _finish(self, gone: AllGone) -> None:
        if self._phase != "clearing":
            return
        order, status = self._order, self.status
        verdict = decide(self._ending(gone))
        self._phase = "done"
        self._out.append(
            Finish(
                result=Result(
                    job_id=order.job_id,
                    attempt=order.attempt,
                    outcome=verdict.outcome,
                    exit_code=verdict.exit_code,
                    detail=verdict.detail,
                    step=status.step,
                    workdir_missing=verdict.workdir_missing,
                    out_of_memory=verdict.out_of_memory,
                    durable=status.durable,
                    first_step=status.first_step,
                    resumable=status.resumable,
                    accumulates=status.accumulates,
                    profile=status.profile,
                    profile_no=status.profile_no,
                    profile_complete=status.profile_complete,
                    accumulates_note=status.accumulates_note,
                    resumable_note=status.resumable_note,
                )
            )
        )

    def _ending(self, gone: AllGone) -> Ending:
        order, status, stop = self._order, self.status, self._stop
        waited_for_start = self._cause == "start-deadline"
        return Ending(
            host_id=order.host_id,
            workdir=order.launch.workdir,
            command=order.launch.argv[0] if order.launch.argv else "",
            port=order.master_port,
            exits=tuple(self._exits),
            problem=self._problem,
            cause=self._cause,
            stop_reason=stop.reason if stop is not None else "",
            stop_step=status.stop_step,
            has_stopped=self._has_stopped,
            durable=status.durable,
            failed=status.failed,
            deadline_s=order.start_deadline_s if waited_for_start or stop is None else stop.allowed_s,
            host_memory_mib=order.host_memory_mib,
            on_cuda=any(rank.cuda_uuids for rank in order.ranks),
            memory_cap_mib=order.memory_cap_mib,
            memory_mib=self._over_mib,
            oom_kills=gone.oom_kills,
            host_oom_kills=gone.host_oom_kills,
            tails=gone.tails,
            knows_saves=order.is_first_host,
        )

    @property
    def _has_stopped(self) -> bool:
        """The job's own word, which counts more than exit codes: torchrun exits 1 after its workers stopped.

        If the last datagrams were lost, a good end behind a durable agreed step is the same.
        """
        if self._all_stopped:
            return True
        ended_well = bool(self._exits) and all(each.is_good for each in self._exits)
        at = self._coordination.stop_step
        return ended_well and (bool(self._stopped) or (at is not None and self._progress.is_durable_at(at)))
