"""The tools that read. Each asks what the verb of its name asks, and answers with the JSON of its `-o json`.

Rule: a docstring here is what a model is told of the tool.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field

from cotenant.controller.cli.jobs.queue import states_of
from cotenant.controller.cli.jobs.submit import prepared_submission
from cotenant.controller.client.arrays import ask_of_job, only, row_of
from cotenant.controller.client.connection import Client
from cotenant.controller.client.output import read_end
from cotenant.controller.domain import JobId
from cotenant.controller.integrations.mcp.bounds import LEFT_OUT, Document
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.terminal import last_words
from cotenant.controller.submission.build import Submission
from cotenant.controller.submission.flags import duration_of
from cotenant.controller.submission.options import OPTIONS, Options, option_of, read
from cotenant.controller.wire import clients as wire

LOG_BYTES_MAX: Final = 10_000
"""As JSON at most twice as long, so that an answer holds it."""
ARRIVAL_WITHIN_S: Final = 120.0

JobNumber = Annotated[
    str, Field(pattern=r"^[0-9][0-9_,:%\[\]-]{0,255}$", description="Such as 7, 38_2 or 38_[0-3,7].")
]
JobNumbers = Annotated[list[JobNumber], Field(max_length=100)]
ShortText = Annotated[str, Field(max_length=256)]
CommandWords = Annotated[
    list[Annotated[str, Field(max_length=16_384)]],
    Field(
        max_length=256, description="A program and its arguments, or one YAML file or script with options."
    ),
]
GivenOptions = Annotated[
    dict[str, str | int | float | bool | list[str]],
    Field(
        max_length=60,
        description="As in a YAML file of `cotenant submit`: "
        + ", ".join(f"{each.key} {each.metavar or 'true'}" for each in OPTIONS),
    ),
]


def queue(
    client: Client,
    state: ShortText = "",
    user: ShortText = "",
    name: ShortText = "",
    ended: bool = False,
    limit: Annotated[int, Field(ge=1, le=200)] = 25,
) -> Any:
    """List the jobs that wait and run, with their state and its reason; an array is one row. `state`: only
    these, such as queued,running. `name`: only those with this in their names. `ended`: those that have
    ended instead, the newest first."""
    states = states_of(state, is_ended=ended)
    asked = wire.ListJobs(
        user=user, name=name, states=states, ended=ended, limit=limit, fold=True, brief=True
    )
    return _list_jobs(client, asked)


def _list_jobs(client: Client, asked: wire.ListJobs) -> Document:
    reply = client.ask(asked)
    more = [f"jobs: {reply.more} more"] if reply.more else []
    return {"schema": "jobs/1", "now": reply.now, LEFT_OUT: more, "jobs": reply.jobs}


def job(client: Client, job: JobNumber) -> Any:
    """Everything about one job: what was asked for, where it stands, each attempt. Of an array: its tasks."""
    found = ask_of_job(client, lambda job_id: wire.ShowJob(job_id=job_id), job)
    if isinstance(found, tuple):
        tasks = wire.ListJobs(job_ids=(JobId(job),), include_ended=True, limit=100, brief=True)
        return _list_jobs(client, tasks)
    return found.job


def explain(client: Client, job: JobNumber) -> Any:
    """Say why a job waits, runs, shares or was preempted, how that came about, and for one that waits which
    change would help. Of an array: the same for its first task that waits."""
    found = ask_of_job(client, lambda job_id: wire.Explain(job_id=job_id), job)
    if isinstance(found, tuple):
        found = client.ask(wire.Explain(job_id=only(found).job_id))
    return found.explanation


def logs(
    client: Client,
    job: JobNumber,
    lines: Annotated[int, Field(ge=1, le=200)] = 50,
    rank: Annotated[int, Field(ge=0, le=100_000)] = 0,
    attempt: Annotated[int, Field(ge=0, le=1_000_000)] = 0,
) -> Any:
    """Read the end of what a job has printed: its last lines, the newest last. `attempt` 0 is the newest. Of
    an array ask for one task. `output` is whatever the job's program wrote."""
    row = row_of(client, job)
    if row.array is not None:
        raise Problem("usage", f"{job} is an array", f"ask for one of its tasks, such as {row.job_id}")
    number = attempt or row.attempt
    part = read_end(client, row.job_id, number, rank, LOG_BYTES_MAX) if number else None
    known = {"schema": "log-end/1", "job": job, "state": row.phase, "attempt": number, "rank": rank}
    if part is None:
        return {**known, "output": []}
    beyond, before = part.data.count(b"\n") - lines, part.next_offset - len(part.data)
    more = [f"output: {beyond} more lines"] if beyond > 0 else []
    more += [f"output: {before} more bytes before these"] if before else []
    output = last_words(part.data, lines, colours=False).split("\n")
    return {**known, "missing": part.missing, LEFT_OUT: more, "output": output}


def nodes(client: Client, host: ShortText = "") -> Any:
    """List hosts (or one) and their devices: state, memory, who is on them, what is wrong."""
    reply = client.ask(wire.ListNodes())
    rows = [node for node in reply.nodes if host in ("", node.host)]
    return {"schema": "nodes/1", "now": reply.now, "nodes": rows}


def eta(client: Client, jobs: JobNumbers = []) -> Any:  # noqa: B006
    """Say when jobs (or all) start and end: nine in ten end after p10_at, half before p50_at, nine in ten
    before p90_at; without spread_known all three are one guess. What nobody can know is left out, and `basis`
    says why."""
    reply = client.ask(wire.ListEtas(job_ids=tuple(map(JobId, jobs))))
    return {"schema": "etas/1", "now": reply.now, "etas": reply.etas}


def what_if(client: Client, command: CommandWords, options: GivenOptions = {}) -> Any:  # noqa: B006
    """Say what would happen to a job if it were submitted now: when it would start and end, whom it would
    wait for, whom it would delay. Submits nothing. May take a minute."""
    request = submission_of(command, options).request
    return client.ask(wire.ForeseeArrival(submission=request), ARRIVAL_WITHIN_S).arrival


def report(client: Client, since: ShortText = "") -> Any:
    """Say what sharing and preemption brought and cost here, with formulas. `since`: such as 7d."""
    return client.ask(wire.GetReport(since_s=duration_of("since", since))).report


READING: Final[dict[Any, str]] = {
    queue: "state, user, name or limit",
    job: "logs, explain, or one task of an array",
    explain: "job",
    logs: "lines, rank or attempt",
    nodes: "host",
    eta: "jobs",
    what_if: "fewer tasks",
    report: "since",
}
"""Each tool, and with what it is asked for less."""


def submission_of(command: list[str], options: dict[str, Any]) -> Submission:
    """The submission that `cotenant submit` would make of it. Raises Problem."""
    flags: Options = {}
    for key, value in options.items():
        option = option_of(key, "options")
        words = tuple(value) if isinstance(value, list) else (str(value),)
        flags[key] = read(option, words if option.repeat else (",".join(words),), "options")
    made = prepared_submission(command, flags, None, command_only=False)
    if made.full_profile:
        raise Problem("usage", "profile=full queues several jobs", "use the command line: cotenant profile")
    return made
