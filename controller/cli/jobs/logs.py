"""`cotenant logs`: a job's output over all its attempts, in order; `-f` and `run` follow it as it comes.

Rule: it reads each attempt to its end before the next, and names a part that is lost with its host instead of
skipping it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Annotated, Final, NamedTuple

from cotenant.controller.cli.frame.asking import PATIENCE_S, asking
from cotenant.controller.cli.frame.command import option
from cotenant.controller.cli.frame.output import EndpointFlag
from cotenant.controller.cli.frame.screen import tell
from cotenant.controller.cli.frame.terminal import JobOutput
from cotenant.controller.cli.jobs.arrays import row_of
from cotenant.controller.cli.jobs.queue import pages
from cotenant.controller.cli.jobs.show import JobArgument
from cotenant.controller.client import Client, Refusal
from cotenant.controller.domain import ENDED, WAITING, AttemptNo, JobId, Phase, texts
from cotenant.controller.present.jobs import in_counts
from cotenant.controller.present.problem import Problem
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
    """A job's output, all its attempts in order; of an array all its tasks', `38_2| ` before each line.

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
    with asking(endpoint, patience_s=PATIENCE_S if following else 0.0) as client:
        found = texts.for_people(row_of(client, job))
        if found.array is not None:
            if following:
                show(follow_tasks(client, JobId(job), rank, tail), raw=raw)
            else:
                show(read_tasks(client, JobId(job), rank, attempt, tail), raw=raw)
                if not ENDED.issuperset(found.array.by_state):
                    tell(f"array {job}: {in_counts(found.array)}; `cotenant logs -f {job}` follows it")
            return
        job = found.job_id
        if attempt > found.attempt:
            had = plural(found.attempt, "attempt")
            raise Problem("not-found", f"job {job} has had {had}, there is no attempt {attempt}")
        if rank:  # A rank that the job does not have is an error; no output yet is none.
            client.ask(wire.ReadJobLog(job_id=JobId(job), rank=rank, limit=1))
        if following:
            follower = Follower(client, JobId(job), rank)
            show(from_the_last(follower, tail) if tail else follower.pieces(), raw=raw)
            return
        show(read(client, found, rank, attempt, tail), raw=raw)
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
                tell(f"--- missing: {texts.one_line(piece.why)} ---")
    finally:
        output.close()


def from_the_last(follower: Follower, count: int) -> Iterator[Piece]:
    """The last lines of what there is, then all that comes."""
    pieces = follower.pieces()

    def so_far() -> Iterator[Piece]:
        for piece in pieces:
            yield piece
            if follower.caught_up and isinstance(piece, bytes | wire.JobView):
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


def read(client: Client, job: wire.JobView, rank: int, attempt: int, tail: int) -> Iterator[Piece]:
    """What there is now. `attempt`: 0 for all; `tail`: 0 for all lines."""
    pieces = read_all(client, job, rank, range(attempt, attempt + 1) if attempt else None)
    return last_lines(pieces, tail) if tail else pieces


# --- An array's tasks -------------------------------------------------------------------------------


def read_tasks(client: Client, array: JobId, rank: int, attempt: int, tail: int) -> Iterator[Piece]:
    """What there is now of one task after the other."""
    for reply in pages(client, wire.ListJobs(job_ids=(array,), include_ended=True)):
        for task in reply.jobs:
            yield from marked(task.job_id, read(client, task, rank, attempt, tail))


def follow_tasks(client: Client, array: JobId, rank: int, tail: int) -> Iterator[Piece]:
    """The tasks take turns until all have ended."""
    followed: dict[JobId, Iterator[Piece]] = {}
    known: set[JobId] = set()
    seen: dict[Phase, int] = {}
    while True:
        row = row_of(client, array)
        by_state = row.array.by_state if row.array is not None else {row.phase: 1}
        started = tuple(phase for phase in by_state if phase not in WAITING)
        if started and by_state != seen:
            for reply in pages(client, wire.ListJobs(job_ids=(array,), states=started)):
                new = [task.job_id for task in reply.jobs if task.job_id not in known]
                followers = {each: Follower(client, each, rank, round_s=TASK_ROUND_S) for each in new}
                known.update(new)
                for job_id, follower in followers.items():
                    pieces = from_the_last(follower, tail) if tail else follower.pieces()
                    followed[job_id] = marked(job_id, pieces)
        seen = by_state
        for job_id, pieces in list(followed.items()):
            if (yield from _turn(pieces)):
                del followed[job_id]
        if not followed and ENDED.issuperset(by_state):
            return
        if not followed:
            client.ask(wire.WaitJobs(job_ids=(row.job_id,), timeout_s=ROUND_S))


def _turn(pieces: Iterator[Piece]) -> Generator[Piece, None, bool]:
    """What comes until the task has been asked about again; returns whether nothing more will come."""
    for piece in pieces:
        if isinstance(piece, wire.JobView):
            return False
        yield piece
    return True


def marked(job_id: JobId, pieces: Iterable[Piece]) -> Iterator[Piece]:
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


