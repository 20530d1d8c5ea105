"""What `cotenant steer slurm` shows: the order with what would be set, and one job's place in it."""

from __future__ import annotations

from typing import Any, Final

from cotenant.controller.cli.frame.output import Format, Listing, show_listing
from cotenant.controller.present import screen
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.tables import Column
from cotenant.controller.present.units import duration, plural
from cotenant.controller.slurm.steer.core.ordering import Placed
from cotenant.controller.slurm.steer.steerer import SteeringRound

NAME_CHARS: Final = 24


COLUMNS: Final = (
    Column("#", lambda row: str(row["rank"]), right=True),
    Column("job", lambda row: str(row["job"])),
    Column("user", lambda row: row["user"], rank=3, limit=12),
    Column("name", lambda row: row["name"], rank=2, limit=NAME_CHARS),
    Column("size", lambda row: str(row["size"]), right=True),
    Column("expected", lambda row: duration(row["expected_s"]), right=True),
    Column("waited", lambda row: duration(row["waited_s"]), rank=4, right=True),
    Column("priority", lambda row: str(row["priority"]), right=True),
    Column("to set", lambda row: "-" if row["would_set"] is None else str(row["would_set"]), right=True),
    Column("why", lambda row: row["why"], rank=1, wraps=True),
)


def show_order(found: SteeringRound, name: str, form: Format, note: str) -> None:
    rows = [job_document(found, each, False) for each in found.order.placed]
    listing = Listing(
        noun="steered-job",
        as_json=lambda row: row,
        identity=lambda row: str(row["job"]),
        columns=COLUMNS,
        nothing="no job waits that could be steered",
    )
    show_listing(listing.fill(rows, order=name, note=note), form)
    if form == "table":
        aside = sum(bool(job.aside) and job.state == "PD" for job in found.queue.jobs)
        left = plural(aside, "job")
        screen.tell(f"{len(found.changes)} would be set; {left} left alone; nothing was changed")
        if note:
            screen.tell(f"note: {note}")


def job_document(found: SteeringRound, at: Placed, is_touched: bool) -> dict[str, Any]:
    job, own = at.job, found.order.tell(at.rank)
    return {
        "job": job.job_id,
        "rank": at.rank,
        "user": job.user,
        "name": job.name,
        "partition": job.partition,
        "size": at.size,
        "expected_s": at.estimate.seconds,
        "limit_s": job.limit_s,
        "waited_s": max(found.queue.now_s - job.submitted_s, 0.0),
        "priority": job.priority,
        "touched": is_touched,
        "would_set": found.changes.get(job.job_id),
        "why": f"{own}; expected by {at.estimate.why}" if own else at.estimate.why,
    }


def job_page(value: dict[str, Any], name: str, count: int) -> str:
    set_to = value["would_set"]
    then = "; it stays" if set_to is None else f"; it would be {set_to}"
    lines = [
        f"job {value['job']} ({value['name']} of {value['user']}) is {value['rank']} of {count} by {name}",
        f"expected to run {duration(value['expected_s'])} on {value['size']}: {value['why']}",
        f"has waited {duration(value['waited_s'])}",
        f"its priority is {value['priority']}{', set by a steerer' if value['touched'] else ''}{then}",
    ]
    return "\n".join(lines)


def why_absent(found: SteeringRound, number: int) -> Problem:
    rows = [job for job in found.queue.jobs if job.job_id == number]
    if not rows:
        return Problem("not-found", f"Slurm's queue has no job {number}", "see squeue")
    aside = next((job.aside for job in rows if job.aside), "")
    return Problem("refused", f"job {number} is not steered: {aside or 'it does not wait, or not there'}")
