"""The simulated world: hosts, devices and jobs that obey the engine, under a virtual clock.

Rule: the world knows the truth (durations, interference, failures) and decides nothing. It is pure: what happens
next follows from the workload, the commands and the seed; it reads no clock and no file.

**Steps.** Progress is counted in steps of 1 ms of training alone (`STEP_S`), and a checkpoint stands at a step
boundary, as a real one does: what a stop loses beyond its last whole step is below 1 ms. So the engine, which
knows the job's length as steps, finds after every resume the remaining time that the world does.

**Order at one instant**: what had been going on ends first (`Rank`, ties by row), then jobs arrive, then
the engine's alarms ring: a decision sees all that has happened by then.

**No deletions from the heap.** Whatever changes a job's course gives it a new ticket; an entry whose ticket is
not the job's any more is skipped when it comes up. Arrivals are merged from the columns and never enter it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from enum import IntEnum
from heapq import heappop, heappush
from typing import Final

from cotenant.controller.domain import events as ev
from cotenant.controller.domain.cluster import HostReport
from cotenant.controller.domain.commands import (
    AnyCommand,
    GangMember,
    SaveAttempt,
    StartAttempt,
    StopAttempt,
    Think,
)  # fmt: skip
from cotenant.controller.domain.ids import AttemptNo, DeviceId, HostId, JobId
from cotenant.controller.sim.failures import FailureTimes
from cotenant.controller.sim.jobs import STEP_S, STEPS_PER_S, Specs
from cotenant.controller.sim.physics import Physics, Ratios
from cotenant.controller.sim.workload import Cluster, Workload

NEVER: Final = math.inf
NEARLY: Final = 1e-6
"""Of a step: what float arithmetic may take from a whole one."""


class Rank(IntEnum):
    """Kinds of heap entries, in their order at one instant."""

    LEAVES = 0
    """The work is done, or the devices of a stopped attempt are free."""
    FIRST_STEP = 1
    HOST = 2
    ANSWER = 3
    REPORT = 4


class Doing(IntEnum):
    """What an attempt is at, as the world knows it."""

    WAITS = 0
    LOADS = 1
    TRAINS = 2
    SAVES = 3
    DIES = 4
    """Leaving without a save, or its peers on a lost host are gone and it waits to be told."""
    LEFT = 5
    """Its last words are on their way, at this very instant."""


class Run:
    """A job from its first launch to its end, over all its attempts. Seconds; plain class defaults, so that
    making one costs what differs."""

    number = AttemptNo(0)
    gang: tuple[GangMember, ...] = ()
    """Parts of the attempt that still hold devices."""
    doing = Doing.WAITS
    ticket = 0
    report = 0
    shared = False
    """Whether the attempt ever had a co-tenant: without one, nobody's pace needs a look."""
    lost_part = False
    """A host of the gang is gone: no save is complete any more."""
    done = False
    slowdown = 1.0
    work_s = 0.0
    """Training done, in seconds alone."""
    safe_s = 0.0
    """Training that a checkpoint holds."""
    told_s = 0.0
    """Part of it that the engine has heard of."""
    trained_s = 0.0
    """Training ever done, whether it was lost or not."""
    lost_s = 0.0
    """Training lost, in seconds alone."""
    safe_ran_s = 0.0
    """`ran_s` at the moment that the checkpoint stands for."""
    began_ran_s = 0.0
    """`ran_s` at the attempt's first step."""
    launched_s = 0.0
    waited_s = 0.0
    loaded_s = 0.0
    ran_s = 0.0
    paused_s = 0.0
    rework_s = 0.0
    held_gpu_s = 0.0

    def __init__(self, row: int, job_id: JobId, model: int, waits_since_s: float) -> None:
        self.row = row
        self.job_id = job_id
        self.model = model
        self.since_s = waits_since_s


