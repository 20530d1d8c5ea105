"""torchx's scheduler `cotenant`: `torchx run -s cotenant dist.ddp -j 1x2 --script train.py`.

Rule: an app is one job of one role, whose replicas are the hosts of a gang; the role's command starts once on
each. What torchx fills in where the job runs (its number, the replica's) is left to a shell there.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from torchx import specs
from torchx.schedulers import api
from torchx.specs import AppDef, AppDryRunInfo, AppState, CfgVal, Role, macros

from cotenant.controller.domain import ON_DEVICES, Phase
from cotenant.controller.python.connection import ask_controller
from cotenant.controller.python.errors import RequestRefused
from cotenant.controller.python.handle import JobHandle
from cotenant.controller.python.submitting import submit
from cotenant.controller.submission.options import OPTIONS
from cotenant.controller.submission.recording import user_name
from cotenant.controller.wire import clients

MARK: Final = "\0"
"""Before and after the name of a variable that a shell puts in."""
FROM_ROLE: Final = ("gpus", "nodes", "cpus", "env", "array", "launch")
"""Options that the role has the values of."""
ROLE: Final = "TORCHX_ROLE"
"""A variable of the job: its role's name, by which torchx asks for logs."""
MEMORY_MB_UNSAID: Final = 1024
"""What `dist.ddp` asks for where nobody does; here it would be a limit, and too low for most."""

ENDS: Final = {
    Phase.DONE: AppState.SUCCEEDED,
    Phase.FAILED: AppState.FAILED,
    Phase.CANCELLED: AppState.CANCELLED,
}


def state_of(job: clients.JobView) -> AppState:
    """The state of a job as torchx names it; one that hosts failed too often has failed."""
    if job.is_given_up:
        return AppState.FAILED
    return ENDS.get(job.phase, AppState.RUNNING if job.phase in ON_DEVICES else AppState.PENDING)


def request_of(app: AppDef, cfg: Mapping[str, CfgVal]) -> dict[str, Any]:
    """The arguments of `submit` that an app becomes, with the run's own options. Raises ValueError: it has
    several roles, or mounts."""
    if len(app.roles) != 1:
        names = ", ".join(role.name for role in app.roles)
        raise ValueError(f"{app.name} has several roles ({names}), a job has one: run each by itself")
    role = fill_macros(app.roles[0])
    if role.mounts:
        raise ValueError(f"role {role.name} has mounts, jobs see their hosts' files: leave --mounts out")
    workers = re.search(r"--nproc[_-]per[_-]node[ =](\d+)", " ".join(role.args))
    wanted = role.resource
    gpus = wanted.gpu if wanted.gpu > 0 else int(workers[1]) if workers else 1
    options: dict[str, Any] = {
        "name": app.name,
        "nodes": role.num_replicas,
        "gpus": role.num_replicas * gpus,
        "launch": "host",
        "env": {name: text for name, text in role.env.items() if MARK not in text} | {ROLE: role.name},
        "retries": role.max_retries,
    }
    if wanted.cpu > 0:
        options["cpus"] = wanted.cpu
    if wanted.memMB > 0 and wanted.memMB != MEMORY_MB_UNSAID:
        options["host_mem"] = f"{wanted.memMB}M"
    options |= {key: text for key, text in cfg.items() if text is not None}
    return {"command": command_of(role), "options": options}


def fill_macros(role: Role) -> Role:
    """The role with torchx's macros filled in; what only its host knows is a variable between marks."""
    known = {"app_id": f"{MARK}COTENANT_JOB{MARK}", "replica_id": f"{MARK}GROUP_RANK{MARK}"}
    return macros.Values(img_root=str(Path.cwd()), rank0_env="MASTER_ADDR", **known).apply(role)


def command_of(role: Role) -> list[str]:
    """The command of a role with its macros filled in, in a shell that puts in the variables."""
    exports = [f"export {name}={_word(text)}; " for name, text in role.env.items() if MARK in text]
    if role.num_replicas > 1:  # torchrun compares names of hosts instead, which may resolve to anything.
        exports.append("export PET_RDZV_CONF=is_host=$((GROUP_RANK == 0)); ")
    words = " ".join(_word(each) for each in (role.entrypoint, *role.args))
    return ["sh", "-c", f"{''.join(exports)}exec {words}"]


def _word(text: str) -> str:
    """The text as one word of a shell."""
    parts = enumerate(text.split(MARK))
    return "".join(f'"${part}"' if at % 2 else shlex.quote(part) for at, part in parts if part) or "''"


class CotenantScheduler(api.Scheduler[Mapping[str, CfgVal]]):  # type: ignore[misc]  # torchx has no types.
    """Runs apps of torchx as jobs; the number of the job is the app's."""

    def __init__(self, session_name: str) -> None:
        super().__init__("cotenant", session_name)

    def _run_opts(self) -> specs.runopts:
        opts = specs.runopts()
        for option in OPTIONS:
            if option.key not in FROM_ROLE:
                opts.add(option.key, type_=str, help=option.help)
        return opts

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[dict[str, Any]]:
        return AppDryRunInfo(request_of(app, cfg), str)

    def schedule(self, dryrun_info: AppDryRunInfo[dict[str, Any]]) -> str:
        return submit(**dryrun_info.request).id

    def describe(self, app_id: str) -> api.DescribeAppResponse | None:
        try:
            job = JobHandle[int](app_id).details()
        except RequestRefused as refused:
            if refused.code != "not-found":
                raise
            return None
        state, hosts = state_of(job), max(1, job.spec.nodes)
        name = job.spec.launch.env.get(ROLE, job.name)
        replicas = [specs.ReplicaStatus(id=at, state=state, role=name, hostname="") for at in range(hosts)]
        return api.DescribeAppResponse(
            app_id=app_id,
            state=state,
            num_restarts=max(0, job.attempt - 1),
            msg=job.reason,
            roles=[Role(name=name, image="", num_replicas=hosts)],
            roles_statuses=[specs.RoleStatus(name, replicas)],
        )

    def list(self) -> list[api.ListAppResponse]:
        jobs = ask_controller(clients.ListJobs(user=user_name(), include_ended=True, brief=True), None).jobs
        return [api.ListAppResponse(app_id=job.job_id, state=state_of(job)) for job in jobs]

    def _cancel_existing(self, app_id: str) -> None:
        JobHandle[int](app_id).cancel()

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: api.Stream | None = None,
    ) -> Iterable[str]:
        """The lines of one host, over all attempts. Raises ValueError: only one stream is asked for."""
        if streams not in (None, api.Stream.COMBINED):
            raise ValueError("a job's standard output and standard error are one log: ask for both")
        job = JobHandle[int](app_id)
        spec = job.details().spec
        rank = k * (spec.gpus_min // max(1, spec.nodes))
        lines = job.logs(follow=True, rank=rank) if should_tail else api.split_lines(job.logs(rank=rank))
        return api.filter_regex(regex, lines) if regex else lines


def create_scheduler(session_name: str, **kwargs: object) -> CotenantScheduler:
    """What torchx makes the scheduler with."""
    return CotenantScheduler(session_name)
