"""A word for several jobs in place of one job's number: the tasks of an array as one row, or as a table."""

from __future__ import annotations

from collections.abc import Callable

from cotenant.controller.client.connection import Answer, Client, Refusal
from cotenant.controller.domain import JobId
from cotenant.controller.present.problem import Problem
from cotenant.controller.wire import clients


def ask_of_job(
    client: Client, question: Callable[[JobId], clients.Question[Answer]], number: str
) -> Answer | tuple[clients.JobView, ...]:
    """The answer about a job; of a word for several, their rows: one stands for the tasks of an array."""
    try:
        return client.ask(question(JobId(number)))
    except Refusal as refused:
        if refused.failure.code != "not-found":
            raise
        try:
            return rows_of(client, number)
        except Refusal:
            raise refused from None


def rows_of(client: Client, words: str) -> tuple[clients.JobView, ...]:
    """The jobs of these words, tasks of an array in one row. Raises Refusal: there is none."""
    return client.ask(clients.ListJobs(job_ids=(JobId(words),), fold=True)).jobs


def only(rows: tuple[clients.JobView, ...]) -> clients.JobView:
    """The one row, for a verb that takes no more. Raises Problem: there are several."""
    if len(rows) > 1:
        named = ", ".join(row.job_id for row in rows[:3])
        raise Problem("usage", f"{len(rows)} jobs are named ({named}), and this takes one", "name one")
    return rows[0]


def row_of(client: Client, words: str) -> clients.JobView:
    """A job, or tasks of one array in one row. Raises Refusal: there is none of this number."""
    return only(rows_of(client, words))
