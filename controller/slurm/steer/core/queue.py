"""What Slurm says of its queue and its nodes, as values: which of the waiting jobs may be steered, and who
steers. That says a held job in Slurm's own queue, the mark, by its administrator's comment.

Rule: what users write (a job's name) stands last in a row, and a row ends with a word that nobody knew before
it was asked for: a name with a separator or a line's end in it cannot make a row of another job.

Rule: of all marks that count the one with the lowest number steers; Slurm numbers jobs one after the other,
so everybody sees the same one. Only an operator can write that comment, so no user's job can pose as a mark.
A mark holds for a while and is renewed each round: that of a steerer which died stops counting by itself. It
needs no shared file system, survives a restart of slurmctld, and everybody can see it in `squeue`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from cotenant.controller.domain import texts
from cotenant.controller.slurm.answers import count_in, gpus_in
from cotenant.controller.submission.quantities import slurm_duration_s

JOB_FIELDS: Final = (
    "ArrayJobID", "HetJobID", "StateCompact", "PriorityLong", "SubmitTime", "TimeLimit", "NumCPUs",
    "NumNodes", "NumTasks", "tres-per-job", "tres-per-node", "tres-per-task", "Reason", "Dependency",
    "Partition", "UserName", "Name",
)  # fmt: skip
"""For `squeue -O`, times as seconds since 1970."""
NODE_FIELDS: Final = ("NodeList", "StateCompact", "CPUsState", "Gres", "GresUsed", "Partition")
"""For `sinfo -N -O`."""
HELD: Final = 0
"""A priority of 0 holds a job; only its owner, or an administrator, lets it go."""
NOT_YET: Final = ("Dependency", "DependencyNeverSatisfied", "BeginTime")
"""Reasons of jobs that could not start whatever their place."""
NOTHING: Final = ("", "N/A", "(null)")
PENDING: Final = "PD"


class QueueJob(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the queue: a job, or what still waits of an array."""

    job_id: int
    """What `scontrol` takes; of an array its number: one of its tasks alone cannot be given a priority."""
    state: str
    priority: int
    submitted_s: float
    """Since 1970."""
    limit_s: float | None
    """None: unlimited, or its partition's."""
    cpus: int
    gpus: int
    partition: str
    user: str
    name: str
    aside: str = ""
    """Why it is left alone; empty for one that is steered while it waits."""


