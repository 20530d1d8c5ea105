"""Which jobs a listing shows, in which order, and which of its rows stands for an array. Pure.

Rule: it looks at the ledger's records alone. A view costs a hundred times as much as a look, so only the rows
of a page become views.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from cotenant.controller.domain import ENDED, WAITING, Job, JobSpec, Phase, array_of, program_name
from cotenant.controller.wire import clients as wire

CALL_OF_FUNCTION: Final = ("-m", "cotenant.controller.python.inside")
"""Second and third word of a job that calls a Python function."""
SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "ksh"})


_PLACE: Final = attrgetter("place")


class ListingRow(NamedTuple):
    """The row of a job; or of an array, by one of its tasks."""

    job: Job
    place: tuple[float, int]
    """Where the row stands: in the order of arrival, or in that of ends."""
    tasks: Sequence[Job] | None = None
    """Of a row that stands for an array: all its tasks that are in memory; of one that was named, those."""
    is_named: bool = False
    """The request named these tasks, so the row counts no others."""


def is_wanted(job: Job, request: wire.ListJobs, words: Sequence[str], reads: Callable[[Job], bool]) -> bool:
    """Whether the request asks for the job. `words`: those of the request's text, in lower case; in a command
    they are looked for only by who reads it."""
    spec, phase = job.spec, job.phase
    if request.states and phase not in request.states:
        return False
    if phase in ENDED:
        if not (request.ended or request.include_ended or request.job_ids or request.states):
            return False
    elif request.ended:
        return False
    if request.user and spec.user != request.user:
        return False
    if request.name and request.name.lower() not in spec.name.lower():
        return False
    if request.kind and request.kind != submission_kind(spec):
        return False
    if not words:
        return True
    command = spec.launch.argv if reads(job) else map(program_name, spec.launch.argv[:1])
    text = " ".join((spec.job_id, spec.name, spec.user, *command)).lower()
    return all(word in text for word in words)


def is_task(job: Job) -> bool:
    """Whether the job is a task of an array."""
    return "_" in job.spec.job_id


def submission_kind(spec: JobSpec) -> wire.SubmissionKind:
    argv = spec.launch.argv
    if array_of(spec.job_id) != spec.job_id:
        return "array"
    if argv[1:3] == CALL_OF_FUNCTION:
        return "function"
    program = argv[0].rpartition("/")[2] if argv else ""
    return "script" if spec.launch.slurm or program in SHELLS else "command"


def wanted_jobs(found: Iterable[Job], request: wire.ListJobs, reads: Callable[[Job], bool]) -> list[Job]:
    words = request.text.lower().split()
    return [job for job in found if is_wanted(job, request, words, reads)]


def not_before(request: wire.ListJobs, jobs: Iterable[Job]) -> list[Job]:
    """Those that a later page may show: of read pages no job, but an array's row stands where its first task
    arrived."""
    after, fold = request.after, request.fold
    return [job for job in jobs if job.number > after or (fold and is_task(job))]


def rows_of(wanted: Iterable[Job], request: wire.ListJobs) -> list[ListingRow]:
    """The rows of a listing, one for each job, in order."""
    place = place_of_end if request.ended else place_of_arrival
    rows = [ListingRow(job, place(job)) for job in wanted]
    rows.sort(key=_PLACE, reverse=request.ended)
    return rows


def place_of_arrival(job: Job) -> tuple[float, int]:
    return 0.0, job.number


def place_of_end(job: Job) -> tuple[float, int]:
    return job.ended_s or 0.0, job.number


def fold_arrays(
    rows: Sequence[ListingRow], in_memory: Iterable[Job], *, by_end: bool, is_named: bool = False
) -> list[ListingRow]:
    """Two or more tasks of an array become one row: where the newest end of them is, or where its first task
    arrived, so that it stays on its page while they end. `in_memory`: all jobs, for the other tasks; with
    `is_named` those that the request named."""
    wanted = Counter(array_of(row.job.job_id) for row in rows if is_task(row.job))
    tasks: dict[str, list[Job]] = {array: [] for array, count in wanted.items() if count > 1}
    if not tasks:
        return list(rows)
    for job in in_memory:
        if is_task(job) and (array := array_of(job.job_id)) in tasks:
            tasks[array].append(job)
    folded: dict[str, ListingRow] = {}
    for row in rows:
        array = array_of(row.job.job_id)
        if array not in tasks:
            folded[row.job.job_id] = row
        elif array not in folded:
            folded[array] = _row_of_array(row, tasks[array], by_end=by_end)._replace(is_named=is_named)
    return sorted(folded.values(), key=_PLACE, reverse=by_end)


def _row_of_array(first: ListingRow, tasks: Sequence[Job], *, by_end: bool) -> ListingRow:
    if by_end:  # The first is the newest.
        return ListingRow(first.job, first.place, tasks)
    several = tasks or (first.job,)  # All may be forgotten.
    return ListingRow(min(several, key=_tells_most), min(map(place_of_arrival, several)), tasks)


def _tells_most(task: Job) -> tuple[int, int]:
    """A task that waits has a reason to; one on devices has news."""
    return 0 if task.phase in WAITING else 2 if task.phase in ENDED else 1, task.number


def array_view(row: ListingRow, forgotten: Sequence[tuple[str, int, int, int]]) -> wire.ArrayView:
    """The view of an array. `forgotten`: tasks that only the journal knows, by state: how many, least and
    greatest index."""
    array = array_of(row.job.job_id)
    tasks = row.tasks if row.tasks or forgotten else (row.job,)  # On their way to the journal.
    by_state = Counter(task.phase for task in tasks or ())
    indices = [int(task.job_id[len(array) + 1 :]) for task in tasks or ()]
    for phase, count, first, last in forgotten:
        by_state[Phase(phase)] += count
        indices += (first, last)
    return wire.ArrayView(
        number=array, first=min(indices), last=max(indices), tasks=by_state.total(), by_state=dict(by_state)
    )
