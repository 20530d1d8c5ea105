"""`cotenant report`: what sharing and preemption brought and cost on this cluster, or how the tasks of a
sweep compare; `cotenant usage`: who used how much of the devices.
"""

from __future__ import annotations

from typing import Annotated

from cotenant.controller.cli.frame import output
from cotenant.controller.cli.frame.command import option
from cotenant.controller.cli.jobs.history import SinceFlag
from cotenant.controller.cli.jobs.queue import LIMIT_MAX, tell_rest
from cotenant.controller.client.asking import asking
from cotenant.controller.client.pages import pages
from cotenant.controller.domain import JobId
from cotenant.controller.present import screen, sweeps
from cotenant.controller.present.accounting import page
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.tables import Column
from cotenant.controller.present.units import NONE
from cotenant.controller.present.usage import COLUMNS, DECAYED, ROWS_MAX, By, all_rows
from cotenant.controller.submission.flags import duration_of
from cotenant.controller.wire import clients as wire


def report(
    since: SinceFlag = "",
    sweep: Annotated[
        str, option("--sweep", metavar="JOB", help="Rank this array's tasks by their last metric instead.")
    ] = "",
    metric: Annotated[
        str,
        option("--metric", metavar="NAME[:min|max]", help="With --sweep: by which.", show_default="loss:min"),
    ] = "",
    form: output.ListFormFlag = "table",
    endpoint: output.EndpointFlag = None,
) -> None:
    """What sharing and preemption brought and cost, in device-hours, with the formula.

    Won by sharing is the work that was done beside others, as long as it would have taken alone, minus the
    time that it took on the devices. What cannot be known from what happened is said to be unknown.

    For example:

      cotenant report
      cotenant report --since 7d
      cotenant report -o json | jq .sharing.net_device_s
      cotenant report --sweep 38
      cotenant report --sweep 38 --metric val_acc:max -o csv
    """
    if sweep:
        if since:
            raise Problem("usage", "--since does not go with --sweep", "leave one out")
        by = sweeps.SweepMetric.read(metric or "loss")
        show_sweep(sweep, by, form, endpoint)
        return
    if metric:
        raise Problem("usage", "--metric goes with --sweep", "cotenant report --sweep JOB --metric NAME")
    form = output.chosen_format(form, False, output.FORMATS)  # Of one report there is no csv.
    since_s = duration_of("--since", since)
    with asking(endpoint, from_journal=True) as client:
        reply = client.ask(wire.GetReport(since_s=since_s))
    room = screen.terminal_width()
    output.show_one(form, reply.report, "report", reply.report, lambda shown: page(shown, room))


def show_sweep(number: str, by: sweeps.SweepMetric, form: output.Format, endpoint: str | None) -> None:
    request = wire.ListJobs(job_ids=(JobId(number),), include_ended=True, limit=LIMIT_MAX)
    with asking(endpoint, from_journal=True) as client:
        jobs = [job for reply in pages(client, request) for job in reply.jobs]
    tasks = sweeps.ranked_tasks(jobs, by)
    listing = output.Listing(
        noun="sweep-task",
        as_json=lambda task: sweeps.json_of(task, by),
        identity=lambda task: task.job.job_id,
        columns=sweeps.columns_of(by),
    )
    output.show_listing(
        listing.fill(tasks, metric=by.name, better="max" if by.is_more_better else "min"), form
    )
    if missing := sweeps.missing_metric(tasks, by):
        screen.tell(missing)


def usage(
    since: SinceFlag = "",
    by: Annotated[
        By, option("--by", metavar="user|kind|organisation", help="Whose jobs count together.")
    ] = "user",
    limit: Annotated[str, option("--limit", metavar="N", help="At most N rows, the greatest.")] = "1000",
    form: output.ListFormFlag = "table",
    endpoint: output.EndpointFlag = None,
) -> None:
    """Device-hours by user, kind of jobs or organisation: held, shared, lost; and how long their jobs waited.

    A second of a device counts once, in equal parts for the jobs that held it: the rows' sum is what `report`
    says was held. SHARED is what they held while training beside others, IDLE while nothing used the devices;
    LOST is what having to leave cost: saves, loads and steps done once more. KWH is the energy of GPUs, with
    a + where that of some attempts is unknown. The one who held most stands first. Where fair share is on,
    DECAYED is what it counts: whoever has less than half of another's goes first.

    For example:

      cotenant usage --since 7d
      cotenant usage --by organisation --since 30d -o csv
      cotenant usage --by kind -o json
    """
    request = wire.GetUsage(by=by, since_s=duration_of("--since", since))
    most = output.whole_number("--limit", limit, ROWS_MAX)
    with asking(endpoint, from_journal=True) as client:
        last, rows = all_rows(client.ask, request)
    decayed = () if last.half_life_s is None else (DECAYED,)
    more = max(0, len(rows) - most)
    listing = output.Listing(
        noun="use",
        plural="usage",
        identity=lambda row: row.name or NONE,
        columns=(Column(by.upper(), lambda row: row.name or NONE, limit=60), *COLUMNS, *decayed),
        nothing="nobody had a job here" + (" since then" if since else ""),
    )
    filled = listing.fill(
        rows[:most],
        by=by,
        now=last.now,
        since=last.since,
        half_life_s=last.half_life_s,
        more=more,
        forgotten_jobs=last.forgotten_jobs,
    )
    output.show_listing(filled, form)
    if form in ("table", "wide"):
        tell_rest(more, last.forgotten_jobs, "row")
