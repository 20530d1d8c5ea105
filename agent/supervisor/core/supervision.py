"""What the supervisor of one attempt does, on one host: pure, so that simulations run it unchanged.

Rule: `handle(event, now_s)` is the only way in, and its effects the only way out. No clock, no sockets,
no processes. It asks a job to stop or save only through the two-phase agreement, and only when all its ranks
have said that they can resume; every other job gets SIGTERM, time, and SIGKILL.

    starting -> running -> (leaving ->) clearing -> done

`leaving` means that we have told the processes to go, for the reason in `_cause`; `clearing` that those
we started are gone and what they left behind is being ended.
"""

from __future__ import annotations

from math import inf
from typing import Literal

import msgspec

from cotenant.agent.ipc import channel, records
from cotenant.agent.supervisor.core import activity, edge, exit_classifier, profiling, rank_messages, stopping
from cotenant.agent.supervisor.core.coordination import Coordination, Voice
from cotenant.agent.supervisor.core.exits import ExitCause, StartProblem
from cotenant.agent.supervisor.core.printed import PrintedFacts
from cotenant.agent.supervisor.core.progress import Publishing, RankProgress
from cotenant.agent.supervisor.core.rank_tracker import RankTracker, conclude
from cotenant.agent.supervisor.core.watchdog import StartLimit, Watchdog
from cotenant.controller.domain import SecretValues, texts


