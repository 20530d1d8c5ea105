"""cotenant from Python: `cotenant.submit(train, gpus=2)`. See docs/python.md.

Rule: this file is the whole of the package's own `__init__`, here and in the job-side folder, and imports
nothing before it is asked for a name: `from cotenant import checkpoint` in a training script must not pay for
the API, nor need what it needs. `__path__` has every folder of that name on the path, in the path's order:
in a job the supervisor's own `checkpoint` and `gradaccum` come before those that are installed.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # As type checkers see it, it is true; `typing` would cost every script milliseconds.
if TYPE_CHECKING:
    from typing import Any

    from cotenant.controller.python.sending import batch
    from cotenant.controller.python.errors import (
        BadCall,
        CotenantError,
        JobCancelled,
        JobFailed,
        JobLost,
        JobPreempted,
        JobTimedOut,
        NoController,
        NoResult,
        RequestRefused,
        StillRunning,
    )
    from cotenant.controller.python.executor import JobExecutor
    from cotenant.controller.python.handle import as_completed, gather
    from cotenant.controller.python.handle import JobHandle, job, jobs
    from cotenant.controller.python.submitting import map, submit

__all__ = [
    "BadCall", "CotenantError", "JobCancelled", "JobExecutor", "JobFailed", "JobHandle", "JobLost",
    "JobPreempted", "JobTimedOut", "NoController", "NoResult", "RequestRefused", "StillRunning",
    "as_completed", "batch", "gather", "job", "jobs", "map", "submit",
]  # fmt: skip

_HOME = {
    "JobExecutor": "executor",
    "JobHandle": "handle",
    "as_completed": "handle",
    "batch": "sending",
    "gather": "handle",
    "job": "handle",
    "jobs": "handle",
    "map": "submitting",
    "submit": "submitting",
}
"""The modules of those that are no errors."""

__path__ += [
    folder
    for folder in (os.path.join(entry, "cotenant") for entry in sys.path)
    if folder not in __path__ and os.path.isdir(folder)
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module = importlib.import_module("cotenant.controller.python." + _HOME.get(name, "errors"))
    globals()[name] = value = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return [*__all__]
