"""`cotenant logs`: a job's output, all attempts in order; `-f` follows it to the job's end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Annotated

from cotenant.controller.cli.frame.asking import PATIENCE_S, asking
from cotenant.controller.cli.frame.output import EndpointFlag
from cotenant.controller.cli.frame.parameters import option
from cotenant.controller.cli.frame.problem import Problem
from cotenant.controller.cli.frame.screen import plural, tell
from cotenant.controller.cli.frame.terminal import JobOutput
from cotenant.controller.cli.jobs.following import AttemptOutput, Follower, Missing, Piece, job_now, read_all
from cotenant.controller.cli.jobs.show import JobArgument
from cotenant.controller.domain.ids import JobId
from cotenant.controller.domain.job import ENDED
from cotenant.controller.domain.texts import one_line
from cotenant.controller.wire.clients import JobView, ReadJobLog


def logs(
    job: JobArgument,
    following: Annotated[bool, option("-f", "--follow", help="Go on until the job has ended.")] = False,
    rank: Annotated[int, option("-r", "--rank", min=0, metavar="R", help="Of this rank.")] = 0,
    attempt: Annotated[int, option("--attempt", min=0, metavar="N", help="Only this one.")] = 0,
    tail: Annotated[int, option("-n", "--tail", min=0, metavar="N", help="Only the last N lines.")] = 0,
    raw: Annotated[bool, option("--raw", help="Every byte also to a terminal, which obeys it.")] = False,
    endpoint: EndpointFlag = None,
) -> None:
    """A job's output, all its attempts in order.

    Output goes to standard output; marks between attempts go to standard error. On a terminal only words and
    colours are shown; into a pipe or a file goes what the job wrote, byte for byte.

    For example:

      cotenant logs -f 7
      cotenant logs -f -n 20 7
      cotenant logs 7 --rank 1 --tail 20
    """
    if following and attempt:
        raise Problem("usage", "--follow goes on over all attempts, and --attempt is one", "leave one out")
    with asking(endpoint, patience_s=PATIENCE_S if following else 0.0) as client:
        found = job_now(client, JobId(job))
        if attempt > found.attempt:
            had = plural(found.attempt, "attempt")
            raise Problem("not-found", f"job {job} has had {had}, there is no attempt {attempt}")
        if rank:  # A rank that the job does not have is an error; no output yet is none.
            client.ask(ReadJobLog(job_id=JobId(job), rank=rank, limit=1))
        if following:
            follower = Follower(client, JobId(job), rank)
            show(from_the_last(follower, tail) if tail else follower.pieces(), raw=raw)
            return
        pieces = read_all(client, found, rank, range(attempt, attempt + 1) if attempt else None)
        show(last_lines(pieces, tail) if tail else pieces, raw=raw)
        if found.attempt == 0:
            tell(f"job {job} has not started: {found.reason}")
        elif found.phase not in ENDED:
            tell(f"job {job} is {found.phase.value}; `cotenant logs -f {job}` follows it")


def show(pieces: Iterable[Piece], *, raw: bool) -> None:
    output = JobOutput(raw=raw)
    try:
        for piece in pieces:
            if isinstance(piece, bytes):
                output.write(piece)
            elif isinstance(piece, AttemptOutput) and piece.number > 1:
                tell(f"--- attempt {piece.number} ---")
            elif isinstance(piece, Missing):
                tell(f"--- missing: {one_line(piece.why)} ---")
    finally:
        output.close()


def from_the_last(follower: Follower, count: int) -> Iterator[Piece]:
    """The last lines of what there is, then all that comes."""
    pieces = follower.pieces()

    def so_far() -> Iterator[Piece]:
        for piece in pieces:
            yield piece
            if follower.caught_up and isinstance(piece, bytes | JobView):
                return

    yield from last_lines(so_far(), count)
    yield from pieces


def last_lines(pieces: Iterable[Piece], count: int) -> Iterator[Piece]:
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
