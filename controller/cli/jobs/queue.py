"""`cotenant queue`: what runs, what waits and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

from msgspec import structs

from cotenant.controller.cli.frame import screen
from cotenant.controller.cli.frame.asking import asking
from cotenant.controller.cli.frame.output import (
    EndpointFlag,
    JsonFlag,
    Listing,
    OutputFlag,
    chosen,
    show_pages,
    whole_number,
)
from cotenant.controller.cli.frame.parameters import argument, option
from cotenant.controller.cli.frame.problem import Problem, suggestion
from cotenant.controller.cli.jobs.view import COLUMNS, WIDE_COLUMNS
from cotenant.controller.cli.submission.recording import user_name
from cotenant.controller.client import Client
from cotenant.controller.domain import WAITING, JobId, Phase
from cotenant.controller.wire import Jobs, ListJobs

PAGE: Final = 1_000
"""Jobs in one answer: the first rows come at once, and neither side holds more."""
LIMIT_MAX: Final = 1_000_000


def queue(
    jobs: Annotated[list[str] | None, argument(metavar="JOB", help="Only these.")] = None,
    everything: Annotated[bool, option("-a", "--all", help="Also jobs that have ended.")] = False,
    user: Annotated[str, option("-u", "--user", metavar="NAME", help="Only this user's.")] = "",
    state: Annotated[
        str,
        option("-t", "--state", metavar="STATE,...", help="Only these, such as running,queued or failed."),
    ] = "",
    mine: Annotated[bool, option("-m", "--mine", help="Only yours.")] = False,
    limit: Annotated[
        str, option("--limit", metavar="N", show_default="all", help="At most N jobs.")
    ] = "1000000",
    output: OutputFlag = None,
    as_json: JsonFlag = False,
    endpoint: EndpointFlag = None,
) -> None:
    """List jobs: those that run, those that wait, and why.

    WITH is the job that shares its devices, S its gradient accumulation steps, LEFT the training
    time still expected.

    For example:

      cotenant queue --mine
      cotenant queue --all -o wide
      cotenant queue --state running,blocked --user ann
      cotenant queue --json | jq '.jobs[] | select(.state == "queued") | .reason'
    """
    form = chosen(output, as_json)
    request = ListJobs(
        job_ids=tuple(JobId(each) for each in jobs or ()),
        include_ended=everything or bool(jobs),
        user=user_name() if mine else user,
        states=states_of(state),
        limit=whole_number("--limit", limit, LIMIT_MAX),
    )
    some_wait, left_out = False, 0
    with asking(endpoint) as client:

        def listings() -> Iterator[Listing]:
            nonlocal some_wait, left_out
            for reply in pages(client, request):
                some_wait |= any(job.phase in WAITING for job in reply.jobs)
                left_out = reply.more
                yield listing(reply, all_ended=request.include_ended)

        show_pages(listings(), form)
    if left_out and form in ("table", "wide"):
        screen.tell(f"{screen.plural(left_out, 'more job')}: see --limit")
    if form == "table" and some_wait:
        screen.hint("`cotenant explain JOB` gives the whole reason")


def states_of(text: str) -> tuple[Phase, ...]:
    """Raises Problem: one of them is none."""
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    known = [phase.value for phase in Phase]
    for word in words:
        if word not in known:
            raise Problem("usage", f"--state {word!r} is none of {', '.join(known)}", suggestion(word, known))
    return tuple(map(Phase, words))


def pages(client: Client, request: ListJobs) -> Iterator[Jobs]:
    """The answer in parts: `limit` counts for all of them together, and `more` is what is beyond it."""
    reply = client.ask(structs.replace(request, page=PAGE))
    left = request.limit - len(reply.jobs)
    while reply.next:
        yield structs.replace(reply, more=max(0, reply.more - left))
        reply = client.ask(structs.replace(request, page=PAGE, after=reply.next, limit=left))
        left -= len(reply.jobs)
    yield reply


def listing(reply: Jobs, *, all_ended: bool = True) -> Listing:
    several = len({job.user for job in reply.jobs}) > 1 or reply.next != 0
    return Listing(
        noun="job",
        rows=reply.jobs,
        identity=lambda job: job.job_id,
        # With more to come, others' jobs may be among them.
        columns=[column for column in COLUMNS if column.title != "USER" or several],
        wide_columns=WIDE_COLUMNS,
        extra={"now": reply.now, "more": reply.more},
        nothing="no jobs; start one with: cotenant submit -- python train.py"
        if all_ended
        else "no jobs wait or run; `cotenant queue --all` also lists those that have ended",
    )
