"""`cotenant history`: jobs that have ended, with what they used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

from msgspec import structs

from cotenant.controller.cli.frame import output
from cotenant.controller.cli.frame.command import Made, option
from cotenant.controller.cli.jobs import queue
from cotenant.controller.client.asking import asking
from cotenant.controller.client.connection import Client
from cotenant.controller.client.pages import PAGE
from cotenant.controller.domain import JobId
from cotenant.controller.present import units
from cotenant.controller.present.amounts import hours
from cotenant.controller.present.jobs import add_values, exit_code, state_colour, steps
from cotenant.controller.present.past_columns import past_row
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.tables import Column
from cotenant.controller.present.units import duration, local_time
from cotenant.controller.submission.flags import duration_of
from cotenant.controller.submission.recording import user_name
from cotenant.controller.wire import clients as wire

SinceFlag = Annotated[
    str, option("--since", metavar="TIME", help="Only the last so long.", show_default="all")
]

PAST_FORMATS: Final[tuple[output.Format, ...]] = (*output.LIST_FORMATS, "parquet")


def _target(output_as: str | None, out: str, as_json: bool) -> tuple[output.Format, str]:
    """The format, and where to. Raises Problem."""
    form = output.chosen_format(output_as, as_json, PAST_FORMATS)
    if bool(out) != (form == "parquet"):
        raise Problem(
            "usage", "-o parquet and --out FILE go together", "other formats go to a file with > FILE"
        )
    return form, out


FileFlag = Annotated[str, option("--out", metavar="FILE", help="Where -o parquet writes.")]
TargetFlags = Annotated[
    tuple[output.Format, str],
    Made(
        _target,
        {
            "output_as": (output.output_flag(PAST_FORMATS), None),
            "out": (FileFlag, ""),
            "as_json": (output.JsonFlag, False),
        },
    ),
]


def history(
    jobs: queue.OnlyArgument = None,
    since: SinceFlag = "",
    user: queue.UserFlag = "",
    state: Annotated[
        str, option("-t", "--state", metavar="STATE,...", help="Only these: done, failed, cancelled.")
    ] = "",
    mine: queue.MineFlag = False,
    limit: queue.LimitFlag = "1000000",
    target: TargetFlags = ("table", ""),
    endpoint: output.EndpointFlag = None,
) -> None:
    """Jobs that have ended: how, after how many attempts, how long they waited, what they used.

    DEVICE-H are device-hours: each second of a device once, in equal parts for the jobs that held it. SHARED
    are those of them while training beside others; LOST is what having to leave its devices cost.

    For example:

      cotenant history --since 7d --mine
      cotenant history --state failed --user ann
      cotenant history --since 30d -o csv > jobs.csv
      cotenant history -o parquet --out jobs.parquet
    """
    form, out = target
    request = wire.ListPastJobs(
        job_ids=tuple(JobId(each) for each in jobs or ()),
        since_s=duration_of("--since", since),
        user=user_name() if mine else user,
        states=queue.states_of(state, is_ended=True),
        limit=output.whole_number("--limit", limit, queue.LIMIT_MAX),
    )
    left_out = forgotten = 0
    with asking(endpoint, from_journal=True) as client:
        if form == "parquet":
            from cotenant.controller.cli.jobs.parquet import write_parquet

            write_parquet(pages(client, request), out)
            return

        def listings() -> Iterator[output.Listing]:
            nonlocal left_out, forgotten
            for reply in pages(client, request):
                left_out, forgotten = reply.more, reply.forgotten_jobs
                shown = listing(reply)
                yield structs.replace(shown, as_json=past_row) if form == "csv" else shown

        output.show_pages(listings(), form)
    if form in ("table", "wide"):
        queue.tell_rest(left_out, forgotten)


def pages(client: Client, request: wire.ListPastJobs) -> Iterator[wire.PastJobs]:
    """The answer in parts, as `queue` has them."""
    reply = client.ask(structs.replace(request, page=PAGE))
    left = request.limit - len(reply.jobs)
    while reply.next:
        yield structs.replace(reply, more=max(0, reply.more - left))
        reply = client.ask(structs.replace(request, page=PAGE, after=reply.next, limit=left))
        left -= len(reply.jobs)
    yield reply


def listing(reply: wire.PastJobs) -> output.Listing:
    made = output.Listing(
        noun="past-job",
        identity=lambda job: job.job_id,
        columns=add_values(COLUMNS, reply.jobs),
        wide_columns=add_values(WIDE_COLUMNS, reply.jobs),
        nothing="no job has ended" + (" since then" if reply.since else ""),
    )
    about = {name: getattr(reply, name) for name in ("now", "since", "more", "forgotten_jobs")}
    return made.fill(reply.jobs, **about)


COLUMNS: Final = (
    Column("JOB", lambda j: j.job_id),
    Column("NAME", lambda j: j.name, limit=14),
    Column("USER", lambda j: j.user, rank=2, limit=10),
    Column("STATE", lambda j: j.phase.value, colour=state_colour),
    Column("EXIT", exit_code, rank=5, right=True),
    Column("GPUS", lambda j: str(j.gpus), rank=3, right=True),
    Column("ATTEMPTS", lambda j: str(j.attempts), rank=4, right=True),
    Column("ENDED", lambda j: local_time(j.ended_s), rank=1),
    Column("WAIT", lambda j: duration(j.wait_s), right=True),
    Column("RUN", lambda j: duration(j.run_s), right=True),
    Column("DEVICE-H", lambda j: hours(j.held_device_s), right=True),
    Column("SHARED", lambda j: hours(j.shared_device_s), rank=6, right=True),
    Column("LOST", lambda j: hours(j.lost_device_s), rank=7, right=True),
    Column("REASON", lambda j: j.reason),
)
WIDE_COLUMNS: Final = (
    *COLUMNS[:-1],
    Column("ORGANISATION", lambda j: j.organisation or units.NONE),
    Column("PRIO", lambda j: str(j.priority), right=True),
    Column("PREEMPTED", lambda j: str(j.preemptions), right=True),
    Column("STEP", lambda j: steps(j), right=True),
    Column("SAVED", lambda j: str(j.durable_step), right=True),
    COLUMNS[-1],
)
