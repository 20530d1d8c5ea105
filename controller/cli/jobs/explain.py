"""`cotenant explain`: the reason that holds now, and the decisions that led to it."""

from __future__ import annotations

from cotenant.controller.cli.frame.asking import asking
from cotenant.controller.cli.frame.output import EndpointFlag, JsonFlag, OutputFlag, chosen, show_one
from cotenant.controller.cli.frame.screen import paint, wrapped
from cotenant.controller.cli.jobs.show import JobArgument
from cotenant.controller.cli.jobs.view import state_colour
from cotenant.controller.domain.ids import JobId
from cotenant.controller.wire.clients import Explain, Explained


def explain(
    job: JobArgument, output: OutputFlag = None, as_json: JsonFlag = False, endpoint: EndpointFlag = None
) -> None:
    """Why a job waits, runs, shares or was preempted, and how that came about.

    For example:

      cotenant explain 7
    """
    form = chosen(output, as_json)
    with asking(endpoint) as client:
        reply = client.ask(Explain(job_id=JobId(job)))
    show_one(form, reply.explanation, reply.job.job_id, reply, page)


def page(reply: Explained) -> str:
    job = reply.job
    now, *history = reply.explanation.lines or (job.reason,)
    state = paint(job.phase.value, state_colour(job))
    lines = [f"job {job.job_id} ({job.name}): {state}", f"  {wrapped(now, 2)}"]
    if history:
        lines += ["", paint("How it came about, newest first:", "bold")]
        lines += [f"  {wrapped(line, 4)}" for line in history]
    return "\n".join(lines)
