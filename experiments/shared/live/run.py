"""One real run of a schedule: a private controller and agent, real DDP jobs, and what the journal says.

Rule: everything reported comes from the journal or from `ShowJob`; this process only submits, looks, and
writes down. What it has is written to disk as jobs end: a crash loses nothing that was measured.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Final

import msgspec

from cotenant.agent.host.locks import LOCK_DIR_ENV
from cotenant.controller.cli.demo.cluster import PrivateCluster
from cotenant.controller.cli.demo.measuring import job_environment
from cotenant.controller.cli.demo.plan import WORKLOADS
from cotenant.controller.client.connection import Client
from cotenant.controller.domain import ENDED, Compute, Defer, JobId, JobSpec, Launch, Phase, Place, render
from cotenant.controller.domain import events as ev
from cotenant.controller.policies.base import Parameters
from cotenant.controller.store import Journal, read_entry
from cotenant.controller.wire import clients as wire
from experiments.shared.live.schedule import KINDS, Arrival, Kind, Pace

DEVICES: Final = 2
LOOK_S: Final = 0.2
SAY_EVERY_S: Final = 5.0
WARM_STEPS: Final = 240
WARM_PREEMPT_AT: Final = 80
WARM_TIMEOUT_S: Final = 180.0
CANCEL_TIMEOUT_S: Final = 20.0
OVERDUE_S: Final = 600.0
"""After the last arrival: by then every job should long have ended."""


class Deferral(msgspec.Struct, frozen=True, kw_only=True):
    """One prediction of the deferral predictor; X = 0 means that it preempted at once."""

    at_s: float
    job: str
    x_s: float
    stage: str
    told: str
    """As `explain` tells it."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt of a job as it is kept: what the product's own view of it may change to does not matter to
    runs that were measured before."""

    devices: tuple[str, ...]
    co_tenants: tuple[JobId, ...]
    launched_s: float
    first_step_s: float | None
    stop_requested_s: float | None
    ended_s: float | None
    outcome: str

    @classmethod
    def of(cls, view: wire.AttemptView) -> Attempt:
        return cls(**{name: getattr(view, name) for name in cls.__struct_fields__})


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """One job of the schedule as it was. JCT = wait + load + run + pause; seconds."""

    job_id: str
    name: str
    gpus: int
    arrived_s: float
    """On the journal's clock."""
    jct_s: float
    wait_s: float
    load_s: float
    run_s: float
    """Training past the first step, at whatever pace: alone where nobody shares devices."""
    pause_s: float
    futile_s: float
    preemptions: int
    futile_preemptions: int
    aborted_preemptions: int
    expected_s: float
    """What `--expect` said."""
    one_load_s: float
    """Mean of its loads that came to a first step."""
    one_pause_s: float
    """Mean of its pauses after such loads; without one, what the controller had learned to expect."""
    foreseen: Pace
    """Of its kind, as the first run's warm-up measured it."""
    attempts: tuple[Attempt, ...]


class LiveRun(msgspec.Struct, frozen=True, kw_only=True):
    """What one run measured. Seconds; times of day do not matter."""

    policy: str
    parameters: Parameters
    machine: dict[str, str | int | float]
    rows: tuple[JobRow, ...]
    deferrals: tuple[Deferral, ...] = ()
    fit_s: tuple[float, ...] = ()
    """Each fit of the predictor, request to answer, in the thinking child."""
    fit_errors: tuple[str, ...] = ()
    kill_s: tuple[float, ...] = ()
    """Stop request to devices free of each attempt that was stopped while it loaded."""
    load_started: float = 0.0
    """The machine's load average when the run began."""
    complete: bool = False


class WentWrong(Exception):
    """A job failed, or the run took far too long; the text says which and where the logs are."""


Say = Callable[[str], None]


