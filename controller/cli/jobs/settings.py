"""`cotenant set`: options of jobs that wait, changed."""

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
    """Change options of jobs that wait: queued, blocked or held ones.

    Keys are those of a YAML file: iterations, expect, time, priority, class, organisation, mem, cpus,
    host_mem, share, retries, name; and gpus, nodes, gpu_type of jobs without a save. Values are written as
    for `submit`; - takes what was said back. All of it is done, or nothing. An array's number is
    those of its tasks that wait.

    \b
    For example:
      cotenant set 7 priority=5
      cotenant set 7 9 expect=2h iterations=-
      cotenant set 12 gpus=4 time=1-00:00
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