class Supervision:
    """The supervision of one attempt on one host."""

    def __init__(self, order: records.Order, now_s: float) -> None:
        self._order = order
        self._now_s = now_s
        self._progress = RankProgress(order)
        self._coordination = Coordination(order, self._progress)
        self._profiling = profiling.Profiling(order, self._progress, self._coordination)
        self._departure = stopping.Departure(is_client=bool(order.mps))
        self._watchdog = Watchdog(order.watch, judges=order.is_first_host)
        self._start = StartLimit(order.start_deadline_s, now_s)
        self._phase: Literal["starting", "running", "leaving", "clearing", "done"] = "starting"
        self._roll = RankTracker(order)
        self._stop: stopping.StopWish | None = None
        self._lease: stopping.LeaseLimit | None = None
        self._set_lease(order.lease_s, order.lease_s)
        self._cause: ExitCause = ""
        self._problem: StartProblem | None = None
        self._over_mib: float | None = None
        self._room_mib: int | None = None
        self._activity = activity.ProcessActivity()
        self._secrets = SecretValues(order.secrets.values())
        self._save_s = inf
        self._publishing = Publishing()
        self._out: list[edge.AnySupervisorEffect] = []
        for note in order.notes:
            self._progress.note(note)

    @property
    def status(self) -> records.Status:
        return self._progress.status

    @property
    def is_done(self) -> bool:
        return self._phase == "done"

    @property
    def is_profiling(self) -> bool:
        """Indicators are wanted with each sample."""
        return self._profiling.is_sampling

    def handle(self, event: edge.AnyHappening, now_s: float) -> list[edge.AnySupervisorEffect]:
        """Take in what happened; returns what is to be done, in order."""
        if self._phase == "done":
            return []
        self._now_s = now_s
        self._out = []
        self._take_in(self._without_secrets(event) if self._order.secrets else event)
        self._advance()
        if not self.is_done:
            self._out += self._publishing.due(self.status, now_s)
        return self._out

    @property
    def next_alarm_s(self) -> float:
        """When to send `SupervisorTicked` if nothing else happens before."""
        alarms = [self._departure.next_alarm_s, self._publishing.next_alarm_s]
        if self._phase == "running":
            alarms += [self._roll.next_alarm_s, self._save_s]
            alarms += [self._coordination.next_alarm_s, self._profiling.next_alarm_s]
            alarms += [self._watchdog.next_alarm_s, self._start.next_alarm_s(has_stepped=self._has_stepped)]
            if self._stop is not None and not self._all_stopped():
                alarms += self._stop.alarms(self._coordination)
            if self._lease is not None:
                alarms.append(self._lease.next_alarm_s)
        return min(alarms)

    def _without_secrets(self, event: edge.AnyHappening) -> edge.AnyHappening:
        """What was said and printed, without the values of secrets: nothing that is made of it has one. What
        names something of ours stays. A line whose beginning is lost may begin within one: it is left out."""
        hide = self._secrets.hide
        match event:
            case edge.AllGone(tails=tails):
                whole = {
                    rank: tail
                    if len(tail.encode(errors="replace")) < exit_classifier.TAIL_BYTES
                    else tail.partition("\n")[2]
                    for rank, tail in tails.items()
                }
                return texts.change_texts(msgspec.structs.replace(event, tails=whole), hide)
            case edge.Sampled(printed=printed):
                return msgspec.structs.replace(event, printed=texts.change_texts(printed, hide))
            case edge.RankMessageCame(word=rank_messages.DurableSaid(note=note) as word):
                return edge.RankMessageCame(word=msgspec.structs.replace(word, note=hide(note)))
            case edge.RankMessageCame() | edge.Noted() | edge.CouldNotStart() | edge.Started():
                return texts.change_texts(event, hide)
            case _:
                return event

    # --- Taking in ----------------------------------------------------------------------------------

    def _take_in(self, event: edge.AnyHappening) -> None:
        match event:
            case edge.RankMessageCame(word=word):
                self._hear(word)
            case edge.Sampled():
                self._note_sample(event)
            case edge.RankExited():
                self._note_exit(event)
            case edge.Started(launch=launch, launch_why=why) if self._phase == "starting":
                self._phase, self._start.started_s = "running", self._now_s
                self._profiling.begin(self._now_s)
                self._publishing.note_change(
                    self._progress.change(started=True, launch=launch, launch_why=texts.one_line(why))
                )
            case edge.CouldNotStart(problem=problem) if self._phase == "starting":
                self._problem = problem
                # Those that did start are ended as leftovers: they never ran as a gang.
                self._roll.alive.clear()
                self._phase = "running"
            case channel.StopNow():
                self._asked_to_stop(event)
            case channel.SaveNow():
                self._save_now()
            case channel.LeaseNow(left_s=left_s, full_s=full_s):
                self._set_lease(left_s, full_s)
            case channel.CoTenantsChanged(alone=alone, room_mib=room_mib):
                self._coordination.alone = alone
                self._hold_to(room_mib)
                self._coordination.report_soon(self._now_s)
            case channel.PaceNow():
                self._out.append(edge.SetPace(pace=event))
            case channel.TellNow(text=text):
                self._out.append(edge.WriteWord(text=texts.one_line(text)))
            case channel.GangIn():
                self._say(self._coordination.hear(event, self._now_s))
            case edge.OutsideSignal(number=number):
                self._roll.note_outside(number, self._now_s)
            case edge.OverMemory(used_mib=used_mib):
                self._over_mib = used_mib
                self._leave(stopping.Leave(cause="memory", grace_s=0.0))
                if self._phase == "leaving":
                    self._departure.hurry(self._now_s)
            case edge.ClientsTerminated(outcomes=outcomes, problem=problem):
                if trouble := stopping.unclean(outcomes, problem):
                    self._progress.note(trouble)
                    self._publishing.note_change(True)
                self._out += self._departure.note_termination(outcomes, problem, self._now_s)
            case edge.Noted(text=text):
                self._progress.note(text)
                self._publishing.note_change(True)
            case edge.AllGone():
                self._finish(event)
            case _:  # Ticked, and a start that is told twice.
                pass

    def _hear(self, word: rank_messages.AnyRankWord) -> None:
        progress, coordination, now_s = self._progress, self._coordination, self._now_s
        if not self._roll.is_of(word.rank):
            return
        match word:
            case rank_messages.RankHello():
                self._publishing.note_change(progress.hello(word, self._roll.expected_here(word)))
                coordination.hello(word, now_s)
            case rank_messages.RankWatched() if not (self._has_stepped or self._start.is_judged):
                self._publishing.note_change(progress.change(watched=True))
            case rank_messages.FirstStepReached(rank=rank, step=step):
                self._publishing.note_change(progress.first_step(word))
                coordination.saw_step(rank, step, now_s)
                coordination.report_soon(now_s)
                self._profiling.first_step(now_s)
                self._watchdog.note_step(step)
                every_s = self._order.start.checkpoint_every_s
                is_saved = not any(hello.leaves_only for hello in progress.hellos.values())
                if self._save_s == inf and coordination.is_first and every_s > 0 and is_saved:
                    self._save_s = now_s + every_s
            case rank_messages.StepDone(rank=rank, step=step):
                self._publishing.note_progress(progress.step(word))
                coordination.saw_step(rank, step, now_s)
                self._profiling.note_step(word, now_s)
                self._watchdog.note_step(step)
            case rank_messages.LengthSeen():
                self._publishing.note_progress(progress.length(word))
            case rank_messages.BatchSeen():
                self._publishing.note_progress(progress.batch(word))
            case rank_messages.MemorySeen():
                self._profiling.note_memory(word, now_s)
            case rank_messages.StackReply(rank=rank, look=number, place=place):
                self._watchdog.stands(rank, number, place)
            case rank_messages.Saving(rank=rank, step=step):
                self._watchdog.saves(now_s)
                self._publishing.note_change(progress.change(saving=True))
                self._say(coordination.note_arrival(rank, step, now_s))
            case rank_messages.DurableSaid():
                self._watchdog.note_save()
                self._publishing.note_change(progress.durable(word))
            case rank_messages.StepConfirmed():
                self._say(coordination.note_confirmation(word, now_s))
            case rank_messages.Stopped(rank=rank, step=step):
                self._roll.stopped.add(rank)
                self._publishing.note_change(progress.change(saving=False, stop_step=step, step=step))
                self._say(coordination.note_arrival(rank, step, now_s))
            case rank_messages.RankFailed(what="resume") if self._phase == "leaving" or self._is_interrupted:
                pass  # What we have told it to do is not what its script does by itself.
            case rank_messages.RankFailed(what=what):
                self._publishing.note_change(progress.note_failure(word))
                if what == "save":
                    self._watchdog.note_save()
                    if self._stop is not None:  # The job goes on; there may be time to try again.
                        self._stop.retry_s = min(self._stop.retry_s, now_s + stopping.SAVE_RETRY_S)

    def _note_sample(self, event: edge.Sampled) -> None:
        self._start.note_sample(event, self._now_s)
        self._watchdog.used(event.cpu_s)
        self._activity.note_sample(event, self._now_s)
        is_news = self._progress.note_sample(event.memory_mib, event.duty_cycle)
        is_news |= self._note_printed(event.printed)
        is_news |= self._progress.change(activity=self._activity.count, held_up=event.is_stopped)
        self._publishing.note_progress(is_news)
        self._profiling.note_samples(event.samples, event.others_mib)

    def _note_printed(self, printed: PrintedFacts) -> bool:
        self._publishing.note_change(self._progress.note_link(printed.link))
        self._publishing.note_change(self._progress.note_lost(printed.lost))
        return self._progress.note_printed(printed.metrics)

    def _note_exit(self, event: edge.RankExited) -> None:
        told = self._phase == "leaving" or self._is_interrupted
        known = self._roll.note_exit(event, self._now_s, told=told)
        if known and self._order.launch.mode != "host":
            self._say(self._coordination.note_exit(event.rank, self._now_s))

    def _asked_to_stop(self, word: channel.StopNow) -> None:
        if self._stop is None:
            self._stop = stopping.StopWish.ask(word, self._now_s)
        else:
            self._stop.asked_again(word, self._now_s)

    def _save_now(self) -> None:
        if self._phase == "running" and self._stop is None and self._coordination.can_save:
            self._say(self._coordination.ask_to_save(self._now_s))
            if self._save_s < inf:
                self._save_s = self._now_s + self._order.start.checkpoint_every_s

    def _set_lease(self, left_s: float | None, full_s: float | None) -> None:
        if self._phase == "running" and self._lease is not None and self._lease.is_over(self._now_s):
            self._judge_lease()  # We were frozen: a renewal that comes after the end does not undo it.
        full_s = full_s or self._order.lease_s
        if left_s is None or full_s is None:
            self._lease = None
            return
        before, ends_s = self._lease, self._now_s + left_s
        lease = stopping.LeaseLimit(ends_s=ends_s, full_s=full_s)
        self._lease = lease if before is None else before.renew(ends_s, full_s, self._now_s)

    def _say(self, voice: Voice) -> None:
        self._out += voice
        if self._coordination.stop_step is not None and not self._roll.stopped:
            self._publishing.note_change(self._progress.change(stop_step=self._coordination.stop_step))

    # --- Going on -----------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Does whatever is due. Each judgement is made from the state alone; the more important come
        first."""
        if self._phase in ("running", "leaving") and not self._roll.alive:
            self._phase = "clearing"
            self._out += self._departure.clear(self._now_s)
        for judge in (
            self._judge_stop,
            self._judge_lease,
            self._judge_start,
            self._judge_peers,
            self._judge_linger,
            self._judge_silence,
            self._keep_agreeing,
        ):
            if self._phase == "running":
                judge()
        self._profiling.advance(self._now_s)
        self._tell_profile(is_over=self._phase == "clearing")
        self._out += self._departure.advance(self._now_s)
        if self._progress.change(farewell=self._departure.record):
            self._publishing.note_change(True)

    def _leave(self, leave: stopping.Leave, *, terminate_s: float = stopping.TERMINATE_S) -> None:
        if self._phase != "running":
            return
        self._phase, self._cause = "leaving", leave.cause
        self._out += self._departure.begin(
            self._now_s, leave.grace_s, terminate_s=terminate_s, aborts=leave.cause == "hang"
        )

    @property
    def _has_stepped(self) -> bool:
        return self.status.first_step is not None

    @property
    def _is_loading(self) -> bool:
        """Whether the job knows the library and has made no step: there is nothing to lose."""
        return bool(self._progress.hellos) and not self._has_stepped

    @property
    def _is_interrupted(self) -> bool:
        return self._stop is not None and self._stop.is_interrupted

    def _judge_stop(self) -> None:
        """Judges whether the job stops now. A job whose state is durable is about to leave; `_judge_linger`
        waits for it."""
        if self._stop is None or self._all_stopped():
            return
        verdict = self._stop.judge(self._coordination, self._now_s, is_loading=self._is_loading)
        if isinstance(verdict, stopping.Leave):
            self._leave(verdict)
        elif verdict == "ask":
            self._say(self._coordination.ask_to_stop(self._now_s, finish=self._stop.finish))
        elif verdict == "interrupt":
            self._out.append(edge.InterruptRanks())

    def _judge_lease(self) -> None:
        lease = self._lease
        for due in lease.due(self._now_s) if lease is not None else ():
            assert lease is not None
            if due == "save":
                self._save_now()
            elif stopping.may_run_elsewhere(
                self._order,
                self.status,
                has_said_hello=bool(self._progress.hellos),
                quiet_s=self._now_s - self._start.started_s,
            ):
                self._leave(
                    stopping.Leave(cause="lease", grace_s=lease.grace_s(self._now_s)),
                    terminate_s=lease.terminate_s,
                )

    def _judge_start(self) -> None:
        has_said_hello = bool(self._progress.hellos)
        if self._start.hangs(self._now_s, has_stepped=self._has_stepped, has_said_hello=has_said_hello):
            self._leave(stopping.Leave(cause="start-deadline", grace_s=stopping.KILL_GRACE_S))
        elif self._start.is_judged:  # It is alive and may never make a step: nobody waits for one any more.
            self._publishing.note_change(self._progress.change(watched=False))

    def _judge_peers(self) -> None:
        leave = self._roll.judge_peers(self._now_s)
        if leave is not None:
            self._leave(leave)

    def _all_stopped(self) -> bool:
        return self._roll.all_stopped(self._progress.hellos)

    def _judge_linger(self) -> None:
        leave = self._roll.judge_linger(self._progress.hellos, self._now_s)
        if leave is not None:
            self._leave(leave)

    def _judge_silence(self) -> None:
        """Judges whether the job hangs. A job that stops, leaves, or has lost its controller has limits of
        its own."""
        lease_runs_out = self._lease is not None and self._now_s >= self._lease.save_s
        going = self._stop is not None or bool(self._roll.stopped) or self._roll.has_failed
        hellos, progress = self._progress.hellos, self._progress
        words = self._watchdog.advance(
            self._now_s,
            ranks=frozenset(hellos) if all(each.looks for each in hellos.values()) else frozenset(),
            step_s=progress.step_s,
            steps=progress.steps_measured,
            is_suspended=self.status.held_up or lease_runs_out or going,
            is_alone=self._coordination.is_alone,
            far_still_s=self._coordination.far_still_s(self._now_s),
        )
        self._coordination.still_s = self._watchdog.still_s
        if "look" in words:
            self._out += [
                edge.TellRank(rank=rank, data=rank_messages.look(self._watchdog.look))
                for rank in sorted(hellos)
            ]
        if "dump" in words:
            self._out.append(edge.DumpStacks())
        if "hang" in words:
            self._leave(stopping.Leave(cause="hang", grace_s=stopping.KILL_GRACE_S))

    def _hold_to(self, room_mib: int | None) -> None:
        """Co-tenants have come to a job that started without a limit, or have gone."""
        if room_mib != self._room_mib:
            self._room_mib = room_mib
            told = rank_messages.room(room_mib)
            self._out += [edge.TellRank(rank=rank, data=told) for rank in sorted(self._progress.hellos)]

    def _keep_agreeing(self) -> None:
        if self._now_s >= self._save_s:
            self._save_s = self._now_s + self._order.start.checkpoint_every_s
            self._save_now()
        self._say(self._coordination.tick(self._now_s))
        if self._coordination.gave_up("save"):
            self._progress.note("save: the ranks could not agree on a step; the next one is tried as planned")
            self._publishing.note_change(True)

    # --- Saying so ----------------------------------------------------------------------------------

    def _tell_profile(self, *, is_over: bool) -> None:
        profile = self._profiling.take_result(is_over=is_over)
        if profile is not None:
            fields = {
                "profile": profile,
                "profile_no": self.status.profile_no + 1,
                "profile_complete": self._profiling.is_complete,
            }
            self._publishing.note_change(self._progress.change(**fields))

    def _finish(self, gone: edge.AllGone) -> None:
        if self._phase != "clearing":
            return
        self._phase = "done"
        self._note_printed(gone.printed)
        stop_step, hellos = self._coordination.stop_step, self._progress.hellos
        goes_on = self._stop is not None and self._stop.finish  # Then its exit says how its script ended.
        durable = stop_step is not None and not goes_on and self._progress.is_durable_at(stop_step)
        ending = exit_classifier.Ending(
            order=self._order,
            status=self.status,
            gone=gone,
            exits=tuple(self._roll.exits),
            problem=self._problem,
            cause=self._cause,
            stop=self._stop,
            has_stopped=self._roll.has_stopped(hellos, is_durable_there=durable),
            outside=self._roll.outside,
            silent_s=self._watchdog.silent_s,
            over_mib=self._over_mib,
        )
        unclean = self._departure.is_unclean
        self._out.append(edge.Finish(result=conclude(ending, unclean=unclean)))
