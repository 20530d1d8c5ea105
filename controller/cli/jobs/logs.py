"""`cotenant logs`: a job's output over all its attempts, in order; `-f` and `run` follow it as it comes.

Rule: it reads each attempt to its end before the next, and names a part that is lost with its host instead of
skipping it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from typing import Annotated, Final

from cotenant.controller.cli.frame.command import option
from cotenant.controller.cli.frame.output import EndpointFlag
from cotenant.controller.cli.jobs.show import JobArgument
from cotenant.controller.client.arrays import rows_of
from cotenant.controller.client.asking import PATIENCE_S, asking
from cotenant.controller.client.connection import Client
from cotenant.controller.client.output import ROUND_S, AttemptOutput, Follower, Missing, OutputPiece, read_all
from cotenant.controller.client.pages import pages
from cotenant.controller.domain import ENDED, WAITING, JobId, Phase, texts
from cotenant.controller.present.jobs import count_text
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.screen import tell
from cotenant.controller.present.terminal import JobOutput
from cotenant.controller.present.units import plural
from cotenant.controller.wire import clients as wire


def logs(
    job: JobArgument,
    following: Annotated[bool, option("-f", "--follow", help="Go on until the job has ended.")] = False,
    rank: Annotated[int, option("-r", "--rank", min=0, metavar="R", help="Of this rank.")] = 0,
    attempt: Annotated[int, option("--attempt", min=0, metavar="N", help="Only this one.")] = 0,
    tail: Annotated[int, option("-n", "--tail", min=0, metavar="N", help="Only the last N lines.")] = 0,
    raw: Annotated[bool, option("--raw", help="Every byte also to a terminal, which obeys it.")] = False,
    endpoint: EndpointFlag = None,
) -> None:
    """A job's output, all its attempts in order; of several (38, 38_[0-3]) with `38_2| ` before each line.

    Output goes to standard output; marks between attempts go to standard error. On a terminal only words and
    colours are shown; into a pipe or a file goes what the job wrote, byte for byte.

    For example:

      cotenant logs -f 7
      cotenant logs -f -n 20 7
      cotenant logs 7 --rank 1 --tail 20
      cotenant logs 38 --tail 3
    """
    if following and attempt:
        raise Problem("usage", "--follow goes on over all attempts, and --attempt is one", "leave one out")
    patience_s = PATIENCE_S if following else 0.0
    with asking(endpoint, patience_s=patience_s, from_journal=not following) as client:
        found, *others = texts.escape_texts(rows_of(client, job))
        if others or found.array is not None:
            if following:
                show(follow_tasks(client, JobId(job), rank, tail), raw=raw)
            else:
                show(read_tasks(client, JobId(job), rank, attempt, tail), raw=raw)
                if found.array is not None and not ENDED.issuperset(found.array.by_state):
                    tell(f"array {job}: {count_text(found.array)}; `cotenant logs -f {job}` follows it")
            return
        job = found.job_id
        if attempt > found.attempt:
            had = plural(found.attempt, "attempt")
            raise Problem("not-found", f"job {job} has had {had}, there is no attempt {attempt}")
        if rank:  # A rank that the job does not have is an error; no output yet is none.
            client.ask(wire.ReadJobLog(job_id=JobId(job), rank=rank, limit=1))
        if following:
            follower = Follower(client, JobId(job), rank)
            show(follow_last_lines(follower, tail) if tail else follower.pieces(), raw=raw)
            return
        show(read(client, found, rank, attempt, tail), raw=raw)
        if found.attempt == 0:
            tell(f"job {job} has not started: {found.reason}")
        elif found.phase not in ENDED:
            tell(f"job {job} is {found.phase.value}; `cotenant logs -f {job}` follows it")


def show(pieces: Iterable[OutputPiece], *, raw: bool) -> None:
    output = JobOutput(raw=raw)
    try:
        for piece in pieces:
            if isinstance(piece, bytes):
                output.write(piece)
            elif isinstance(piece, AttemptOutput) and piece.number > 1:
                tell(f"--- attempt {piece.number} ---")
            elif isinstance(piece, Missing):
                tell(f"--- missing: {texts.one_line(piece.why)} ---")
    finally:
        output.close()


def follow_last_lines(follower: Follower, count: int) -> Iterator[OutputPiece]:
    """The last lines of what there is, then all that comes."""
    pieces = follower.pieces()

    def so_far() -> Iterator[OutputPiece]:
        for piece in pieces:
            yield piece
            if follower.caught_up and isinstance(piece, bytes | wire.JobView):
                return

    yield from last_lines(so_far(), count)
    yield from pieces


def last_lines(pieces: Iterable[OutputPiece], count: int) -> Iterator[OutputPiece]:
    """The last lines of everything; marks before them are dropped."""
    lines: deque[bytes] = deque(maxlen=count)
    rest = b""
    for piece in pieces:
        if isinstance(piece, bytes):
            *whole, rest = (rest + piece).split(b"\n")
            lines.extend(line + b"\n" for line in whole)
        elif isinstance(piece, Missing):
            yield piece
    if rest:
        lines.append(rest)
    yield from lines


def read(client: Client, job: wire.JobView, rank: int, attempt: int, tail: int) -> Iterator[OutputPiece]:
    """Reads what output there is now. `attempt`: 0 for all; `tail`: 0 for all lines."""
    pieces = read_all(client, job, rank, range(attempt, attempt + 1) if attempt else None)
    return last_lines(pieces, tail) if tail else pieces


# --- An array's tasks -------------------------------------------------------------------------------


def read_tasks(client: Client, array: JobId, rank: int, attempt: int, tail: int) -> Iterator[OutputPiece]:
    """What there is now of one task after the other."""
    for reply in pages(client, wire.ListJobs(job_ids=(array,), include_ended=True)):
        for task in reply.jobs:
            yield from mark_lines(task.job_id, read(client, task, rank, attempt, tail))


def follow_tasks(client: Client, array: JobId, rank: int, tail: int) -> Iterator[OutputPiece]:
    """The tasks take turns until all have ended."""
    followed: dict[JobId, Iterator[OutputPiece]] = {}
    known: set[JobId] = set()
    seen: dict[Phase, int] = {}
    while True:
        reply = client.ask(wire.ListJobs(job_ids=(array,), include_ended=True, limit=1))
        by_state = reply.by_state
        started = tuple(phase for phase in by_state if phase not in WAITING)
        if started and by_state != seen:
            for reply in pages(client, wire.ListJobs(job_ids=(array,), states=started)):
                new = [task.job_id for task in reply.jobs if task.job_id not in known]
                followers = {each: Follower(client, each, rank, round_s=TASK_ROUND_S) for each in new}
                known.update(new)
                for job_id, follower in followers.items():
                    pieces = follow_last_lines(follower, tail) if tail else follower.pieces()
                    followed[job_id] = mark_lines(job_id, pieces)
        seen = by_state
        for job_id, pieces in list(followed.items()):
            if (yield from _turn(pieces)):
                del followed[job_id]
        if not followed and ENDED.issuperset(by_state):
            return
        if not followed:
            client.ask(wire.WaitJobs(job_ids=(array,), timeout_s=ROUND_S))


def _turn(pieces: Iterator[OutputPiece]) -> Generator[OutputPiece, None, bool]:
    """What comes until the task has been asked about again; returns whether nothing more will come."""
    for piece in pieces:
        if isinstance(piece, wire.JobView):
            return False
        yield piece
    return True


def mark_lines(job_id: JobId, pieces: Iterable[OutputPiece]) -> Iterator[OutputPiece]:
    """Whole lines, each behind its task's number."""
    mark, rest = f"{job_id}| ".encode(), b""
    for piece in pieces:
        if isinstance(piece, bytes):
            *lines, rest = (rest + piece).split(b"\n")
            yield b"".join(b"%b%b\n" % (mark, line) for line in lines)
        elif isinstance(piece, Missing):
            yield Missing(f"{job_id}: {piece.why}")
        elif isinstance(piece, wire.JobView):
            yield piece
    if rest:
        yield b"%b%b\n" % (mark, rest)


TASK_ROUND_S: Final = 0.1
"""The same for one of several tasks: the others wait meanwhile."""
