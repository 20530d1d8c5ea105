"""`cotenant set`: options of jobs, changed."""

from __future__ import annotations

from typing import Annotated

from cotenant.controller.cli.frame.command import argument
from cotenant.controller.cli.frame.completing import complete_job
from cotenant.controller.cli.frame.output import EndpointFlag, JsonFlag, show_change
from cotenant.controller.client.asking import PATIENCE_S, asking
from cotenant.controller.domain import JobId
from cotenant.controller.present.problem import Problem
from cotenant.controller.submission.settings import setting
from cotenant.controller.wire import clients as wire


def set(
    words: Annotated[
        list[str],
        argument(
            metavar="JOB... KEY=VALUE...",
            help="Numbers, then options as in a YAML file.",
            complete=complete_job,
        ),
    ],
    as_json: JsonFlag = False,
    endpoint: EndpointFlag = None,
) -> None:
    """Change options of jobs that have not ended.

    Keys are those of a YAML file. Of jobs that wait: iterations, expect, time, budget, priority, class,
    organisation, mem, cpus, host_mem, share, idle, retries, name, notify; and gpus, nodes, gpu_type of jobs
    without a save. Of jobs that run: time (shorter by the owner, longer by an admin), name, notify, idle,
    priority. Values are written as for `submit`; - takes what was said back. All of it is done, or nothing.
    An array's number is those of its tasks that wait, or else that run.

    \b
    For example:
      cotenant set 7 priority=5
      cotenant set 7 9 expect=2h iterations=-
      cotenant set 12 gpus=4 time=1-00:00
    cotenant set 12_3 time=2h
    """
    jobs = [word for word in words if "=" not in word]
    texts = [word for word in words if "=" in word]
    if not jobs or not texts:
        raise Problem("usage", "it needs jobs and KEY=VALUE", "as in: cotenant set 7 priority=5")
    changes = dict(map(setting, texts))
    if len(changes) < len(texts):
        raise Problem("usage", "a key is given twice", "leave one out")
    with asking(endpoint, patience_s=PATIENCE_S) as client:
        reply = client.ask(wire.SetJobs(job_ids=tuple(map(JobId, jobs)), changes=changes))
    show_change("set", {"jobs": jobs, "changes": changes}, reply.lines, "set: asked for", as_json)
