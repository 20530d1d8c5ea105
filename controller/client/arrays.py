"""An array's number in place of a job's: its tasks as one row, or as a table."""

from __future__ import annotations

from collections.abc import Callable

from cotenant.controller.client.connection import Answer, Client, Refusal
from cotenant.controller.domain import JobId
from cotenant.controller.wire import clients


def ask_of_job(
    client: Client, question: Callable[[JobId], clients.Question[Answer]], number: str
) -> Answer | clients.JobView:
    """The answer about a job; of an array's number, the row that stands for its tasks."""
    try:
        return client.ask(question(JobId(number)))
    except Refusal as refused:
        if refused.failure.code != "not-found":
            raise
        try:
            row = row_of(client, number)
        except Refusal:
            raise refused from None
    return row if row.array is not None else client.ask(question(row.job_id))


def row_of(client: Client, number: str) -> clients.JobView:
    """A job, or an array in one row. Raises Refusal: there is none of this number."""
    (row,) = client.ask(clients.ListJobs(job_ids=(JobId(number),), fold=True)).jobs
    return row
