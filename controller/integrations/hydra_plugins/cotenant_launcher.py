"""Hydra's launcher `cotenant`: `python my_app.py --multirun hydra/launcher=cotenant lr=.1,.01`.

Rule: Hydra imports each plugin whenever an application starts, so nothing of ours is loaded before a sweep is
launched. A sweep's batch is one array. A job fails where its run failed, with an exception that carries what
Hydra wants to know of the run.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, configure_log, filter_overrides, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

log = logging.getLogger(__name__)


class CotenantLauncher(Launcher):
    """Runs each combination of a sweep as a task of one array, and waits for all of them."""

    def __init__(self, at_once: int = 0, **options: Any) -> None:
        """`at_once`: so many tasks run at a time, 0: all. `options` are those of `cotenant submit`."""
        super().__init__()
        self._at_once = at_once
        self._options = {name: plain_value(value) for name, value in options.items() if value is not None}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._context, self._function, self._config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Submits the batch and returns how its runs ended. Ctrl-C cancels those that have not."""
        import cotenant
        from cotenant.controller.python.handle import cancel

        setup_globals()
        configure_log(self._config.hydra.hydra_logging, self._config.hydra.verbose)
        Path(str(self._config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        numbers = range(initial_job_idx, initial_job_idx + len(job_overrides))
        jobs = cotenant.map(
            SweepRun(self._context, self._function, self._config),
            [list(each) for each in job_overrides],
            numbers,
            at_once=self._at_once,
            options={"name": self._config.hydra.job.name, **self._options},
        )
        for number, job, overrides in zip(numbers, jobs, job_overrides, strict=True):
            log.info("\t#%d : job %s : %s", number, job.id, " ".join(filter_overrides(overrides)))
        try:
            for job in cotenant.as_completed(jobs):
                log.info("job %s is %s", job.id, job.state)
        except KeyboardInterrupt:
            log.info("cancelling the jobs that have not ended")
            cancel(jobs)
            raise
        return [run_of(job, overrides) for job, overrides in zip(jobs, job_overrides, strict=True)]


class SweepRun:
    """The function of the jobs: one run of the application, as Hydra's own launcher does it."""

    def __init__(self, context: HydraContext, function: TaskFunction, config: DictConfig) -> None:
        self._made_of = context, function, config
        self._singletons = Singleton.get_state()

    def __call__(self, overrides: list[str], number: int) -> JobReturn:
        """Runs the application. Raises RunFailed: the application raised an exception."""
        context, function, config = self._made_of
        Singleton.set_state(self._singletons)
        setup_globals()
        run = context.config_loader.load_sweep_config(config, overrides)
        with open_dict(run):
            run.hydra.job.id = os.environ["COTENANT_JOB"]
            run.hydra.job.num = number
        found = run_job(
            hydra_context=context,
            task_function=function,
            config=run,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
        if found.status is JobStatus.FAILED:
            raise RunFailed(found) from found._return_value  # `return_value` would raise it.
        return found


class RunFailed(Exception):
    """The application raised an exception in its job. The argument is the JobReturn of the run."""

    def __str__(self) -> str:
        return f"overrides {self.args[0].overrides}"


def run_of(job: Any, overrides: Sequence[str]) -> JobReturn:
    """How the run of an ended job ended, for the sweeper: a failed run raises where its value is read."""
    try:
        found: JobReturn = job.result()
    except RunFailed as failed:
        found = failed.args[0]
    except Exception as error:  # noqa: BLE001  # The job was cancelled, say, or its time was over.
        return JobReturn(overrides=list(overrides), status=JobStatus.FAILED, _return_value=error)
    return found


def plain_value(value: Any) -> Any:
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


ConfigStore.instance().store(
    group="hydra/launcher",
    name="cotenant",
    # Not a struct: which options there are is checked by `cotenant.map`, when a sweep is launched.
    node=OmegaConf.create(
        {"_target_": f"{CotenantLauncher.__module__}.{CotenantLauncher.__qualname__}", "at_once": 0},
        flags={"struct": False},
    ),
    provider="cotenant",
)