class World:
    """Call `next_event`, hand it to the engine, let the world `obey`; `left` says whose run is over."""

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        hosts: Sequence[HostReport],
        physics: Physics,
        ratios: Ratios | None,
        failing: FailureTimes | None,
        checkpoint_every_s: float,
    ) -> None:
        self.now_s = 0.0
        self.last_end_s = 0.0
        self.done: Run | None = None
        """The run whose last word was the event just given out, finished."""
        self.thinks: list[Think] = []
        """Computations asked for and not yet answered (`answer`)."""
        self.busy_gpu_s = 0.0
        self.held_gpu_s = 0.0
        """Sum over devices and their tenants of the time held."""
        self.arrived = 0
        self.specs = Specs(workload, cluster)
        self._jobs = len(workload)
        self._submit_s = memoryview(workload.submit_s)
        self._duration_s = memoryview(workload.duration_s)
        self._load_s = memoryview(workload.load_s)
        self._pause_s = memoryview(workload.pause_s)
        self._model = memoryview(workload.model)
        self._arrives_s = float(workload.submit_s[0]) if self._jobs else NEVER
        self._kill_s = physics.kill_s
        self._observe_s = physics.observe_s
        self._ratios = ratios
        self._every_s = checkpoint_every_s
        self._hosts = list(hosts)
        self._max_tenants = {d.device_id: d.max_tenants for host in hosts for d in host.devices}
        self._here: dict[DeviceId, list[Run]] = {device_id: [] for device_id in self._max_tenants}
        self._runs: dict[int, Run] = {}
        self._heap: list[tuple[float, int, int, int]] = []
        self._ready: deque[tuple[ev.AnyEvent, Run | None]] = deque()
        self._answers: dict[int, ev.Computed] = {}
        self._ticket = 0
        self._busy = 0
        self._holding = 0
        self._counted_s = 0.0
        self._failing = failing
        self._down: set[int] = set()
        if failing is not None:
            for number in range(len(hosts)):
                heappush(self._heap, (failing.next_s(number), Rank.HOST, number, 0))

    # --- What happens ------------------------------------------------------------------------------

    def next_event(self, alarm_s: float | None) -> ev.AnyEvent | None:
        """The next thing to tell the engine, whose next alarm is at `alarm_s`; moves the clock. None: nothing
        will ever happen again."""
        self.done = None
        if self._ready:
            return self._next_ready()
        heap, runs = self._heap, self._runs
        before_s = NEVER if alarm_s is None else alarm_s
        while heap:
            entry = heap[0]
            at_s = entry[0]
            if at_s > self._arrives_s or at_s > before_s:
                break
            heappop(heap)
            rank, row, ticket = entry[1], entry[2], entry[3]
            if rank <= 1:
                run = runs.get(row)
                if run is None or run.ticket != ticket:
                    continue
                self.now_s = at_s
                return self._first_step(run) if rank == 1 else self._leaves(run)
            event = self._rare(at_s, rank, row, ticket)
            if event is not None:
                return event
        if self._arrives_s <= before_s:
            return self._arrival() if self._arrives_s < NEVER else None
        self.now_s = max(self.now_s, before_s)
        return ev.AlarmRang()

    def _arrival(self) -> ev.JobArrived:
        row = self.arrived
        self.now_s = self._arrives_s
        self.arrived = after = row + 1
        self._arrives_s = self._submit_s[after] if after < self._jobs else NEVER
        return ev.JobArrived(spec=self.specs.spec(row))

    def _rare(self, at_s: float, rank: int, row: int, ticket: int) -> ev.AnyEvent | None:
        """What is not part of every job's life; None if it is out of date."""
        if rank == Rank.HOST:
            self.now_s = at_s
            return self._host_returns(row) if row in self._down else self._host_fails(row)
        if rank == Rank.ANSWER:
            self.now_s = at_s
            return self._answers.pop(ticket)
        run = self._runs.get(row)
        if run is None or run.report != ticket or run.doing != Doing.TRAINS:
            return None
        self.now_s = at_s
        self._settle(run)
        steps = _steps(run.work_s)
        return ev.ProgressSeen(
            job_id=run.job_id, attempt=run.number, step=steps, step_s=STEP_S * run.slowdown
        )

    def _next_ready(self) -> ev.AnyEvent:
        event, run = self._ready.popleft()
        if type(event) is ev.AttemptEnded:
            assert run is not None
            self._vacate(run, event.host_id)
        elif type(event) is ev.HostLost:
            self._host_is_gone(event.host_id)
        return event

    def _first_step(self, run: Run) -> ev.FirstStepDone:
        now_s, row = self.now_s, run.row
        run.loaded_s += now_s - run.since_s
        run.doing, run.since_s, run.began_ran_s = Doing.TRAINS, now_s, run.ran_s
        run.slowdown = self._slowdown_of(run) if run.shared else 1.0
        self._ticket = run.ticket = ticket = self._ticket + 1
        left_s = (self._duration_s[row] - run.work_s) * run.slowdown
        heappush(self._heap, (now_s + left_s, 0, row, ticket))
        if run.shared:
            self._will_report(run)
            self._repace_beside(run)
        return ev.FirstStepDone(
            job_id=run.job_id, attempt=run.number, host_id=run.gang[0].host_id, step=_steps(run.work_s)
        )

    def _leaves(self, run: Run) -> ev.AnyEvent:
        """The end of the work, or of a pause: every host of the gang says so, in rank order."""
        if run.doing == Doing.TRAINS:
            return self._finishes(run)
        saved = run.doing == Doing.SAVES and not run.lost_part
        run.paused_s += self.now_s - run.since_s
        run.since_s = self.now_s
        steps = _steps(run.work_s)
        if saved:
            self._keep(run, steps)
        run.doing = Doing.LEFT
        if saved and steps:
            durable = ev.CheckpointDurable(
                job_id=run.job_id, attempt=run.number, host_id=run.gang[0].host_id, step=steps
            )
            run.told_s = run.safe_s
            self._ready.append((durable, run))
        for member in run.gang:
            ended = ev.AttemptEnded(
                job_id=run.job_id, attempt=run.number, host_id=member.host_id, outcome="stopped", step=steps
            )
            self._ready.append((ended, run))
        return self._next_ready()

    def _finishes(self, run: Run) -> ev.AnyEvent:
        self._settle(run)
        gang, steps = run.gang, _steps(run.work_s)
        run.doing, run.done = Doing.LEFT, True
        if run.shared:
            self._repace_beside(run)
        if len(gang) > 1:
            for member in gang:
                self._ready.append((self._finished(run, member.host_id, steps), run))
            return self._next_ready()
        event = self._finished(run, gang[0].host_id, steps)
        self._vacate(run, gang[0].host_id)
        return event

    def _finished(self, run: Run, host_id: HostId, steps: int) -> ev.AttemptEnded:
        return ev.AttemptEnded(
            job_id=run.job_id,
            attempt=run.number,
            host_id=host_id,
            outcome="finished",
            exit_code=0,
            step=steps,
        )

    # --- Obeying -----------------------------------------------------------------------------------

    def obey(self, commands: Sequence[AnyCommand]) -> None:
        """Do what the engine says. What comes twice, late or for an attempt that is gone changes nothing."""
        for command in commands:
            kind = type(command)
            if kind is StartAttempt:
                self._start(command)
            elif kind is StopAttempt:
                self._stop(command)
            elif kind is Think:
                self.thinks.append(command)
            elif kind is SaveAttempt:
                self._save(command)
            # ForgetJob: nothing is kept of a job that has ended.

    def _start(self, command: StartAttempt) -> None:
        row, gang = int(command.job_id), command.gang
        run = self._runs.get(row)
        if run is None:
            run = Run(row, command.job_id, self._model[row], self._submit_s[row])
            self._runs[row] = run
        if command.attempt <= run.number:
            return  # The gang's other hosts, or a repeated command.
        assert run.doing == Doing.WAITS, f"job {row} was started while it {run.doing.name}"
        now_s = self.now_s
        run.waited_s += now_s - run.since_s
        run.number, run.gang, run.doing = command.attempt, gang, Doing.LOADS
        run.since_s = run.launched_s = now_s
        run.shared = run.lost_part = False
        self._count()
        here, max_tenants = self._here, self._max_tenants
        for member in gang:
            for device_id in member.devices:
                tenants = here[device_id]
                if tenants:
                    assert len(tenants) < max_tenants[device_id], f"{device_id}: too many tenants"
                    run.shared = True
                    for other in tenants:
                        other.shared = True
                        self._will_report(other)
                else:
                    self._busy += 1
                tenants.append(run)
                self._holding += 1
        self._ticket = run.ticket = ticket = self._ticket + 1
        if command.resume_step < _steps(run.safe_s):  # It finds a newer checkpoint than the engine knows of.
            self._will_say_where(run)
        heappush(self._heap, (now_s + self._load_s[row], 1, row, ticket))

    def _will_say_where(self, run: Run) -> None:
        for member in run.gang:
            hello = ev.CapabilitiesSeen(
                job_id=run.job_id,
                attempt=run.number,
                host_id=member.host_id,
                resumable=True,
                accumulates=False,
                step=_steps(run.safe_s),
            )
            self._ready.append((hello, run))

    def _stop(self, command: StopAttempt) -> None:
        run = self._runs.get(int(command.job_id))
        if run is None or run.number != command.attempt:
            return
        doing, now_s = run.doing, self.now_s
        if doing == Doing.TRAINS:
            self._settle(run)
            if command.save:
                self._leave_after(run, Doing.SAVES, self._pause_s[run.row])
            else:
                self._roll_back(run)
                self._leave_after(run, Doing.DIES, self._kill_s)
            if run.shared:
                self._repace_beside(run)
        elif doing == Doing.LOADS:
            run.loaded_s += now_s - run.since_s
            self._leave_after(run, Doing.DIES, self._kill_s)
        elif doing == Doing.SAVES and not command.save:
            run.paused_s += now_s - run.since_s
            self._roll_back(run)
            self._leave_after(run, Doing.DIES, self._kill_s)
        elif doing == Doing.DIES and run.ticket == 0:  # Its peers are gone, and now it is told.
            run.paused_s += now_s - run.since_s
            self._leave_after(run, Doing.DIES, self._kill_s)

    def _leave_after(self, run: Run, doing: Doing, seconds: float) -> None:
        run.doing, run.since_s = doing, self.now_s
        self._ticket = run.ticket = ticket = self._ticket + 1
        heappush(self._heap, (self.now_s + seconds, 0, run.row, ticket))

    def _save(self, command: SaveAttempt) -> None:
        run = self._runs.get(int(command.job_id))
        if run is None or run.number != command.attempt or run.doing != Doing.TRAINS:
            return
        self._settle(run)
        steps = _steps(run.work_s)
        run.safe_s, run.safe_ran_s = steps * STEP_S, run.ran_s
        self._tell_safe(run)

    def answer(self, computed: ev.Computed, after_s: float) -> None:
        """The answer to a computation, so much virtual time from now."""
        self._ticket += 1
        self._answers[self._ticket] = computed
        heappush(self._heap, (self.now_s + after_s, Rank.ANSWER, 0, self._ticket))

    # --- Progress and pace -------------------------------------------------------------------------

    def _settle(self, run: Run) -> None:
        """Account for the training up to now at the pace it had, and for periodic checkpoints passed."""
        spent_s = self.now_s - run.since_s
        run.since_s = self.now_s
        work_s = spent_s / run.slowdown
        ran_s = run.ran_s + spent_s
        every_s = self._every_s
        if every_s > 0.0:
            periods = (ran_s - run.began_ran_s) // every_s
            due_s = run.began_ran_s + periods * every_s
            if due_s > run.safe_ran_s and periods >= 1.0:
                done_s = run.work_s + (due_s - run.ran_s) / run.slowdown
                run.safe_s, run.safe_ran_s = _steps(done_s) * STEP_S, due_s
        run.ran_s = ran_s
        run.work_s += work_s
        run.trained_s += work_s

    def _keep(self, run: Run, steps: int) -> None:
        """A complete save at the last whole step."""
        run.safe_s = steps * STEP_S
        run.lost_s += run.work_s - run.safe_s
        run.work_s, run.safe_ran_s = run.safe_s, run.ran_s

    def _roll_back(self, run: Run) -> None:
        """What no checkpoint holds will be done again."""
        run.lost_s += run.work_s - run.safe_s
        run.rework_s += run.ran_s - run.safe_ran_s
        run.work_s, run.safe_ran_s = run.safe_s, run.ran_s

    def _slowdown_of(self, run: Run) -> float:
        """The slowest of its devices; ratios of several co-tenants multiply."""
        ratios = self._ratios
        assert ratios is not None, "two jobs on a device in a world without pairs"
        mine, here, slowest = ratios[run.model], self._here, 1.0
        for member in run.gang:
            for device_id in member.devices:
                slowdown = 1.0
                for other in here[device_id]:
                    if other is not run and other.doing == Doing.TRAINS:
                        slowdown *= mine[other.model]
                slowest = max(slowest, slowdown)
        return slowest

    def _repace_beside(self, run: Run) -> None:
        """The run has begun or ceased to train: its co-tenants go on at another pace."""
        for other in self._beside(run):
            self._will_report(other)
            if other.doing != Doing.TRAINS:
                continue
            slowdown = self._slowdown_of(other)
            if slowdown != other.slowdown:
                self._settle(other)
                other.slowdown = slowdown
                self._ticket = other.ticket = ticket = self._ticket + 1
                left_s = max(0.0, self._duration_s[other.row] - other.work_s) * slowdown
                heappush(self._heap, (self.now_s + left_s, 0, other.row, ticket))

    def _beside(self, run: Run) -> list[Run]:
        found: dict[int, Run] = {}
        for member in run.gang:
            for device_id in member.devices:
                for other in self._here[device_id]:
                    if other is not run:
                        found[other.row] = other
        return list(found.values())

    def _will_report(self, run: Run) -> None:
        """One report per change, a while after the last."""
        self._ticket = run.report = ticket = self._ticket + 1
        heappush(self._heap, (self.now_s + self._observe_s, Rank.REPORT, run.row, ticket))

    # --- Devices -----------------------------------------------------------------------------------

    def _count(self) -> None:
        passed_s = self.now_s - self._counted_s
        if passed_s:
            self.busy_gpu_s += passed_s * self._busy
            self.held_gpu_s += passed_s * self._holding
            self._counted_s = self.now_s

    def _vacate(self, run: Run, host_id: HostId) -> None:
        """The attempt's processes on one host are gone; with the last host the attempt is over."""
        self._count()
        gang = run.gang
        part = gang[0] if gang[0].host_id == host_id else next(m for m in gang if m.host_id == host_id)
        here = self._here
        for device_id in part.devices:
            tenants = here[device_id]
            tenants.remove(run)
            if not tenants:
                self._busy -= 1
            else:
                for other in tenants:
                    self._will_report(other)
        self._holding -= len(part.devices)
        run.held_gpu_s += len(part.devices) * (self.now_s - run.launched_s)
        run.gang = () if len(gang) == 1 else tuple(m for m in gang if m is not part)
        if not run.gang:
            self._over(run)

    def _over(self, run: Run) -> None:
        run.doing, run.since_s, run.ticket, run.report = Doing.WAITS, self.now_s, 0, 0
        if run.done:
            del self._runs[run.row]
            self.done, self.last_end_s = run, self.now_s

    # --- Hosts that fail ---------------------------------------------------------------------------

    def _host_fails(self, number: int) -> ev.AnyEvent:
        """Periodic checkpoints became durable while the jobs trained, unnoticed until now that they matter."""
        host_id = self._hosts[number].host_id
        for run in self._on(host_id):
            if run.doing == Doing.TRAINS:
                self._settle(run)
            self._tell_safe(run)
        self._ready.append((ev.HostLost(host_id=host_id, by="failure"), None))
        self._down.add(number)
        assert self._failing is not None
        heappush(self._heap, (self.now_s + self._failing.repair_s, Rank.HOST, number, 0))
        return self._next_ready()

    def _host_returns(self, number: int) -> ev.HostJoined:
        self._down.remove(number)
        assert self._failing is not None
        heappush(self._heap, (self.now_s + self._failing.next_s(number), Rank.HOST, number, 0))
        return ev.HostJoined(report=self._hosts[number])

    def _tell_safe(self, run: Run) -> None:
        if run.safe_s > run.told_s:
            durable = ev.CheckpointDurable(
                job_id=run.job_id,
                attempt=run.number,
                host_id=run.gang[0].host_id,
                step=_steps(run.safe_s),
            )
            run.told_s = run.safe_s
            self._ready.append((durable, run))

    def _on(self, host_id: HostId) -> list[Run]:
        found = {
            run.row: run
            for run in self._runs.values()
            if any(member.host_id == host_id for member in run.gang)
        }
        return [found[row] for row in sorted(found)]

    def _host_is_gone(self, host_id: HostId) -> None:
        """Gangs with a part on it stop training at this moment; other parts hold on until they are told."""
        for run in self._on(host_id):
            run.lost_part = True
            if run.doing == Doing.TRAINS:
                self._settle(run)
                self._roll_back(run)
                run.doing, run.ticket = Doing.DIES, 0
                if run.shared:
                    self._repace_beside(run)
            elif run.doing == Doing.SAVES:
                self._roll_back(run)  # It goes on leaving, for nothing.
            elif run.doing == Doing.LOADS:
                run.loaded_s += self.now_s - run.since_s
                run.doing, run.since_s, run.ticket = Doing.DIES, self.now_s, 0
            if len(run.gang) == 1 and run.doing in (Doing.SAVES, Doing.DIES):
                run.paused_s += self.now_s - run.since_s
            self._vacate(run, host_id)

    # --- Checks ------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Nothing is under way that could change anything: all have arrived, nobody holds a device, all
        hosts are up, no answer is due."""
        return not (self._holding or self._ready or self._answers or self._down or self._arrives_s < NEVER)

    def tenants(self) -> dict[DeviceId, tuple[JobId, ...]]:
        """Who holds which device, for comparison with the engine's ledger."""
        return {device_id: tuple(run.job_id for run in here) for device_id, here in self._here.items()}

    def check_end(self) -> None:
        """After the last event: nothing that is still due concerns a job, and no GPU-second is lost."""
        for at_s, rank, row, ticket in self._heap:
            run = self._runs.get(row)
            due = run is not None and ticket in (run.ticket, run.report) and run.doing != Doing.WAITS
            assert rank == Rank.HOST or not due, f"{Rank(rank).name} of job {row} at {at_s} never happened"
        assert self._holding == self._busy == 0, f"{self._holding} devices are held when all is over"


def _steps(work_s: float) -> int:
    """Whole steps of training done."""
    return int(work_s * STEPS_PER_S + NEARLY)
