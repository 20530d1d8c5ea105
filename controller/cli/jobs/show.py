"""`cotenant show`: everything about one job; `explain`: why it stands where it does."""

from __future__ import annotations

from typing import Annotated

from cotenant.controller.cli.frame.command import argument
from cotenant.controller.cli.frame.completing import complete_job
from cotenant.controller.cli.frame.output import EndpointFlag, Format, FormFlag, show_one, show_pages
from cotenant.controller.cli.jobs.queue import listing
from cotenant.controller.client.arrays import ask_of_job, only
from cotenant.controller.client.asking import asking
from cotenant.controller.client.connection import Client
from cotenant.controller.client.pages import pages
from cotenant.controller.domain import JobId, texts
from cotenant.controller.present import screen
from cotenant.controller.present.job_page import explanation_page, page
from cotenant.controller.present.jobs import count_text
from cotenant.controller.present.screen import paint
from cotenant.controller.wire import clients as wire

JobArgument = Annotated[
    str,
    argument(
        metavar="JOB", help="Its number, or an array's; as in 7, 38_2, 38_[0-3].", complete=complete_job
    ),
]


def show(job: JobArgument, form: FormFlag = "table", endpoint: EndpointFlag = None) -> None:
    """Everything about one job: what was asked for, where it stands, every attempt. Of an array, a table of
    its tasks, and so of 38_[0-3] or 7,9.

    For example:

      cotenant show 7
      cotenant show 7 --json | jq .attempts
    """
    with asking(endpoint, from_journal=True) as client:
        reply = ask_of_job(client, lambda job_id: wire.ShowJob(job_id=job_id), job)
        if isinstance(reply, tuple):
            show_tasks(client, reply, job, form)
            return
    room, wide = screen.terminal_width(), form == "wide"
    show_one(form, reply.job, reply.job.job_id, reply.job, lambda shown: page(shown, room, wide))


def show_tasks(client: Client, rows: tuple[wire.JobView, ...], words: str, form: Format) -> None:
    """A table of the jobs of these words; `rows` has those of an array in one."""
    for array, name in ((row.array, row.name) for row in rows if form in ("table", "wide")):
        if array is not None:
            screen.say(f"array {array.number}  {paint(texts.one_line(name), 'bold')}  {count_text(array)}")
    request = wire.ListJobs(job_ids=(JobId(words),), include_ended=True)
    show_pages((listing(reply, request) for reply in pages(client, request)), form)


# --- For a person -----------------------------------------------------------------------------------


def explain(job: JobArgument, form: FormFlag = "table", endpoint: EndpointFlag = None) -> None:
    """Why a job waits, runs, shares or was preempted, and how that came about. Of an array, the same for its
    first task that waits, else for one that runs.

    For example:

      cotenant explain 7
    """
    with asking(endpoint, from_journal=True) as client:
        found = ask_of_job(client, lambda job_id: wire.Explain(job_id=job_id), job)
        if isinstance(found, tuple):
            row = only(found)
            reply, array = client.ask(wire.Explain(job_id=row.job_id)), row.array
        else:
            reply, array = found, None
    if array is not None and form in ("table", "wide"):
        screen.say(f"array {array.number}: {count_text(array)}; of its tasks, the one that says most:")
    show_one(form, reply.explanation, reply.job.job_id, reply, explanation_page)
