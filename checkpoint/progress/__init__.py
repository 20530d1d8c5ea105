"""Progress of unchanged scripts: how many optimizer steps they have made, and how many there will be.

Rule: the script must not be able to tell. Torch's own hook counts. We ask no device, print nothing, start no
thread, and a failure here ends the counting and not the script. What we cannot see for certain is unknown.

Reading order: `steps.py` (counts and tells, and asks Trainers), `loops.py` (which loops stand around a step),
`expressions.py` (what their heads say).
"""

from __future__ import annotations

from typing import Any

from cotenant.checkpoint.guard import COUNTING
from cotenant.checkpoint.progress.loading import Loading
from cotenant.checkpoint.progress.loops import Loaders
from cotenant.checkpoint.progress.steps import StepReporter

__all__ = ["PROGRESS", "install"]

PROGRESS = "progress"


def install(startup: Any, optimizers: Any) -> StepReporter:
    """Begins to report progress. startup: its `when_imported(name, callback)` says when a module is there.
    optimizers: the module `torch.optim.optimizer`, which may still be loading the rest of torch."""
    loaders = Loaders()

    def follow(module: Any) -> None:
        Loading(module, COUNTING, loaders.began)

    startup.when_imported("torch.utils.data.dataloader", follow)
    reporter = StepReporter(loaders)
    reporter.begin(optimizers.register_optimizer_step_post_hook)
    return reporter