def run_live(
    schedule: Sequence[Arrival],
    paces: dict[str, Pace] | None,
    policy: str,
    parameters: Parameters,
    machine: dict[str, str | int | float],
    keep: Callable[[LiveRun], None],
    say: Say,
) -> tuple[LiveRun, dict[str, Pace]]:
    """The whole run, in a cluster of its own.

    Args:
        paces: of an earlier run of the schedule; None: those measured in this run's warm-up.
        keep: called with what is known so far, each time that jobs have ended.

    Raises:
        WentWrong: see there.
    """
    folder = Path(tempfile.mkdtemp(prefix="cotenant-live-"))
    os.environ.setdefault(LOCK_DIR_ENV, str(folder / "locks"))
    say(f"state and logs: {folder}")
    so_far = LiveRun(
        policy=policy, parameters=parameters, machine=machine, rows=(), load_started=os.getloadavg()[0]
    )
    keep(so_far)
    with (
        PrivateCluster(folder, f"cpu:{DEVICES}") as cluster,
        Client(cluster.endpoint) as client,
        no_job_left(client),
    ):
        measured = warm_up(client, folder, say)
        known = paces or measured
        run = Play(
            client,
            folder,
            schedule,
            lambda arrival: _scheduled(folder, arrival, known[arrival.kind]),
            lambda shown, arrival: _row(shown, arrival, known[arrival.kind]),
            say,
        )
        client.ask(wire.SetPolicy(name=policy, parameters=parameters))
        run.play(lambda rows: keep(msgspec.structs.replace(so_far, rows=rows)))
    complete = msgspec.structs.replace(so_far, rows=run.rows(), complete=True)
    done = _with_journal(complete, run.jobs, folder / "controller")
    keep(done)
    return done, known


@contextmanager
def no_job_left(client: Client) -> Iterator[None]:
    """Jobs outlive their agent: whatever goes wrong, none of them does so here."""
    try:
        yield
    except BaseException:
        left = tuple(job.job_id for job in client.ask(wire.ListJobs()).jobs)
        if left:
            client.ask(wire.ChangeJobs(verb="cancel", job_ids=left))
            client.ask(wire.WaitJobs(job_ids=left, timeout_s=CANCEL_TIMEOUT_S))
        raise


# --- The schedule ------------------------------------------------------------------------------------


class Play:
    """A schedule, played to a cluster: what is submitted for an arrival, and what is kept of it, is given."""

    def __init__(
        self,
        client: Client,
        folder: Path,
        schedule: Sequence[Arrival],
        spec_of: Callable[[Arrival], JobSpec],
        row_of: Callable[[wire.Shown, Arrival], JobRow],
        say: Say,
    ) -> None:
        self._client, self._folder, self._schedule, self._say = client, folder, schedule, say
        self._spec_of, self._row_of = spec_of, row_of
        self.jobs: dict[JobId, Arrival] = {}
        """Those submitted so far."""
        self._ended: dict[JobId, JobRow] = {}

    def play(self, keep: Callable[[tuple[JobRow, ...]], None]) -> None:
        """Submit on time, look until all have ended."""
        began_s = said_s = time.monotonic()
        upcoming = list(self._schedule)
        while upcoming or len(self._ended) < len(self._schedule):
            now_s = time.monotonic() - began_s
            while upcoming and upcoming[0].at_s <= now_s:
                self._submit(upcoming.pop(0))
            if self._look():
                keep(self.rows())
            if time.monotonic() - said_s >= SAY_EVERY_S:
                said_s = time.monotonic()
                self._say(self._standing(now_s, len(upcoming)))
            if now_s > self._schedule[-1].at_s + OVERDUE_S:
                raise WentWrong(f"not over {OVERDUE_S:.0f} s after the last arrival; see {self._folder}")
            due_s = upcoming[0].at_s - now_s if upcoming else LOOK_S
            time.sleep(max(0.0, min(LOOK_S, due_s)))

    def _submit(self, arrival: Arrival) -> None:
        reply = self._client.ask(wire.Submit(specs=(self._spec_of(arrival),)))
        self.jobs[reply.job_ids[0]] = arrival

    def _look(self) -> bool:
        """Whether a job has ended since the last look."""
        self._jobs = {job.job_id: job for job in self._client.ask(wire.ListJobs(include_ended=True)).jobs}
        before = len(self._ended)
        for job_id, arrival in self.jobs.items():
            job = self._jobs[job_id]
            if job.phase in (Phase.FAILED, Phase.CANCELLED, Phase.HELD):
                raise WentWrong(f"{arrival.name} is {job.phase}: {job.reason}; see {self._folder}")
            if job.phase in ENDED and job_id not in self._ended:
                self._ended[job_id] = self._row_of(self._client.ask(wire.ShowJob(job_id=job_id)), arrival)
        return len(self._ended) > before

    def rows(self) -> tuple[JobRow, ...]:
        """Of the jobs that have ended, in order of arrival."""
        return tuple(self._ended[job_id] for job_id in self.jobs if job_id in self._ended)

    def _standing(self, now_s: float, upcoming: int) -> str:
        mine = [self._jobs[job_id] for job_id in self.jobs]
        on = [f"{j.name} {j.phase.value}" for j in mine if j.devices and j.phase not in ENDED]
        waiting = sum(j.phase in (Phase.QUEUED, Phase.RESERVED) for j in mine)
        deferred = sum(j.reason_code == "deferred-until" for j in mine)
        preempted = sum(j.preemptions for j in mine)
        return (
            f"{now_s:4.0f} s: {len(self._ended)}/{len(self._schedule)} done, {upcoming} to come, "
            f"{waiting} wait ({deferred} deferred), {preempted} preemptions; {', '.join(on) or 'idle'}"
        )


