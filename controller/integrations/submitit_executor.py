"""submitit's executor `cotenant`: `submitit.AutoExecutor(folder="logs/%j", cluster="cotenant")`.

Rule: submitit's folder has what it has on any cluster, and a job's command is submitit's own, so that code
written for it needs no change. We add the submission, the question for the state, and the place of a task in
its job. Several submissions at once are one array.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from submitit.core import core, job_environment
from submitit.core.logger import get_logger
from submitit.core.utils import DelayedSubmission, JobPaths

from cotenant.controller.domain import JobId, Phase
from cotenant.controller.python.connection import ask_controller
from cotenant.controller.python.errors import CotenantError
from cotenant.controller.python.handle import JobHandle
from cotenant.controller.python.packing import name_of
from cotenant.controller.python.results import TIME_LIMITS
from cotenant.controller.python.submitting import options_of, submit, submit_array
from cotenant.controller.submission.options import BY_KEY
from cotenant.controller.wire import clients

TASKS: Final = "SUBMITIT_COTENANT_TASKS"
NODES: Final = "SUBMITIT_COTENANT_NODES"

SHARED: Final = frozenset((*core.EquivalenceDict.__annotations__, "stderr_to_stdout"))
"""submitit's parameters for every cluster."""
AT_ONCE: Final = "array_parallelism"

STATES: Final = {
    **dict.fromkeys((Phase.BLOCKED, Phase.HELD, Phase.QUEUED, Phase.RESERVED), "PENDING"),
    **dict.fromkeys((Phase.LOADING, Phase.RUNNING), "RUNNING"),
    **dict.fromkeys((Phase.CHECKPOINTING, Phase.STOPPING), "COMPLETING"),
    Phase.DONE: "COMPLETED",
    Phase.FAILED: "FAILED",
    Phase.CANCELLED: "CANCELLED",
}
"""Slurm's words, which code that uses submitit compares with."""


def state_of(job: clients.JobView) -> str:
    """The state of a job in Slurm's words; one that hosts failed too often has ended for submitit."""
    if job.is_given_up:
        return "NODE_FAIL"
    if job.phase is Phase.FAILED and job.reason_code in TIME_LIMITS:
        return "TIMEOUT"
    if job.phase is Phase.QUEUED and job.preemptions:
        return "PREEMPTED"
    return STATES[job.phase]


def tasks_of(parameters: Mapping[str, Any]) -> tuple[int, int]:
    """Returns how many nodes a job has, and how many tasks on each."""
    return parameters.get("nodes") or 1, parameters.get("tasks_per_node") or 1


