"""The Python API: a thin face of the client, for scripts and notebooks.

Rule: a call asks the controller over a connection of its own and closes it; so nothing is left running, and
any thread may call. What a job is asked for is the command line's table of
options. `face/` is the `__init__` of `cotenant` itself; `inside.py` runs in the job. Names are imported on
first use: a job loads `inside` alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotenant.controller.python.batching import batch
    from cotenant.controller.python.errors import (
        BadCall,
        CotenantError,
        JobCancelled,
        JobFailed,
        JobLost,
        JobPreempted,
        JobTimedOut,
        NoResult,
        RequestRefused,
        StillRunning,
        NoController,
    )
    from cotenant.controller.python.executor import JobExecutor
    from cotenant.controller.python.handle import JobHandle, job
    from cotenant.controller.python.submitting import map, submit
    from cotenant.controller.python.gathering import as_completed, gather

__all__ = [
    "BadCall", "CotenantError", "JobCancelled", "JobExecutor", "JobFailed", "JobHandle", "JobLost",
    "JobPreempted", "JobTimedOut", "NoController", "NoResult", "RequestRefused", "StillRunning",
    "as_completed", "batch", "gather", "job", "map", "submit",
]  # fmt: skip

_HOME = {
    "JobExecutor": "executor",
    **dict.fromkeys(("JobHandle", "job"), "handle"),
    **dict.fromkeys(("map", "submit"), "submitting"),
    "batch": "batching",
    **dict.fromkeys(("as_completed", "gather"), "gathering"),
}
"""The others are errors."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module = importlib.import_module(f"{__name__}.{_HOME.get(name, 'errors')}")
    globals()[name] = value = getattr(module, name)
    return value
