"""`concurrent.futures.Executor` over jobs: what takes an executor takes this one.

Rule: it behaves as the standard library's documentation says. A call is waiting until its job runs for the
first time, and can be cancelled as long; to end a running one, `future.job.cancel()`. Jobs go on when the
shell that submitted them ends without having waited."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from concurrent.futures import wait as wait_for
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from cotenant.controller.domain import WAITING, JobId
from cotenant.controller.python import connection, errors, handle, submitting
from cotenant.controller.wire import clients as wire

T = TypeVar("T")


class JobFuture(Future[T]):
    """The future of one call; `job` has what futures do not know."""

    def __init__(self, job: handle.JobHandle[T]) -> None:
        super().__init__()
        self.job = job
        self._asking = threading.Lock()

    def cancel(self) -> bool:
        """False if its job has started or ended."""
        with self._asking:
            if super().done():
                return self.cancelled()
            if self.job.view().phase not in WAITING or not self.job.cancel():
                return False
            super().cancel()
            self.set_running_or_notify_cancel()
            return True

    def running(self) -> bool:
        return not self.done() and self.job.view().phase not in WAITING

    def settle(self, end: wire.JobView | Exception) -> None:
        """Settles the future: the job has ended, or nobody can know any more."""
        with self._asking:
            if self.done():
                return
            try:
                if isinstance(end, Exception):
                    raise end
                value = self.job.saw_end(end).outcome_of(end)
            except errors.JobCancelled:
                super().cancel()
                self.set_running_or_notify_cancel()
            except Exception as error:  # noqa: BLE001  # Whatever the function raised.
                self.set_exception(error)
            else:
                self.set_result(value)


class JobExecutor(Executor):
    """`JobExecutor(gpus=1, time="1h")`: the options are those of `submit`, for all its calls."""

    def __init__(
        self,
        *,
        folder: str | Path | None = None,
        endpoint: str | None = None,
        cancel_rest: bool = False,
        **options: Any,
    ) -> None:
        """Makes an executor that submits jobs. `cancel_rest`: an exception that leaves the `with` block
        (Ctrl-C, too) cancels what has not ended.

        Raises BadCall: an option is wrong.
        """
        submitting.options_of(options)
        self._options = options
        self._places: dict[str, Any] = {"folder": folder, "endpoint": endpoint}
        self._endpoint = endpoint
        self._cancel_rest = cancel_rest
        self._futures: set[JobFuture[Any]] = set()
        self._is_shut = False
        self._lock = threading.Lock()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> JobFuture[T]:
        with self._lock:
            self._must_be_open()
            return self._future_of(
                submitting.submit(fn, *args, kwargs=kwargs, options=self._options, **self._places)
            )

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[T]:
        """All calls in one request. `chunksize` has no effect, as with threads."""
        until_s = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            self._must_be_open()
            futures = [
                self._future_of(job)
                for job in submitting.map(fn, *iterables, options=self._options, **self._places)
            ]

        def results() -> Iterator[T]:
            try:
                for at in range(len(futures)):
                    left_s = None if until_s is None else until_s - time.monotonic()
                    yield futures[at].result(left_s)
            finally:
                for future in futures:
                    future.cancel()

        return results()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            self._is_shut = True
            futures = list(self._futures)
        if cancel_futures:
            for future in futures:
                future.cancel()
        if wait:
            wait_for(futures)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and self._cancel_rest:
            for future in list(self._futures):
                if not future.done():
                    future.job.cancel()
        self.shutdown(wait=True)

    def _must_be_open(self) -> None:
        if self._is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")

    def _future_of(self, job: handle.JobHandle[T]) -> JobFuture[T]:
        future = JobFuture(job)
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        connection.watch(self._endpoint).tell(JobId(job.id), future.settle)
        return future
