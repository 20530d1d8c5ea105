"""Calls back when a job ends: for `await` and for the executor's futures. Rule: one thread for each
controller, as long as anybody waits. It learns of new jobs at its next question, half a second later at most;
at the interpreter's exit it ends, and jobs go on."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from typing import Final

from cotenant.controller.cli.frame.asking import loaded_settings
from cotenant.controller.client import Client, Refusal
from cotenant.controller.domain import JobId
from cotenant.controller.python.connection import connected, translated
from cotenant.controller.python.errors import CotenantError, RequestRefused
from cotenant.controller.python.waiting import first_ended
from cotenant.controller.system import paths
from cotenant.controller.wire import JobView

ROUND_S: Final = 0.5
CLOSE_S: Final = 2.0

Told = Callable[[JobView | Exception], None]
"""Hears of a job's end, or why nobody can hear of it. Must not raise, nor wait."""


class Watch:
    """The jobs of one controller for whose end somebody waits."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._waiting: dict[JobId, list[Told]] = {}
        self._thread: threading.Thread | None = None
        self._over = False

    def tell(self, job_id: JobId, told: Told) -> None:
        """Once, when the job has ended."""
        with self._lock:
            self._waiting.setdefault(job_id, []).append(told)
            if self._thread is None or not self._thread.is_alive():  # It is no thread of a forked process.
                self._thread = threading.Thread(target=self._run, name="cotenant-watch", daemon=True)
                self._thread.start()

    def forget(self, job_id: JobId, told: Told) -> None:
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
            with connected(self._endpoint, patient=True) as client:
                while job_ids := self._open():
                    self._round(client, job_ids)
        except CotenantError as error:
            self._fail(error)

    def _open(self) -> list[JobId]:
        """Whom to ask for; none: the thread is over, and the next to ask starts another."""
        with self._lock:
            if not self._waiting or self._over:
                self._thread = None
            return [] if self._thread is None else list(self._waiting)

    def _round(self, client: Client, job_ids: list[JobId]) -> None:
        try:
            views = first_ended(client, job_ids, ROUND_S)
        except Refusal as refusal:
            if len(job_ids) > 1:  # One of them is not known any more: each for itself.
                for job_id in job_ids:
                    self._round(client, [job_id])
                return
            failure = refusal.failure
            self._answer(job_ids[0], RequestRefused(failure.code, failure.message, failure.hint))
            return
        for view in views:
            self._answer(view.job_id, view)

    def _answer(self, job_id: JobId, end: JobView | Exception) -> None:
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


_WATCHES: dict[str, Watch] = {}
"""By endpoint."""
_LOCK = threading.Lock()


def watch(endpoint: str | None) -> Watch:
    """The one of the controller that this, or else what is configured now, stands for."""
    with translated():
        where = paths.client_endpoint(loaded_settings(endpoint).settings)
    with _LOCK:
        if not _WATCHES:
            atexit.register(_close_all)
        return _WATCHES.setdefault(where, Watch(where))


def _close_all() -> None:
    for each in _WATCHES.values():
        each.close()