def job_options(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `cotenant submit` that submitit's parameters stand for; those with our own names win.

    Raises:
        ValueError: the tasks of a node are neither one nor as many as its GPUs.
    """
    nodes, tasks = tasks_of(parameters)
    gpus = parameters.get("gpus_per_node") or tasks
    if tasks not in (1, gpus):
        raise ValueError(
            f"tasks_per_node={tasks} with gpus_per_node={gpus}: here a node has one task, or one for each GPU"
        )
    found: dict[str, Any] = {
        "nodes": nodes,
        "gpus": nodes * gpus,
        "launch": "process" if nodes * tasks == 1 else "worker" if tasks == gpus else "host",
    }
    if "name" in parameters:
        found["name"] = parameters["name"]
    if "timeout_min" in parameters:
        found["time"] = f"{parameters['timeout_min']}m"
    if "mem_gb" in parameters:
        found["host_mem"] = f"{round(parameters['mem_gb'] * 1024)}M"
    if "cpus_per_task" in parameters:
        found["cpus"] = parameters["cpus_per_task"] * tasks
    found |= {name: value for name, value in parameters.items() if name not in (*SHARED, AT_ONCE)}
    place = {"SUBMITIT_EXECUTOR": CotenantExecutor.name(), NODES: nodes, TASKS: nodes * tasks}
    return {**found, "env": {**(found.get("env") or {}), **place}}


class CotenantWatcher(core.InfoWatcher):
    """Knows the states of all jobs that this process has submitted, by one question every few seconds."""

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        return self.get_info(job_id, mode=mode).get("State") or "UNKNOWN"

    def update(self) -> None:
        self._num_calls += 1
        self._last_status_check = time.time()
        asked = tuple(JobId(each) for each in sorted(self._registered - self._finished))
        if not asked:
            return
        question = clients.ListJobs(job_ids=asked, include_ended=True, brief=True)
        try:
            for job in ask_controller(question, None).jobs:
                self._info_dict[job.job_id] = {"State": state_of(job), "Reason": job.reason}
        except CotenantError as error:
            get_logger().warning(f"{error}; states may be old")
        self._finished |= {each for each in asked if self.is_done(each, mode="cache")}


class CotenantJob(core.Job[core.R]):
    """A job, or a task of one, of which submitit's folder has the call and the result."""

    watcher = CotenantWatcher(delay_s=5)

    def cancel(self, check: bool = True) -> None:
        """Cancels the job. Raises RequestRefused: it is somebody else's. `check` changes nothing."""
        JobHandle[Any](self.job_id).cancel()

    def _get_logs_string(self, name: str) -> str | None:
        """The file of its output, else what the controller has; standard error is in the same."""
        found: str | None = super()._get_logs_string(name)
        if found is None and name == "stdout":
            found = JobHandle[Any](self.job_id).logs(rank=self.task_id or 0) or None
        return found


class CotenantExecutor(core.Executor):
    """Submits calls as jobs. `cotenant_NAME=` of `AutoExecutor.update_parameters` is the option of that name
    of `cotenant submit`; `cotenant_array_parallelism=` is how many tasks of an array run at a time."""

    job_class = CotenantJob

    def __init__(self, folder: str | Path, max_num_timeout: int = 3) -> None:
        """`max_num_timeout`: so often a call with `checkpoint` goes on after its time limit."""
        super().__init__(folder)
        self.max_num_timeout = max_num_timeout

    @classmethod
    def affinity(cls) -> int:
        """Zero: code that does not ask for this cluster goes where it went before."""
        return 0

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return {*BY_KEY, AT_ONCE} - {"array", "launch"}

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        """Raises BadCall, ValueError: there is no such parameter, or a value does not fit."""
        options_of(job_options({**self.parameters, **kwargs}))
        super()._internal_update_parameters(**kwargs)

    def _internal_process_submissions(
        self, delayed_submissions: list[DelayedSubmission]
    ) -> list[core.Job[Any]]:
        options = self._options_of(delayed_submissions)
        folder = JobPaths.get_first_id_independent_folder(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        calls = [folder / f"{uuid.uuid4().hex}.pkl" for _ in delayed_submissions]
        command = [sys.executable, "-u", "-m", "submitit.core._submit", str(self.folder)]
        try:
            for each, file in zip(delayed_submissions, calls, strict=True):
                each.set_timeout(self.parameters.get("timeout_min", 0), self.max_num_timeout)
                each.dump(file)
            if len(calls) == 1:
                handles = [submit(command=command, options=options)]
            else:
                at_once = self.parameters.get(AT_ONCE, 0)
                handles = submit_array(command, len(calls), at_once=at_once, options=options)
        except BaseException:
            for file in calls:
                file.unlink(missing_ok=True)
            raise
        nodes, tasks = tasks_of(self.parameters)
        jobs: list[core.Job[Any]]
        jobs = [self.job_class(self.folder, handle.id, range(nodes * tasks)) for handle in handles]
        for job, file in zip(jobs, calls, strict=True):
            job.paths.move_temporary_file(file, "submitted_pickle")  # For which the job waits a minute.
        return jobs

    def _options_of(self, calls: Sequence[DelayedSubmission]) -> dict[str, Any]:
        options = {"name": name_of(calls[0].function), **job_options(self.parameters)}
        if any(hasattr(each.function, "checkpoint") for each in calls):
            options = {"resumable": "yes", **options}
            if "time" in options:
                options = {"requeue_at_limit": self.max_num_timeout, **options}
        task = "%r" if options["launch"] == "worker" else "%n"
        folder = str(self.folder).replace("%t", task).replace("%a", "%i")
        return {"output": f"{folder}/%j_{task}_log.out", **options}


class CotenantJobEnvironment(job_environment.JobEnvironment):
    """The place of a task in its job: what `submitit.JobEnvironment()` is inside."""

    _env: ClassVar[dict[str, str]] = {
        "job_id": "COTENANT_JOB",
        "num_tasks": TASKS,
        "num_nodes": NODES,
        "node": "GROUP_RANK",
        "global_rank": "RANK",
        "local_rank": "LOCAL_RANK",
    }

    @property
    def global_rank(self) -> int:
        """A job that starts once per host has no RANK."""
        return int(os.environ.get("RANK", self.node))

    def _handle_signals(self, paths: JobPaths, submission: DelayedSubmission) -> None:
        """A call with `checkpoint` is asked for its next submission when it has to leave its devices; every
        other call ends by the signal, as a script would."""
        if hasattr(submission.function, "checkpoint"):
            handler = job_environment.SignalHandler(self, paths, submission)
            signal.signal(signal.SIGTERM, handler.checkpoint_and_exit)
