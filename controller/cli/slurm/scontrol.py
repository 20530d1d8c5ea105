"""`scontrol` outside a job: hold, release, requeue and update, as far as they mean something here.

Rule: what is not in the tables is refused by name. Inside a job another `scontrol` answers (`agent/slurm/`).
"""

from __future__ import annotations

from typing import Final, Literal

from cotenant.controller.cli.frame.asking import asking
from cotenant.controller.cli.frame.problem import OK, Problem
from cotenant.controller.cli.frame.screen import tell
from cotenant.controller.cli.jobs.settings import setting
from cotenant.controller.domain import JobId
from cotenant.controller.wire import ChangeJobs
from cotenant.controller.wire import clients as wire

VERBS: Final[dict[str, Literal["hold", "release", "requeue"]]] = {
    "hold": "hold", "uhold": "hold", "release": "release", "requeue": "requeue",
}  # fmt: skip
SETTINGS: Final = {
    "timelimit": "time", "priority": "priority", "jobname": "name", "name": "name", "account": "organisation",
    "minmemorynode": "host_mem", "mincpusnode": "cpus",
}  # fmt: skip
"""Slurm's name of what may be updated, and ours."""


def scontrol(words: list[str]) -> int:
    """Changes jobs; says nothing where all went well, as Slurm's does."""
    verb, *rest = [word for word in words if word not in ("-Q", "--quiet")] or [""]
    if verb == "update":
        return _update(rest)
    if verb not in VERBS:
        known = ", ".join((*VERBS, "update"))
        raise Problem(
            "usage", f"scontrol {verb} is not possible here".replace("  ", " "), f"known are {known}"
        )
    jobs = [each.partition("=")[2] or each for word in rest for each in word.split(",")]
    if not jobs:
        raise Problem("usage", f"scontrol {verb}: no job was named", f"scontrol {verb} JOB")
    with asking() as client:
        reply = client.ask(ChangeJobs(verb=VERBS[verb], job_ids=tuple(map(JobId, jobs))))
    for line in reply.lines:
        tell(line)
    return OK


def _update(words: list[str]) -> int:
    """`JobId=7 TimeLimit=4:00:00 Priority=5`."""
    given = dict(_pair(word) for word in words)
    jobs = given.pop("jobid", "")
    if not jobs or not given:
        raise Problem("usage", "scontrol update: JobId=JOB and what is to be changed", "see docs/slurm.md")
    for key in given:
        if key not in SETTINGS:
            raise Problem(
                "usage", f"scontrol update: {key} is not known here", f"known are {', '.join(SETTINGS)}"
            )
    changes = dict(setting(f"{SETTINGS[key]}={value}") for key, value in given.items())
    with asking() as client:
        reply = client.ask(wire.SetJobs(job_ids=tuple(map(JobId, jobs.split(","))), changes=changes))
    for line in reply.lines:
        tell(line)
    return OK


def _pair(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals:
        raise Problem("usage", f"scontrol update: {word!r} is not KEY=VALUE")
    return key.lower(), value