def _scheduled(folder: Path, arrival: Arrival, pace: Pace) -> JobSpec:
    steps = pace.steps(arrival.length_s)
    return job_spec(folder, arrival.name, KINDS[arrival.kind], steps, expected_s=pace.expected_s(steps))


def _row(shown: wire.Shown, arrival: Arrival, pace: Pace) -> JobRow:
    return job_row(shown, pace.expected_s(pace.steps(arrival.length_s)), pace)


def job_spec(folder: Path, name: str, kind: Kind, steps: int, *, expected_s: float | None = None) -> JobSpec:
    argv = (
        sys.executable,
        str(WORKLOADS / f"{kind.script}.py"),
        *("--steps", str(steps), "--batch-size", str(kind.batch_size)),
    )
    return JobSpec(
        job_id=JobId("new-0"),
        name=name,
        gpus_min=kind.gpus,
        gpus_max=kind.gpus,
        batch_size=kind.batch_size,
        iterations=steps,
        expected_s=expected_s,
        share="never",
        resumable=True,  # Said, or a job could not be preempted before its first hello, in its first load.
        launch=Launch(argv=argv, workdir=str(folder), env=job_environment()),
    )


def job_row(shown: wire.Shown, expected_s: float, foreseen: Pace) -> JobRow:
    """Of a job that is done."""
    job = shown.job
    assert job.phase is Phase.DONE and job.ended_s is not None
    loads, pauses = _loads_and_pauses(shown.attempts)
    return JobRow(
        job_id=job.job_id,
        name=job.name,
        gpus=job.gpus,
        arrived_s=job.submitted_s,
        jct_s=job.ended_s - job.submitted_s,
        wait_s=job.wait_s,
        load_s=job.load_s,
        run_s=job.run_s,
        pause_s=job.pause_s,
        futile_s=job.futile_s,
        preemptions=job.preemptions,
        futile_preemptions=job.futile_preemptions,
        aborted_preemptions=job.aborted_preemptions,
        expected_s=expected_s,
        one_load_s=fmean(loads),
        one_pause_s=fmean(pauses) if pauses else foreseen.pause_s,
        foreseen=foreseen,
        attempts=tuple(map(Attempt.of, shown.attempts)),
    )


def _loads_and_pauses(attempts: Sequence[wire.AttemptView | Attempt]) -> tuple[list[float], list[float]]:
    """Those of attempts that came to a first step."""
    trained = [a for a in attempts if a.first_step_s is not None]
    loads = [a.first_step_s - a.launched_s for a in trained if a.first_step_s is not None]
    pauses = [stop_s for a in trained if (stop_s := _stopping_s(a)) is not None and a.outcome != "finished"]
    return loads, pauses


def _stopping_s(attempt: wire.AttemptView | Attempt) -> float | None:
    """Stop request to devices free."""
    if attempt.stop_requested_s is None or attempt.ended_s is None:
        return None
    return attempt.ended_s - attempt.stop_requested_s


# --- Before it ---------------------------------------------------------------------------------------


def warm_up(client: Client, folder: Path, say: Say) -> dict[str, Pace]:
    """`warm_up_each` of the kinds that never share."""
    specs = {name: job_spec(folder, f"warm-{name}", kind, WARM_STEPS) for name, kind in KINDS.items()}
    return warm_up_each(client, specs, say)


def warm_up_each(client: Client, specs: Mapping[str, JobSpec], say: Say) -> dict[str, Pace]:
    """Each kind once, alone, preempted once by hand: its step time, and the first loads and pauses from which
    the controller learns.

    One-device kinds go side by side, each on its own core.
    """
    client.ask(wire.SetPolicy(name="fifo"))
    paces: dict[str, Pace] = {}
    singles = [name for name, spec in specs.items() if spec.gpus == 1]
    gangs = [name for name, spec in specs.items() if spec.gpus > 1]
    rounds = [singles[i : i + DEVICES] for i in range(0, len(singles), DEVICES)] + [[name] for name in gangs]
    for names in rounds:
        jobs = {client.ask(wire.Submit(specs=(specs[name],))).job_ids[0]: name for name in names}
        _preempt_each_once(client, jobs)
        for job_id, name in jobs.items():
            paces[name] = _pace(client, job_id)
            pace = paces[name]
            say(f"{name}: {pace.step_s * 1e3:.1f} ms a step, {pace.tail_s:.2f} s from the last to its end")
    return paces


