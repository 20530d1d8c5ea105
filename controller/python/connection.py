"""Questions to the controller: one, a few over one connection, one that is open until jobs have ended; and a
thread that calls back as they end, for `await` and for the executor's futures.

Rule: every failure leaves as an error of `errors.py`; the code that opens a connection closes it. A
controller that answered before and is silent now may be starting again: a wait for a job waits for it as
well. It keeps nothing but its thread, and a connection until it is over. A job that hosts failed too often
counts as ended: it waits for a person, and that may be the caller. Calling back takes one thread for each
controller, as long as anybody waits. It learns of new jobs at its next question, half a second later at most;
at the interpreter's exit it ends, and jobs go on.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

from cotenant.controller.client.asking import PATIENCE_S, asking, loaded_settings
from cotenant.controller.client.connection import Client, Refusal
from cotenant.controller.domain import ENDED, WAITING, JobId, Phase, texts
from cotenant.controller.present.problem import Problem
from cotenant.controller.python import errors
from cotenant.controller.python.results import reason_text
from cotenant.controller.system import paths
from cotenant.controller.wire import clients

Answer = TypeVar("Answer")

ROUND_S: Final = 5.0
"""Of one question; between two, jobs that wait for a person are looked for."""

WATCH_ROUND_S: Final = 0.5
CLOSE_S: Final = 2.0

OnJobView = Callable[[clients.JobView | Exception], None]
"""Hears of a job's end, or why nobody can hear of it. Must not raise, nor wait."""


@contextmanager
def connect(endpoint: str | None, *, patient: bool = False) -> Iterator[Client]:
    """Opens a client of the controller. `patient`: for waits that last as long as a job. Raises NoController,
    RequestRefused."""
    with translate_problems(), asking(endpoint, patience_s=PATIENCE_S if patient else 0.0) as client:
        client.on_silence = lambda text: None  # A library prints nothing.
        yield client


def ask_controller(
    question: clients.Question[Answer], endpoint: str | None, timeout_s: float | None = None
) -> Answer:
    """Asks the controller a question and returns the answer. Raises NoController, RequestRefused."""
    with connect(endpoint) as client:
        return client.ask(question, timeout_s)


@contextmanager
def translate_problems() -> Iterator[None]:
    """Turns the command line's problems into our errors."""
    try:
        yield
    except Problem as problem:
        raise error_of(problem) from None


def error_of(problem: Problem) -> errors.CotenantError:
    if problem.code == "unreachable":
        return errors.NoController(texts.one_line(problem.message), problem.hint)
    return errors.RequestRefused(problem.code, texts.one_line(problem.message), problem.hint)


def first_ended(client: Client, job_ids: Sequence[JobId], timeout_s: float) -> list[clients.JobView]:
    """The jobs among `job_ids` that are over, as soon as one is; none when the time is up."""
    reply = client.ask(clients.WaitJobs(job_ids=tuple(job_ids), timeout_s=max(0.0, timeout_s), first=True))
    over = [job for job in reply.jobs if job.phase in ENDED]
    if not over:
        held = client.ask(clients.ListJobs(job_ids=tuple(job_ids), states=(Phase.HELD,))).jobs
        over = [job for job in held if job.is_given_up]
    return [texts.escape_texts(job) for job in over]


def ended_jobs(
    job_ids: Sequence[JobId], endpoint: str | None, timeout_s: float | None, round_s: float = ROUND_S
) -> Iterator[list[clients.JobView]]:
    """Yields the jobs that have ended, one or more at a time, until all have ended. Raises StillRunning after
    `timeout_s`."""
    waiting = dict.fromkeys(job_ids)
    until_s = None if timeout_s is None else time.monotonic() + timeout_s
    with connect(endpoint, patient=True) as client:
        while waiting:
            left_s = round_s if until_s is None else min(round_s, until_s - time.monotonic())
            over = first_ended(client, list(waiting), left_s)
            for view in over:
                waiting.pop(view.job_id, None)
            if over:
                yield over
            elif until_s is not None and time.monotonic() >= until_s:
                raise _time_is_up(client, list(waiting), timeout_s or 0.0)


