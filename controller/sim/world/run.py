"""One job in the world, from its first launch to its end: its state, its work, its checkpoints; and what it
tells the engine: the events that agents and jobs send in production.

Rule: these are the world's own accounts. The engine keeps its own from the events alone; at each job's end
the two must agree (`simulate.py`). The engine learns only what a real job could report: steps done, step
times, ends.

Progress counts in steps of 1 ms of training alone (`STEP_S`). A checkpoint stands at a step boundary, as a
real one does: what a clean stop loses beyond its last whole step is below 1 ms.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.sim.world.jobs import STEP_S, STEPS_PER_S

NEARLY: Final = 1e-6
"""Of a step: what float arithmetic may take from a whole one."""
STEPS_COMPARED: Final = 2
"""After each resume. In a simulation all come out as they had before."""


class Doing(IntEnum):
    """The states of an attempt in the simulated world."""

    WAITS = 0
    LOADS = 1
    TRAINS = 2
    SAVES = 3
    DIES = 4
    """Leaving without a save; or its peers on a lost host are gone and it waits for an order."""
    LEFT = 5
    """Its last reports are on their way, at this very instant."""


WAITS, LOADS, TRAINS, SAVES, DIES, LEFT = Doing
"""By themselves: an enum's attribute costs a look-up that every event would pay for."""


class JobRun:
    """A job over all its attempts. Seconds; class defaults, so that making one costs only what differs."""

    number = domain.AttemptNo(0)
    gang: tuple[domain.GangMember, ...] = ()
    """Parts of the attempt that still hold devices, in rank order."""
    doing: Doing = WAITS
    ticket = 0
    """Ticket of the heap entry for its next event; 0 = nothing happens to it by itself."""
    report = 0
    """Ticket of the entry for its next report of progress."""
    reports = 0
    """Reports still to come after the last change of its co-tenants."""
    shared = False
    """Whether this attempt ever had a co-tenant: without one, its pace does not change."""
    fraction = 1.0
    """Below 1: the part of its one device that it has."""
    lost_part = False
    """A host of the gang is gone: no save is complete any more."""
    done = False
    resumes = True
    """Whether it can: otherwise it never has a checkpoint."""
    tell = 0
    """Ticket of the entry for its next report in a world in which lengths are not told beforehand."""
    lost = 0
    """Ticket of the entry for the moment at which its agent gives its bound up."""
    launched_s = 0.0
    slowdown = 1.0
    step_s = STEP_S
    """What a step takes alone, and how many a second; others only where a world begins in the middle."""
    steps_per_s = STEPS_PER_S
    steps_before = 0
    """Done before this world began."""
    is_unsaved = False
    """The engine has not heard of a checkpoint that holds them."""
    load_left_s = 0.0
    """Alone, at `paced_s`; only where loads take their part of a device."""
    paced_s = 0.0
    due_s = 0.0
    """What it was doing when this world began takes so much longer."""

    work_s = 0.0
    """Training done and not lost, in seconds alone."""
    trained_s = 0.0
    """Training ever done, in seconds alone."""
    lost_s = 0.0
    """The part of it that was lost."""
    safe_s = 0.0
    """Training that a durable checkpoint holds."""
    told_s = 0.0
    """The part of it that the engine has heard of."""
    safe_ran_s = 0.0
    """`ran_s` at the moment that the checkpoint stands for."""
    began_ran_s = 0.0
    """`ran_s` at the attempt's first step."""

    waited_s = 0.0
    loaded_s = 0.0
    ran_s = 0.0
    paused_s = 0.0
    rework_s = 0.0
    """Part of `ran_s` whose training was lost."""
    held_gpu_s = 0.0

    def __init__(self, row: int, job_id: domain.JobId, model: int, waits_since_s: float) -> None:
        self.row = row
        self.job_id = job_id
        self.model = model
        self.since_s = waits_since_s

    @property
    def steps(self) -> int:
        """Whole steps of training done."""
        return self.steps_before + int(self.work_s * self.steps_per_s + NEARLY)

    @property
    def safe_steps(self) -> int:
        return self.steps_before + int(self.safe_s * self.steps_per_s + NEARLY)

    def settle(self, now_s: float, every_s: float) -> None:
        """Account for training up to now at the pace it had, and for the periodic checkpoints passed."""
        spent_s = now_s - self.since_s
        self.since_s = now_s
        before_s = self.ran_s
        self.ran_s = ran_s = before_s + spent_s
        if every_s > 0.0 and self.resumes and ran_s - self.began_ran_s >= every_s:
            due_s = ran_s - (ran_s - self.began_ran_s) % every_s
            if due_s > self.safe_ran_s and due_s >= before_s:
                self._checkpoint(self.work_s + (due_s - before_s) / self.slowdown, due_s)
        spent_s /= self.slowdown
        self.work_s += spent_s
        self.trained_s += spent_s

    def save(self) -> None:
        """Write a checkpoint now and go on."""
        self._checkpoint(self.work_s, self.ran_s)

    def _checkpoint(self, work_s: float, ran_s: float) -> None:
        assert self.resumes, f"job {self.row} cannot resume, and was to save"
        self.safe_s, self.safe_ran_s = int(work_s * self.steps_per_s + NEARLY) * self.step_s, ran_s

    def keep(self) -> None:
        """Counts the job as completely saved on leaving: it goes on from its last whole step."""
        self._checkpoint(self.work_s, self.ran_s)
        self._go_back()

    def roll_back(self) -> None:
        """What no checkpoint holds will be done again."""
        self.rework_s += self.ran_s - self.safe_ran_s
        self.safe_ran_s = self.ran_s
        self._go_back()

    def _go_back(self) -> None:
        self.lost_s += self.work_s - self.safe_s
        self.work_s = self.safe_s