class QueueNode(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    cpus: int
    free_cpus: int
    gpus: int
    free_gpus: int
    partitions: tuple[str, ...]


class SlurmQueue(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster at one moment."""

    now_s: float
    jobs: tuple[QueueJob, ...]
    nodes: tuple[QueueNode, ...]

    @property
    def counts_gpus(self) -> bool:
        """Whether a job's size is its GPUs: where the cluster has any; else it is its processors."""
        return any(node.gpus for node in self.nodes)

    def waiting(self, partitions: frozenset[str] = frozenset()) -> list[QueueJob]:
        """Returns the waiting jobs that are steered; `partitions`: only those in these, empty: in all."""
        found: dict[int, QueueJob] = {}
        for job in self.jobs:
            chosen = not partitions or bool(partitions & set(job.partition.split(",")))
            if job.state == PENDING and not job.aside and chosen:
                found.setdefault(job.job_id, job)
        return list(found.values())

    def size(self, job: QueueJob) -> int:
        return max(job.gpus if self.counts_gpus else job.cpus, 1)


def rows_in(text: str, end: str, columns: int) -> Iterator[list[str]]:
    """The rows of an answer whose every row ends with `end`. One with too few columns is no row."""
    for row in text.split(f"{end}\n"):
        found = row.split("|", columns - 1)
        if len(found) == columns:
            yield found


def jobs_in(text: str, end: str) -> Iterator[QueueJob]:
    for row in rows_in(text, end, len(JOB_FIELDS)):
        job = _job(dict(zip(JOB_FIELDS, row, strict=True)))
        if job is not None:
            yield job


def _job(said: dict[str, str]) -> QueueJob | None:
    """Reads a job from a row of the queue. None: a row that is not as it should be."""
    number, priority, submitted = said["ArrayJobID"], said["PriorityLong"], said["SubmitTime"]
    if not all(map(texts.is_whole_number, (number, priority, submitted))):
        return None
    nodes, tasks = count_in(said["NumNodes"]), count_in(said["NumTasks"])
    per_job, per_node, per_task = (gpus_in(said[f"tres-per-{each}"]) for each in ("job", "node", "task"))
    return QueueJob(
        job_id=int(number),
        state=said["StateCompact"],
        priority=int(priority),
        submitted_s=float(submitted),
        limit_s=slurm_duration_s(said["TimeLimit"]),
        cpus=count_in(said["NumCPUs"]),
        gpus=per_job or per_node * nodes or per_task * tasks,
        partition=said["Partition"],
        user=said["UserName"],
        name=said["Name"],
        aside=_aside(said),
    )


def _aside(said: dict[str, str]) -> str:
    if said["PriorityLong"] == str(HELD):
        return "it is held"
    if said["HetJobID"] not in NOTHING:
        return "it is one of several jobs that start together"
    if said["Reason"] in NOT_YET or said["Dependency"] not in NOTHING:
        return "it waits for a time or for other jobs"
    return ""


def nodes_in(text: str, end: str) -> tuple[QueueNode, ...]:
    """A node has a row for each of its partitions."""
    found: dict[str, QueueNode] = {}
    for name, state, cpus, gres, used, partition in rows_in(text, end, len(NODE_FIELDS)):
        known, here = found.get(name), partition.rstrip("*")
        if known is not None:
            found[name] = msgspec.structs.replace(known, partitions=(*known.partitions, here))
            continue
        counts = [count_in(each) for each in cpus.split("/")]
        takes_work = state in ("idle", "mix", "alloc")
        if len(counts) != 4:  # allocated/idle/other/total
            continue
        gpus = gpus_in(gres)
        found[name] = QueueNode(
            name=name,
            cpus=counts[3],
            free_cpus=counts[1] if takes_work else 0,
            gpus=gpus,
            free_gpus=max(gpus - gpus_in(used), 0) if takes_work else 0,
            partitions=(here,),
        )
    return tuple(found.values())


def columns(fields: Sequence[str], end: str) -> str:
    """The format of an answer that `rows_in` can read."""
    return ",".join([*(f"{each}:|" for each in fields[:-1]), f"{fields[-1]}:{end}"])


def index_by_id(jobs: Iterable[QueueJob]) -> dict[int, QueueJob]:
    """Maps jobs by number; of an array that has begun, to what still waits."""
    found: dict[int, QueueJob] = {}
    for job in jobs:
        if job.job_id not in found or job.state == PENDING:
            found[job.job_id] = job
    return found


MARK_NAME: Final = "cotenant-steer"
MARK_FIELDS: Final = ("JobID", "admin_comment")
_VERSION: Final = "cotenant-steer/1"


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """The mark of a steerer in Slurm's queue. `state`: the file that lists the jobs that it touched."""

    job_id: int
    host: str
    pid: int
    until_s: float
    state: str

    @property
    def comment(self) -> str:
        """The mark in one word, so that `scontrol` takes it from its standard input as it is."""
        return f"{_VERSION};{self.host};{self.pid};{self.until_s:.0f};{self.state}"


def marks_in(text: str, end: str) -> Iterator[Mark]:
    for number, comment in rows_in(text, end, len(MARK_FIELDS)):
        parts = comment.split(";", 4)
        is_mark = len(parts) == 5 and parts[0] == _VERSION
        if is_mark and all(map(texts.is_whole_number, (number, parts[2], parts[3]))):
            yield Mark(
                job_id=int(number), host=parts[1], pid=int(parts[2]), until_s=float(parts[3]), state=parts[4]
            )


def rival(marks: Iterable[Mark], mine: Mark, now_s: float) -> Mark | None:
    """Finds the steerer that was there before us. A mark of our own state file is that of a run of ours that
    is over, since the file is locked by whoever lives."""
    others = [
        each
        for each in marks
        if each.job_id < mine.job_id
        and each.until_s > now_s
        and (each.host, each.state) != (mine.host, mine.state)
    ]
    return min(others, key=lambda each: each.job_id, default=None)