def _preempt_each_once(client: Client, jobs: Mapping[JobId, str]) -> None:
    """As soon as it has done enough steps; then wait until all have ended."""
    deadline_s = time.monotonic() + WARM_TIMEOUT_S
    asked: set[JobId] = set()
    while True:
        seen = client.ask(wire.ListJobs(job_ids=tuple(jobs))).jobs
        for job in seen:
            if job.job_id not in asked and job.phase is Phase.RUNNING and job.step >= WARM_PREEMPT_AT:
                client.ask(wire.ChangeJobs(verb="preempt", job_ids=(job.job_id,)))
                asked.add(job.job_id)
        if all(job.phase in ENDED for job in seen):
            return
        if time.monotonic() > deadline_s:
            stand = ", ".join(f"{job.name} {job.phase} at step {job.step}: {job.reason}" for job in seen)
            raise WentWrong(f"the warm-up did not get on within {WARM_TIMEOUT_S:.0f} s: {stand}")
        client.ask(wire.WaitJobs(job_ids=tuple(jobs), timeout_s=LOOK_S))


def _pace(client: Client, job_id: JobId) -> Pace:
    shown = client.ask(wire.ShowJob(job_id=job_id))
    assert shown.job.phase is Phase.DONE, f"{shown.job.name} is {shown.job.phase}: {shown.job.reason}"
    first, *_, last = shown.attempts
    assert first.first_step_s is not None and first.stop_requested_s is not None
    assert last.first_step_s is not None and last.ended_s is not None
    # A step is timed where nothing but steps happens: the job's own word, averaged over its last stretch.
    step_s = shown.job.step_s
    assert step_s is not None, f"{shown.job.name} told no step time"
    steps = last.end_step - last.start_step - 1
    loads, pauses = _loads_and_pauses(shown.attempts)
    return Pace(
        step_s=step_s,
        tail_s=max(0.0, last.ended_s - last.first_step_s - steps * step_s),
        load_s=loads[0],  # Later ones fork from a process that has imported what it needs.
        pause_s=fmean(pauses),
    )


# --- After it ----------------------------------------------------------------------------------------


def _with_journal(run: LiveRun, jobs: Mapping[JobId, Arrival], state_dir: Path) -> LiveRun:
    """The controller's own account, read when it has ended."""
    names = {job_id: arrival.name for job_id, arrival in jobs.items()}
    deferrals, fits, errors = _predictions(state_dir, names)
    stops = [_stopping_s(a) for row in run.rows for a in row.attempts if a.first_step_s is None]
    return msgspec.structs.replace(
        run,
        deferrals=tuple(deferrals),
        fit_s=tuple(fits),
        fit_errors=tuple(errors),
        kill_s=tuple(stop_s for stop_s in stops if stop_s is not None),
    )


def _predictions(state_dir: Path, names: dict[JobId, str]) -> tuple[list[Deferral], list[float], list[str]]:
    """What the predictor said and how long its fits took: recorded events and decisions."""
    found: list[Deferral] = []
    asked: dict[int, float] = {}
    fits: list[float] = []
    errors: list[str] = []
    journal = Journal(state_dir)
    try:
        for entry in journal.entries():
            event, decision = read_entry(journal, entry)
            if isinstance(event, ev.Computed) and event.request_id in asked:
                fits.append(entry.now_s - asked.pop(event.request_id))
                errors += [event.error] if event.error else []
            for action in decision.actions:
                if isinstance(action, Compute):
                    asked[action.request_id] = entry.now_s
                elif isinstance(action, Defer | Place) and action.reason.code in (
                    "deferred",
                    "preempts-at-once",
                ):
                    x_s, stage, *_ = action.reason.operands
                    told = Deferral(
                        at_s=entry.now_s,
                        job=names.get(action.job_id, action.job_id),
                        x_s=float(str(x_s)),
                        stage=str(stage),
                        told=render(action.reason),
                    )
                    found.append(told)
    finally:
        journal.close()
    return found, fits, errors
