"""Several runs at once, each in a process of its own, with progress and a way to stop.

Rule: what a run returns depends on its task alone, never on who ran beside it or in which process. A stop
loses no finished run, and a run under way returns its results so far.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from cotenant.controller.domain import AnyCommand
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine
from cotenant.controller.policies import registry
from cotenant.controller.sim.choices import PolicyChoice
from cotenant.controller.sim.drive import Computes, nothing
from cotenant.controller.sim.eta import EtaTrial
from cotenant.controller.sim.results.placements import Placements
from cotenant.controller.sim.results.summary import summarise
from cotenant.controller.sim.simulate import Look, simulate
from cotenant.controller.sim.world.outcome import RunResult
from cotenant.controller.sim.world.physics import Failures, Physics
from cotenant.controller.sim.world.workload import Cluster, Workload
from cotenant.controller.timeline import Timeline

REPORT_EVERY_S: Final = 0.2
WORTH_A_PROCESS: Final = 20_000
"""With fewer jobs over all runs, starting processes takes longer than the runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A run to simulate: everything its result depends on."""

    policy: PolicyChoice
    seed: int
    workload: Workload
    cluster: Cluster
    physics: Physics
    failures: Failures | None = None
    ageing_s: float = 0.0
    trim: float = 0.0
    """Share of the jobs at each end that run without being counted."""
    warm: int = 0
    """How many jobs at the beginning run without being counted: the warm-up of a window."""
    eta: bool = False
    """Tell intervals at submissions, and compare them with what comes."""
    drawn: bool = False
    """Record who held which device when."""
    promise_share: float = 0.0
    """The share of jobs, drawn, that ask for a promise."""
    window: int | None = None
    """The window of the trace; None: all of it."""
    differs: str = ""
    """How tasks of one policy differ, in a few words."""

    @property
    def label(self) -> str:
        return f"{self.policy.label}, {self.differs}" if self.differs else self.policy.label


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskRun:
    """The result of a task."""

    task: Task
    summary: dict[str, Any]
    outcome: RunResult | None
    """Only where asked for: it is large."""
    timeline: Timeline | None = None
    """Only of a task that records them."""

    @property
    def label(self) -> str:
        return self.task.label


class StopFlag(Protocol):
    """Set once, seen by every process."""

    def is_set(self) -> bool: ...

    def set(self) -> None: ...


class TaskProgress(NamedTuple):
    """How far a task is, by its place in the list of tasks."""

    task: int
    finished: int
    total: int


OnTaskProgress = Callable[[TaskProgress], None]
OnAsked = Callable[[int], None]
_ENDING: Final = (signal.SIGINT, signal.SIGTERM)


class WorkerLost(Exception):
    """A process ended without a result: most often it was out of memory."""


def run_all(
    tasks: Sequence[Task],
    *,
    workers: int | None = None,
    keep: bool = False,
    report: OnTaskProgress | None = None,
    asked: OnAsked = lambda number: None,
    compute: Computes = nothing,
) -> list[TaskRun]:
    """Runs all tasks and returns runs in the order of the tasks. After an interrupt (Ctrl-C, SIGTERM) the
    function returns finished runs, and those under way with their results so far. A second interrupt ends
    everything at once.

    Args:
        workers: processes; None = one per core. With one, everything runs in this process.
        keep: whether outcomes (columns of every job) come back as well.
        asked: told of the signal that interrupts.
        compute: as `simulate` takes it; a function of a module, for it goes to other processes.

    Raises:
        WorkerLost: a process died.
        KeyboardInterrupt: interrupted twice.
    """
    tell = report or (lambda progress: None)
    jobs = sum(len(task.workload) for task in tasks)
    count = min(workers or len(os.sched_getaffinity(0)), len(tasks))
    if count <= 1 or (workers is None and jobs < WORTH_A_PROCESS):
        return _here(tasks, keep, tell, asked, compute)
    return _run_in_processes(tasks, count, keep, tell, asked, compute)


def _here(
    tasks: Sequence[Task], keep: bool, report: OnTaskProgress, asked: OnAsked, compute: Computes
) -> list[TaskRun]:
    stop = threading.Event()
    runs: list[TaskRun] = []
    with stopping(stop, asked):
        for number, task in enumerate(tasks):
            if stop.is_set():
                break
            runs.append(_run(number, task, keep, stop, report, compute))
    return runs


def _run_in_processes(
    tasks: Sequence[Task], count: int, keep: bool, report: OnTaskProgress, asked: OnAsked, compute: Computes
) -> list[TaskRun]:
    context = multiprocessing.get_context("spawn")  # A fork would copy threads' locks in unknown states.
    stop, mail = context.Event(), context.SimpleQueue()
    pool = ProcessPoolExecutor(count, context, initializer=_begin_worker, initargs=(stop, mail))
    futures: dict[Future[TaskRun | None], int] = {}
    try:
        with _interrupts_blocked():  # What a process starts with, it keeps: only this one hears Ctrl-C.
            for number, task in enumerate(tasks):
                futures[pool.submit(_run_task, number, task, keep, compute)] = number
        with stopping(stop, asked):
            _wait_for(futures, stop, mail, report)
    except BrokenProcessPool:
        raise WorkerLost("a simulation's process ended by itself, probably out of memory") from None
    except KeyboardInterrupt:
        for process in (pool._processes or {}).values():
            process.kill()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    ended = [future.result() for future in futures if not future.cancelled()]
    return [run for run in ended if run is not None]


def _wait_for(
    futures: dict[Future[TaskRun | None], int], stop: StopFlag, mail: Any, report: OnTaskProgress
) -> None:
    waiting = set(futures)
    while waiting:
        ended, waiting = wait(waiting, timeout=REPORT_EVERY_S / 2, return_when=FIRST_COMPLETED)
        for future in ended:
            if not future.cancelled():
                future.result()
        while not mail.empty():
            report(mail.get())
        if stop.is_set():
            waiting -= {future for future in waiting if future.cancel()}


# --- In the process that simulates -------------------------------------------------------------------

_stop: StopFlag
_mail: Any


def _begin_worker(stop: StopFlag, mail: Any) -> None:
    global _stop, _mail
    for number in _ENDING:  # A signal may reach the whole group of processes: the first one passes it on.
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    _stop, _mail = stop, mail


def _run_task(number: int, task: Task, keep: bool, compute: Computes) -> TaskRun | None:
    """Runs a task in a worker. None: the stop came before the task began (a pool hands out a little more than
    it has processes)."""
    if _stop.is_set():
        return None
    return _run(number, task, keep, _stop, _mail.put, compute)


def _run(
    number: int, task: Task, keep: bool, stop: StopFlag, report: OnTaskProgress, compute: Computes
) -> TaskRun:
    trial = EtaTrial(task.workload, task.seed, registry.make_for_roll_outs) if task.eta else None
    placements = Placements() if task.drawn else None
    lookers: list[Look] = [each for each in (trial, placements) if each is not None]

    def look(engine: Engine, event: ev.AnyEvent, commands: Sequence[AnyCommand]) -> None:
        for each in lookers:
            each(engine, event, commands)

    try:
        outcome = simulate(
            task.workload,
            task.cluster,
            task.policy.name,
            task.policy.parameters,
            seed=task.seed,
            physics=task.physics,
            failures=task.failures,
            ageing_s=task.ageing_s,
            watch=_watch(number, stop, report),
            compute=compute,
            look=look if lookers else None,
            promise_share=task.promise_share,
        )
    except Exception as error:  # Most often a mistake in a policy of one's own: the traceback shows the line.
        error.add_note(f"while policy {task.label} was simulated, seed {task.seed}")
        raise
    report(TaskProgress(number, int(outcome.finished.sum()), len(task.workload)))
    said = {"label": task.label, "window": task.window}
    summary = {**said, **summarise(outcome, task.trim, task.warm)}
    if trial is not None:
        summary |= {"eta": trial.result(), "prediction_error": trial.prediction_error()}
    return TaskRun(
        task=task,
        summary=summary,
        outcome=outcome if keep else None,
        timeline=None
        if placements is None
        else placements.timeline(f"{task.workload.name}: {task.label}", task.policy.label, _about(task)),
    )


def _about(task: Task) -> str:
    cluster = task.cluster
    said = f"simulated, {cluster.hosts} x {cluster.gpus_per_host} devices, seed {task.seed}"
    return f"{said}; SYNTHETIC jobs" if task.workload.synthetic else said


def _watch(number: int, stop: StopFlag, report: OnTaskProgress) -> Callable[[int, int, float], None]:
    """Reports how far a run is, now and then; ends it if a stop was asked for."""
    next_s = 0.0

    def watch(finished: int, total: int, now_s: float) -> None:
        nonlocal next_s
        if stop.is_set():
            raise KeyboardInterrupt
        if (moment_s := time.monotonic()) >= next_s or finished == total:
            next_s = moment_s + REPORT_EVERY_S
            report(TaskProgress(number, finished, total))

    return watch


# --- Ctrl-C ------------------------------------------------------------------------------------------


@contextmanager
def stopping(stop: StopFlag, asked: OnAsked = lambda number: None) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM sets `stop`, the second one interrupts; each is told to `asked`. Elsewhere
    than in the main thread: nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def heard(number: int, frame: object) -> None:
        asked(number)
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, heard) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Delays signals until the block ends."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