PART_BYTES: Final = 65_536
ROUND_S: Final = 1.0
"""How long one question waits for more output."""
TASK_ROUND_S: Final = 0.1
"""The same for one of several tasks: the others wait meanwhile."""
MISSING_ROUNDS: Final = 4
"""So many questions in a row have to find output missing before that is said of a job that goes on."""
LAST_ROUNDS: Final = 5
"""After a job's end its last lines may still be on their way: so many more questions."""


class AttemptOutput(NamedTuple):
    """What follows is the output of this attempt."""

    number: int


class Missing(NamedTuple):
    why: str


class ErrorOutput(NamedTuple):
    """What the job wrote to standard error, for a reader that keeps it apart."""

    data: bytes


Piece = bytes | ErrorOutput | AttemptOutput | Missing | wire.JobView
"""What a reader gets: output, marks, and the job whenever it has changed."""


def job_now(client: Client, job_id: JobId) -> wire.JobView:
    """For people. Raises Refusal for a job that does not exist."""
    return texts.for_people(client.ask(wire.ListJobs(job_ids=(job_id,), include_ended=True)).jobs[0])


def read_all(client: Client, job: wire.JobView, rank: int, attempts: range | None = None) -> Iterator[Piece]:
    """What there is now."""
    for number in attempts or range(1, job.attempt + 1):
        yield AttemptOutput(number)
        offset, part = 0, None
        while part is None or not (part.at_end or part.closed):
            part = _part(client, job.job_id, number, rank, offset, 0.0)
            if part is None:
                break
            if part.missing:
                yield Missing(part.missing)
            yield part.data
            if part.next_offset <= offset and not part.at_end:
                break  # do not ask for the same piece for ever
            offset = part.next_offset


class Follower:
    """Output and changes until the job has ended and its last line is read.

    `pieces` may be called again after an interrupt: it goes on where it was.
    """

    def __init__(
        self,
        client: Client,
        job_id: JobId,
        rank: int,
        is_over: Callable[[wire.JobView], bool] | None = None,
        *,
        round_s: float = ROUND_S,
        errors_apart: bool = False,
    ) -> None:
        """`is_over`: when nothing more is to be expected; by default when the job has ended."""
        self._errors_apart = errors_apart
        self._is_over = is_over or (lambda job: job.phase in ENDED)
        self._round_s = round_s
        self._client = client
        self._job_id = job_id
        self._rank = rank
        self._number = 0
        """The attempt being read; 0 before the first."""
        self._offset = 0
        self._last_rounds = LAST_ROUNDS
        self._missing = ""
        """The last note about missing output, so that it appears once."""
        self._missing_rounds = 0
        self.caught_up = False
        """Whether all that was there when it began has been yielded, with the piece that came last."""

    def pieces(self) -> Iterator[Piece]:
        while True:
            job = job_now(self._client, self._job_id)
            yield job
            if self._number == 0 and job.attempt > 0:
                yield self._next_attempt()
            if self._number == 0:
                self.caught_up = True
                if self._is_over(job):
                    return
                self._pause()
                continue
            part = self._next_part()
            self.caught_up |= self._number == job.attempt and (part is None or part.at_end or part.closed)
            if part is not None:
                yield from self._contents(part, is_last=self._number < job.attempt or self._is_over(job))
            closed = part is None or part.closed or bool(part.missing)
            if self._number < job.attempt and (part is None or closed or part.at_end):
                yield self._next_attempt()
            elif self._is_over(job) and (part is None or closed or part.at_end):
                self._last_rounds -= 1
                if closed or self._last_rounds == 0:
                    return
            elif closed:
                self._pause()

    def _contents(self, part: wire.LogPart, *, is_last: bool) -> Iterator[Piece]:
        """Output counts as missing only after some rounds: after a restart of the controller, for one, a host
        is away for a moment."""
        self._missing_rounds = self._missing_rounds + 1 if part.missing else 0
        is_certain = is_last or self._missing_rounds >= MISSING_ROUNDS
        if part.missing and is_certain and part.missing != self._missing:
            yield Missing(part.missing)
        if is_certain or not part.missing:
            self._missing = part.missing
        self._offset = part.next_offset
        yield ErrorOutput(part.data) if part.is_error else part.data

    def _next_part(self) -> wire.LogPart | None:
        where = self._job_id, self._number, self._rank, self._offset
        return _part(self._client, *where, self._round_s, errors_apart=self._errors_apart)

    def _next_attempt(self) -> AttemptOutput:
        self._number, self._offset = self._number + 1, 0
        return AttemptOutput(self._number)

    def _pause(self) -> None:
        """Wait until the job has ended or a round has passed."""
        self._client.ask(wire.WaitJobs(job_ids=(self._job_id,), timeout_s=self._round_s))


def _part(
    client: Client,
    job_id: JobId,
    number: int,
    rank: int,
    offset: int,
    wait_s: float,
    *,
    errors_apart: bool = False,
) -> wire.LogPart | None:
    """None: this attempt has no output, or none yet."""
    request = wire.ReadJobLog(
        job_id=job_id,
        attempt=AttemptNo(number),
        rank=rank,
        offset=offset,
        limit=PART_BYTES,
        wait_s=wait_s,
        errors_apart=errors_apart,
    )
    try:
        return client.ask(request)
    except Refusal as refusal:
        if refusal.failure.code == "not-found":
            return None
        raise
