"""Evaluations side by side, through joblib: processes of this machine, or a cluster of dask or Ray.

Rule: results come back in the order of the calls, so a search takes the same course whatever evaluates it and
on however many machines.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal

Backend = Literal["processes", "dask", "ray"]
LIBRARIES: Final[dict[Backend, tuple[str, ...]]] = {
    "processes": ("joblib",),
    "dask": ("joblib", "distributed"),
    "ray": ("joblib", "ray"),
}
"""What each needs."""

Evaluate = Callable[[Callable[..., Any], Sequence[tuple[Any, ...]]], Iterator[Any]]
"""A function, and the arguments of each call -> what it returned, call by call."""


class NoBackend(Exception):
    """The error of a backend whose library is not installed, or that cannot be reached."""


@contextmanager
def evaluator(backend: Backend, *, workers: int | None = None, address: str = "") -> Iterator[Evaluate]:
    """Calls functions in other processes while it is open.

    Args:
        workers: of this machine; None = one per core. A cluster has its own.
        address: of dask's scheduler or Ray's head; empty = one is started on this machine, and ended.

    Raises:
        NoBackend: see there.
    """
    for library in LIBRARIES[backend]:
        if importlib.util.find_spec(library) is None:
            why = f"--backend {backend} needs {library}, which is not installed: pip install {library}"
            raise NoBackend(why)
    import joblib

    count = workers or len(os.sched_getaffinity(0))

    def evaluate(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        parallel = joblib.Parallel(return_as="generator", max_nbytes=None)
        found: Iterator[Any] = parallel(joblib.delayed(function)(*call) for call in calls)
        return found

    if backend == "processes" and count == 1:
        yield lambda function, calls: (function(*call) for call in calls)
        return
    if backend == "processes":
        from joblib.externals.loky import get_reusable_executor

        try:
            with joblib.parallel_config(backend="loky", n_jobs=count):
                yield evaluate
        finally:  # Otherwise its processes wait for more, minutes long.
            get_reusable_executor().shutdown(wait=True)
    elif backend == "dask":
        with _dask(address, count), joblib.parallel_config(backend="dask", n_jobs=-1):
            yield evaluate
    else:
        _ray(address)
        with joblib.parallel_config(backend="ray", n_jobs=-1):
            yield evaluate


@contextmanager
def _dask(address: str, workers: int) -> Iterator[None]:
    import distributed as dask

    connect: Any = dask.Client
    start: Any = dask.LocalCluster

    if address:
        try:
            client = connect(address, timeout="10s")
        except (OSError, ValueError) as error:
            raise NoBackend(f"dask's scheduler {address} cannot be reached: {error}") from None
        with client:
            yield
        return
    with (
        start(
            n_workers=workers, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0"
        ) as cluster,
        connect(cluster),
    ):
        yield


def _ray(address: str) -> None:
    import ray
    from ray.util.joblib import register_ray

    try:
        ray.init(address=address or None, ignore_reinit_error=True, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise NoBackend(f"Ray at {address or 'this machine'} cannot be reached: {error}") from None
    register_ray()