def first_step(run: JobRun) -> ev.FirstStepDone:
    return ev.FirstStepDone(
        job_id=run.job_id, attempt=run.number, host_id=run.gang[0].host_id, step=run.steps
    )


def progress(run: JobRun, total_steps: int | None = None) -> ev.ProgressSeen:
    """The report of its steps and its present pace; of all its steps, where it tells them."""
    return ev.ProgressSeen(
        job_id=run.job_id,
        attempt=run.number,
        step=run.steps,
        step_s=run.step_s * run.slowdown,
        total_steps=total_steps,
    )


def bound_lost(run: JobRun, partner: JobRun) -> ev.BoundLost:
    """The agent's word that it could not keep the bound of a job beside another."""
    return ev.BoundLost(
        job_id=run.job_id,
        attempt=run.number,
        host_id=run.gang[0].host_id,
        partner=partner.job_id,
        ratio=run.slowdown,
    )


def durable(run: JobRun) -> ev.CheckpointDurable:
    return ev.CheckpointDurable(
        job_id=run.job_id, attempt=run.number, host_id=run.gang[0].host_id, step=run.safe_steps
    )


def hello(run: JobRun, host_id: domain.HostId) -> ev.CapabilitiesSeen:
    """What the job can do and where it begins: at a newer checkpoint than the engine knows of, or loaded."""
    return ev.CapabilitiesSeen(
        job_id=run.job_id,
        attempt=run.number,
        host_id=host_id,
        resumable=run.resumes,
        capabilities=domain.Capabilities(proven=STEPS_COMPARED if run.number > 1 and run.safe_steps else 0),
        step=run.safe_steps,
    )


def attempt_ended_event(run: JobRun, host_id: domain.HostId, outcome: domain.Outcome) -> ev.AttemptEnded:
    return ev.AttemptEnded(
        job_id=run.job_id,
        attempt=run.number,
        host_id=host_id,
        verdict=domain.ExitVerdict(outcome=outcome, exit_code=0 if outcome == "finished" else None),
        step=run.steps,
    )