def _time_is_up(client: Client, job_ids: Sequence[JobId], timeout_s: float) -> errors.StillRunning:
    """The error that the time is up, with the state of the one job that is waited for, where there is one."""
    if len(job_ids) > 1:
        return errors.StillRunning(f"{len(job_ids)} jobs have not ended within {timeout_s:g} s")
    view = texts.escape_texts(
        client.ask(clients.ListJobs(job_ids=tuple(job_ids), include_ended=True)).jobs[0]
    )
    text = f"job {view.job_id} has not ended within {timeout_s:g} s; it is {reason_text(view)}"
    made_room = view.preemptions > 0 and view.phase in (*WAITING, Phase.RESERVED)
    return errors.JobPreempted(text) if made_room else errors.StillRunning(text)


class JobWatch:
    """The jobs of one controller for whose end somebody waits."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._waiting: dict[JobId, list[OnJobView]] = {}
        self._thread: threading.Thread | None = None
        self._over = False

    def tell(self, job_id: JobId, told: OnJobView) -> None:
        """Once, when the job has ended."""
        with self._lock:
            self._waiting.setdefault(job_id, []).append(told)
            if self._thread is None or not self._thread.is_alive():  # It is no thread of a forked process.
                self._thread = threading.Thread(target=self._run, name="cotenant-watch", daemon=True)
                self._thread.start()

    def forget(self, job_id: JobId, told: OnJobView) -> None:
        with self._lock:
            left = [each for each in self._waiting.pop(job_id, ()) if each is not told]
            if left:
                self._waiting[job_id] = left

    def close(self) -> None:
        """Nobody is told any more."""
        self._over = True
        with self._lock:
            self._waiting.clear()
            thread = self._thread
        if thread is not None:
            thread.join(CLOSE_S)  # It may be waiting for a controller that is silent.

    def _run(self) -> None:
        try:
            with connect(self._endpoint, patient=True) as client:
                while job_ids := self._open():
                    self._round(client, job_ids)
        except errors.CotenantError as error:
            self._fail(error)

    def _open(self) -> list[JobId]:
        """The jobs to ask for; none: the thread is over, and the next to ask starts another."""
        with self._lock:
            if not self._waiting or self._over:
                self._thread = None
            return [] if self._thread is None else list(self._waiting)

    def _round(self, client: Client, job_ids: list[JobId]) -> None:
        try:
            views = first_ended(client, job_ids, WATCH_ROUND_S)
        except Refusal as refusal:
            if len(job_ids) > 1:  # One of them is not known any more: each for itself.
                for job_id in job_ids:
                    self._round(client, [job_id])
                return
            failure = refusal.failure
            self._answer(job_ids[0], errors.RequestRefused(failure.code, failure.message, failure.hint))
            return
        for view in views:
            self._answer(view.job_id, view)

    def _answer(self, job_id: JobId, end: clients.JobView | Exception) -> None:
        with self._lock:
            tellers = self._waiting.pop(job_id, [])
        for told in tellers:
            told(end)

    def _fail(self, error: Exception) -> None:
        with self._lock:
            waiting, self._waiting, self._thread = self._waiting, {}, None
        for tellers in waiting.values():
            for told in tellers:
                told(error)


_WATCHES: dict[str, JobWatch] = {}
"""By endpoint."""
_LOCK = threading.Lock()


def watch(endpoint: str | None) -> JobWatch:
    """The one of the controller that this, or else what is configured now, stands for."""
    with translate_problems():
        where = paths.client_endpoint(loaded_settings(endpoint).settings)
    with _LOCK:
        if not _WATCHES:
            atexit.register(_close_all)
        return _WATCHES.setdefault(where, JobWatch(where))


def _close_all() -> None:
    for each in _WATCHES.values():
        each.close()
