"""The simulated world: hosts and jobs that obey the engine, under a virtual clock.

Rule: the world knows the truth (durations, interference, failures) and decides nothing. It is pure: what
happens next follows from the workload, the commands and the seed; it reads no clock and no file.

**Order at one instant**: what had been going on ends first (ranks below, ties by row), then jobs arrive,
then the engine's alarms ring: a decision sees all that has happened by then.

**No deletions from the heap.** Whatever changes a job's course gives it a new ticket; an entry whose ticket
is not the job's any more is skipped when it comes up. Arrivals are merged from the columns and never enter.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Final

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.knowledge import OBSERVATIONS
from cotenant.controller.sim.world.devices import Devices, part_on, wait_s
from cotenant.controller.sim.world.jobs import RowSpecs, steps_in
from cotenant.controller.sim.world.outcome import cells
from cotenant.controller.sim.world.physics import BOUND_LOST_S, FailureTimes, Physics, ratio_row
from cotenant.controller.sim.world.run import (
    DIES,
    LEFT,
    LOADS,
    SAVES,
    TRAINS,
    WAITS,
    Doing,
    JobRun,
    attempt_ended_event,
    bound_lost,
    durable,
    first_step,
    hello,
    progress,
)
from cotenant.controller.sim.world.workload import Workload

NEVER: Final = math.inf
REPORTS: Final = OBSERVATIONS
"""Reports after a change, as many as make a verdict; those that follow would say the same."""
LEAVES, FIRST_STEP, HOST, TOLD, REPORT, TELL, LOST = range(7)
"""Kinds of heap entries (at_s, rank, row, ticket), in their order at one instant. LEAVES: the work is done,
or a stopped attempt has left its devices."""


class World:
    """Call `next_event`, hand the event to the engine, let the world `obey` the answer."""

    def __init__(
        self,
        workload: Workload,
        specs: RowSpecs,
        devices: Devices,
        hosts: Sequence[domain.HostReport],
        physics: Physics,
        failing: FailureTimes | None,
        checkpoint_every_s: float,
    ) -> None:
        self.now_s, self.last_end_s = 0.0, 0.0
        self.done: JobRun | None = None
        """The run that ended with the event just given out."""
        self.compute_requests: list[domain.ComputeRequest] = []
        """Computations asked for; the driver takes them, and tells the answer `charge_s` later."""
        self.devices = devices
        self._specs, self._hosts, self._failing = specs, list(hosts), failing
        self._row_of = specs.row_of
        self._jobs, self._arrived = len(workload), 0
        self._submit_s = cells(workload.submit_s)
        self._duration_s = cells(workload.time_on_fewest_s(workload.duration_s))
        self._speedups = workload.speedups
        self._load_s, self._pause_s = cells(workload.load_s), cells(workload.pause_s)
        self._model, self._gpus = cells(workload.model), cells(workload.gpus)
        if physics.sharing.is_on:
            models = len(workload.models)
            self._model = [
                ratio_row(model, hp, models)
                for model, hp in zip(self._model, workload.hp.tolist(), strict=True)
            ]
        self._arrives_s = self._submit_s[0] if self._jobs else NEVER
        self._knowledge, self._tells, self._resumes = workload.knowledge, workload.tells, workload.resumes
        self._says_hello = not workload.knowledge.is_complete
        self._kill_s, self._observe_s, self.charge_s = physics.kill_s, physics.observe_s, physics.charge_s
        self._saves = physics.on_preempt == "save"
        self._loads_contend = physics.load_duty > 0.0
        self._every_s = checkpoint_every_s if self._saves else 0.0
        self.arriving_s, self.arriving_gpu_s = 0.0, 0.0
        """How long jobs arrived, and the time with at least one tenant of all devices by then."""
        self._runs: dict[int, JobRun] = {}
        """Jobs that have been launched and have not finished."""
        self._heap: list[tuple[float, int, int, int]] = []
        self._ready: deque[tuple[ev.AnyEvent, JobRun | None]] = deque()
        """More reports of this instant, in order; each changes the devices when the engine gets it."""
        self._told: dict[int, ev.AnyEvent] = {}
        self._ticket = 0
        self._down: set[int] = set()
        self.had_it_waited_s: dict[int, float] = {}
        """Row -> the JCT that a job would have had if it had not become a co-tenant when it first did, but
        waited for devices of its own (see `devices.py`)."""
        if failing is not None:
            for number in range(len(hosts)):
                self._push(failing.next_s(number), HOST, number)

    def take_over(self, now_s: float, runs: Sequence[JobRun], arrived: int) -> None:
        """Begin in the middle, at `now_s`: so many rows have arrived, of which these were launched before. A
        run that loads or leaves its devices has still `due_s` to do so."""
        self.now_s, self._arrived = now_s, arrived
        self._arrives_s = self._submit_s[arrived] if arrived < self._jobs else NEVER
        for run in runs:
            self._runs[run.row] = run
            if run.gang:
                run.shared = self.devices.occupy(run, run.gang, now_s)
        for run in runs:
            if not run.gang:
                continue
            beside = self.devices.co_tenants(run, run.gang)
            run.shared = bool(beside)
            due_s = run.due_s
            if run.doing is TRAINS:
                if beside:
                    run.slowdown = self.devices.slowdown(run)
                    self._will_report(run)
                due_s = float(self._duration_s[run.row]) * run.slowdown
            run.load_left_s, run.paced_s = due_s, now_s
            run.ticket = self._push(now_s + due_s, FIRST_STEP if run.doing is LOADS else LEAVES, run.row)

    # --- What happens ------------------------------------------------------------------------------

    def next_event(self, alarm_s: float | None) -> ev.AnyEvent | None:
        """The next thing to tell the engine, whose next alarm is at `alarm_s`; moves the clock. None: nothing
        will ever happen again."""
        self.done = None
        if self._ready:
            return self._next_ready()
        heap, runs = self._heap, self._runs
        before_s = arrives_s = self._arrives_s
        if alarm_s is not None and alarm_s < arrives_s:
            before_s = alarm_s
        while heap and heap[0][0] <= before_s:
            at_s, rank, row, ticket = heappop(heap)
            if rank <= FIRST_STEP:
                if row in runs and runs[row].ticket == ticket:
                    self.now_s = at_s
                    return self._first_step(runs[row]) if rank else self._leaves(runs[row])
            elif (event := self._rare(at_s, rank, row, ticket)) is not None:
                return event
        if before_s < arrives_s:
            self.now_s = max(self.now_s, before_s)
            return ev.AlarmRang()
        return self._arrival() if arrives_s < NEVER else None

    def _arrival(self) -> ev.JobArrived:
        row = self._arrived
        self.now_s = self._arrives_s
        self._arrived = after = row + 1
        if after < self._jobs:
            self._arrives_s = self._submit_s[after]
        else:
            self._arrives_s = NEVER
            self.devices.count_to(self.now_s)
            self.arriving_s, self.arriving_gpu_s = self.now_s, self.devices.busy_gpu_s
        return ev.JobArrived(spec=self._specs.spec(row))

    def _rare(self, at_s: float, rank: int, row: int, ticket: int) -> ev.AnyEvent | None:
        """Handles events that are not part of every job's life; None if the event is out of date."""
        if rank >= REPORT:
            return self._reports(at_s, rank, self._runs.get(row), ticket)
        self.now_s = at_s
        if rank == TOLD:
            return self._told.pop(ticket)
        return self._host_returns(row) if row in self._down else self._host_fails(row)

    def _reports(self, at_s: float, rank: int, run: JobRun | None, ticket: int) -> ev.AnyEvent | None:
        if rank == LOST:
            other = self.devices.loses_bound_to(run) if run is not None and ticket == run.lost else None
            if run is None or other is None:
                return None
            self.now_s = at_s
            return bound_lost(run, other)
        if run is None or ticket not in (run.report, run.tell) or run.doing is not TRAINS:
            return None
        self.now_s = at_s
        run.settle(at_s, self._every_s)
        if rank == REPORT:
            run.reports -= 1
            if run.reports and self.devices.co_tenants(run, run.gang):
                run.report = self._push(at_s + self._observe_s, REPORT, run.row)
        elif self._knowledge.known == "progress" and (not self._tells or self._tells[run.row]):
            return progress(run, steps_in(self._duration_s[run.row]))
        else:  # The engine learns from the next one, at twice the time, that its guess was too low.
            run.tell = self._push(at_s + run.ran_s - run.began_ran_s, TELL, run.row)
        return progress(run)

    def _next_ready(self) -> ev.AnyEvent:
        event, run = self._ready.popleft()
        if type(event) is ev.AttemptEnded:
            assert run is not None
            self._vacate(run, event.host_id)
        elif type(event) is ev.HostLost:
            self._host_is_gone(event.host_id)
        return event

    def _first_step(self, run: JobRun) -> ev.AnyEvent:
        now_s, row = self.now_s, run.row
        run.loaded_s += now_s - run.since_s
        run.doing, run.since_s, run.began_ran_s = TRAINS, now_s, run.ran_s
        left_s = self._duration_s[row] - run.work_s
        if run.shared or self._speedups:
            run.slowdown = self._slowdown(run)
            left_s *= run.slowdown
        if run.shared:
            self._will_report(run)
            self._repace_beside(run)
            for each in (run, *self.devices.co_tenants(run, run.gang)):
                if self.devices.loses_bound_to(each) is not None:
                    each.lost = self._push(now_s + BOUND_LOST_S, LOST, each.row)
        run.ticket = self._push(now_s + left_s, LEAVES, row)
        if not self._says_hello:
            return first_step(run)
        if self._knowledge.known != "exact":
            run.tell = self._push(now_s + self._knowledge.after_s, TELL, row)
        self._ready += [*((hello(run, part.host_id), run) for part in run.gang), (first_step(run), run)]
        return self._next_ready()

    def _leaves(self, run: JobRun) -> ev.AnyEvent:
        """The end of the work, or of a pause: every host of the gang says so, in rank order."""
        if run.doing is TRAINS:
            run.settle(self.now_s, 0.0)  # Its checkpoints are not needed any more.
            run.doing, run.done = LEFT, True
            if run.shared:
                self._repace_beside(run)
            if len(run.gang) > 1:
                return self._last_words(run, "finished")
            host_id = run.gang[0].host_id
            report = attempt_ended_event(run, host_id, "finished")
            self._vacate(run, host_id)
            return report
        run.paused_s += self.now_s - run.since_s
        saved = run.doing is SAVES and not run.lost_part
        run.doing, run.since_s = LEFT, self.now_s
        if saved:
            run.keep()
            self._tell_safe(run)
        return self._last_words(run, "stopped")

    def _last_words(self, run: JobRun, outcome: domain.Outcome) -> ev.AnyEvent:
        """`AttemptEnded` of every host that is left, after what is already to be told."""
        for member in run.gang:
            self._ready.append((attempt_ended_event(run, member.host_id, outcome), run))
        return self._next_ready()

    # --- Obeying -----------------------------------------------------------------------------------

    def obey(self, commands: Sequence[domain.AnyCommand]) -> None:
        """Carries out the engine's commands. A command that is late, repeated or for an attempt that is gone
        changes nothing."""
        for command in commands:
            match command:
                case domain.StartAttempt():
                    self._start(command)
                case domain.StopAttempt():
                    self._stop(command)
                case domain.SaveAttempt():
                    self._save(command)
                case domain.ComputeRequest():
                    self.compute_requests.append(command)
                case domain.ForgetJob() | domain.TrustDevices() | domain.LimitAttempt():
                    pass  # Nothing is kept of ended jobs, nothing is wrong with devices, nobody is warned.

    def _start(self, command: domain.StartAttempt) -> None:
        row = self._row_of(command.job_id)
        if row not in self._runs:
            self._runs[row] = JobRun(row, command.job_id, self._model[row], self._submit_s[row])
        run = self._runs[row]
        run.resumes = not self._resumes or self._resumes[row]
        if command.attempt <= run.number:
            return  # The gang's other hosts have had theirs, or it comes again.
        assert run.doing is WAITS, f"job {row} was started while it {run.doing.name.lower()}"
        now_s = self.now_s
        run.waited_s += now_s - run.since_s
        run.fraction = command.fraction
        run.shared = self.devices.occupy(run, command.gang, now_s)
        if run.shared and row not in self.had_it_waited_s:
            self.had_it_waited_s[row] = self._had_it_waited_s(row, run)
        run.number, run.gang, run.doing, run.slowdown = command.attempt, command.gang, LOADS, 1.0
        run.since_s = run.launched_s = now_s
        run.lost_part = False
        if run.shared:
            for other in self.devices.co_tenants(run, run.gang):
                other.shared = True
                self._will_report(other)
        if run.safe_s > 0.0 and command.resume_step < run.safe_steps:
            self._ready += [(hello(run, member.host_id), run) for member in run.gang]
        run.load_left_s, run.paced_s = self._load_s[row], now_s
        if run.shared and self._loads_contend:
            self._load_on(run)
            self._repace_beside(run)
        else:
            run.ticket = self._push(now_s + self._load_s[row], FIRST_STEP, row)

    def _load_on(self, run: JobRun) -> None:
        """Goes on loading at the pace that its co-tenants leave it."""
        now_s = self.now_s
        run.load_left_s = max(0.0, run.load_left_s - (now_s - run.paced_s) / run.slowdown)
        run.paced_s, run.slowdown = now_s, self.devices.slowdown(run)
        run.ticket = self._push(now_s + run.load_left_s * run.slowdown, FIRST_STEP, run.row)

    def _had_it_waited_s(self, row: int, run: JobRun) -> float:
        """The JCT of a job if it waited now until enough devices are free, and then ran alone."""
        hosts = [host for number, host in enumerate(self._hosts) if number not in self._down]
        waits_s = wait_s(self.devices, hosts, self._gpus[row], self._leaves_in_s)
        left_s = float(self._duration_s[row] - run.work_s)
        return self.now_s - float(self._submit_s[row]) + waits_s + float(self._load_s[row]) + left_s

    def _leaves_in_s(self, run: JobRun) -> float:
        """When a run leaves its devices if it goes on at its present pace; the newcomer does not count."""
        row, since_s = run.row, self.now_s - run.since_s
        left_s = float(self._duration_s[row] - run.work_s)
        if run.doing is TRAINS:
            left_s = left_s * run.slowdown - since_s
            return left_s if left_s > 0.0 else 0.0
        if run.doing is LOADS:
            load_left_s = float(run.load_left_s - (self.now_s - run.paced_s) / run.slowdown)
            return max(0.0, load_left_s) + left_s
        if run.doing is WAITS:
            return 0.0
        pause_s = float(self._pause_s[row]) if run.doing is SAVES else self._kill_s
        return max(0.0, pause_s - since_s)

    def _stop(self, command: domain.StopAttempt) -> None:
        run = self._runs.get(self._row_of(command.job_id))
        if run is None or run.number != command.attempt:
            return
        if run.doing is TRAINS:
            run.settle(self.now_s, self._every_s)
            if command.save and self._saves and run.resumes:
                self._leave(run, SAVES, self._pause_s[run.row])
            else:
                run.roll_back()
                self._leave(run, DIES, self._kill_s)
            if run.shared:
                self._repace_beside(run)
        elif run.doing is LOADS:
            run.loaded_s += self.now_s - run.since_s
            self._leave(run, DIES, self._kill_s)
            if run.shared and self._loads_contend:
                self._repace_beside(run)
        elif run.doing is SAVES and not command.save:
            run.paused_s += self.now_s - run.since_s
            run.roll_back()
            self._leave(run, DIES, self._kill_s)
        elif run.doing is DIES and not run.ticket:
            run.paused_s += self.now_s - run.since_s
            self._leave(run, DIES, self._kill_s)

    def _leave(self, run: JobRun, how: Doing, after_s: float) -> None:
        run.doing, run.since_s = how, self.now_s
        run.ticket = self._push(self.now_s + after_s, LEAVES, run.row)

    def _save(self, command: domain.SaveAttempt) -> None:
        run = self._runs.get(self._row_of(command.job_id))
        if run is not None and run.number == command.attempt and run.doing is TRAINS and run.resumes:
            run.settle(self.now_s, self._every_s)
            run.save()
            self._tell_safe(run)

    def tell_at(self, at_s: float, event: ev.AnyEvent) -> None:
        """Something that comes from outside, at that time."""
        self._told[self._push(at_s, TOLD, 0)] = event

    def _push(self, at_s: float, rank: int, row: int) -> int:
        """The ticket of a new entry; tickets never repeat."""
        self._ticket = ticket = self._ticket + 1
        heappush(self._heap, (at_s, rank, row, ticket))
        return ticket

    # --- Co-tenants --------------------------------------------------------------------------------

    def _repace_beside(self, run: JobRun) -> None:
        """The run has begun or ceased to train, or to load where loads are felt: its co-tenants go on at
        another pace."""
        for other in self.devices.co_tenants(run, run.gang):
            self._will_report(other)
            if other.doing is LOADS and self._loads_contend:
                self._load_on(other)
                continue
            slowdown = self._slowdown(other)
            if other.doing is TRAINS and slowdown != other.slowdown:
                other.settle(self.now_s, self._every_s)
                other.slowdown = slowdown
                left_s = max(0.0, self._duration_s[other.row] - other.work_s) * slowdown
                other.ticket = self._push(self.now_s + left_s, LEAVES, other.row)

    def _slowdown(self, run: JobRun) -> float:
        """Beside its co-tenants, and on the number of devices that it has."""
        slowdown = self.devices.slowdown(run) if run.shared else 1.0
        if not self._speedups:
            return slowdown
        return slowdown / self._speedups[run.row][sum(len(part.devices) for part in run.gang) - 1]

    def _will_report(self, run: JobRun) -> None:
        """Schedules a job's report of its pace, a while after the last change of its co-tenants, and some
        more times while it shares, as a real job does every minute: one measurement alone is no evidence."""
        run.reports = REPORTS
        run.report = self._push(self.now_s + self._observe_s, REPORT, run.row)

    def _vacate(self, run: JobRun, host_id: domain.HostId) -> None:
        """The attempt's processes on one host are gone; with the last host's the attempt is over."""
        part, *others = run.gang
        if others:
            part = part_on(run.gang, host_id)
        self.devices.vacate(run, part, self.now_s)
        if run.shared:
            for other in self.devices.co_tenants(run, (part,)):
                self._will_report(other)
        if others:
            run.gang = tuple(member for member in run.gang if member is not part)
            return
        run.gang, run.doing, run.since_s, run.ticket, run.report = (), WAITS, self.now_s, 0, 0
        if run.done:
            del self._runs[run.row]
            self.done, self.last_end_s = run, self.now_s

    # --- Hosts that fail ---------------------------------------------------------------------------

    def _host_fails(self, number: int) -> ev.AnyEvent:
        """Report now, when it matters, the periodic checkpoints that became durable while jobs trained."""
        host = self._hosts[number]
        for run in self.devices.on_host(host):
            if run.doing is TRAINS:
                run.settle(self.now_s, self._every_s)
            self._tell_safe(run)
        self._ready.append((ev.HostLost(host_id=host.host_id, by="failure"), None))
        self._down.add(number)
        assert self._failing is not None
        self._push(self.now_s + self._failing.repair_s, HOST, number)
        return self._next_ready()

    def _host_returns(self, number: int) -> ev.HostJoined:
        self._down.remove(number)
        assert self._failing is not None
        self._push(self.now_s + self._failing.next_s(number), HOST, number)
        return ev.HostJoined(report=self._hosts[number])

    def _tell_safe(self, run: JobRun) -> None:
        if run.safe_s > run.told_s or run.is_unsaved:
            run.told_s, run.is_unsaved = run.safe_s, False
            self._ready.append((durable(run), run))

    def _host_is_gone(self, host_id: domain.HostId) -> None:
        """Gangs with a part on it stop training at this moment; other parts hold on until they are told."""
        host = next(host for host in self._hosts if host.host_id == host_id)
        for run in self.devices.on_host(host):
            run.lost_part = True
            if run.doing is TRAINS:
                run.settle(self.now_s, self._every_s)
                run.roll_back()
                run.doing, run.ticket = DIES, 0
                if run.shared:
                    self._repace_beside(run)
            elif run.doing is LOADS:
                run.loaded_s += self.now_s - run.since_s
                run.doing, run.since_s, run.ticket = DIES, self.now_s, 0
                if run.shared and self._loads_contend:
                    self._repace_beside(run)
            elif run.doing is SAVES:
                run.roll_back()  # It goes on leaving, for nothing.
            if len(run.gang) == 1:
                run.paused_s += self.now_s - run.since_s
            self._vacate(run, host_id)

    def take_ended(self, is_ended: Callable[[domain.JobId], bool]) -> list[JobRun]:
        """Takes out the runs that the engine has ended before their work was done: their budgets are used."""
        ended = [run for run in self._runs.values() if run.doing is WAITS and is_ended(run.job_id)]
        for run in ended:
            del self._runs[run.row]
            self.last_end_s = self.now_s
        return ended

    # --- Checks ------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """No job is to come, no device is held, all hosts are up and no answer is due: nothing that
        happens here could change anything any more."""
        under_way = self.devices.held or self._ready or self._told or self._down
        return not under_way and self._arrives_s == NEVER

    def check_end(self) -> None:
        """After the last event: nothing that is due concerns a job, and no device is held."""
        for at_s, rank, row, ticket in self._heap:
            run = self._runs.get(row) if rank in (LEAVES, FIRST_STEP) else None
            assert run is None or run.ticket != ticket, f"job {row}: what was due at {at_s} never happened"
        assert not self._runs, f"{len(self._runs)} jobs have neither finished nor go on"
        assert self.devices.held == self.devices.busy == 0, f"{self.devices.held} places are held at the end"
