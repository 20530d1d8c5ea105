"""A job's output over all its attempts, in order.

Rule: each attempt is read to its end before the next, and a part that is lost with its host is named, not
skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

from msgspec import structs

from cotenant.controller.client.connection import Answer, Client, Refusal
from cotenant.controller.domain import ENDED, AttemptNo, JobId, texts
from cotenant.controller.wire import clients as wire

PART_BYTES: Final = 65_536
ROUND_S: Final = 1.0
"""How long one question waits for more output."""
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


OutputPiece = bytes | ErrorOutput | AttemptOutput | Missing | wire.JobView
"""What a reader gets: output, marks, and the job whenever it has changed."""


FAR: Final = 1 << 62
"""Behind the end of any log: the answer says where that is."""


class AsksQuestions(Protocol):
    """A connection to the controller, or what stands before one."""

    def ask(self, body: wire.Question[Answer], timeout_s: float | None = None) -> Answer:
        """Asks the controller and returns the answer. Raises Unreachable, Refusal."""


def read_end(
    asks: AsksQuestions,
    job_id: JobId,
    attempt: int | None,
    rank: int,
    limit: int,
    timeout_s: float | None = None,
) -> wire.LogPart | None:
    """Reads the end of an attempt's output, of the newest where none is named. None: there is no output."""
    number = None if attempt is None else AttemptNo(attempt)
    asked = wire.ReadJobLog(job_id=job_id, attempt=number, rank=rank, offset=FAR, limit=1)
    try:
        begin = max(0, asks.ask(asked, timeout_s).next_offset - limit)
        return asks.ask(structs.replace(asked, offset=begin, limit=limit), timeout_s)
    except Refusal as refusal:
        if refusal.failure.code == "not-found":
            return None
        raise


def job_now(client: Client, job_id: JobId) -> wire.JobView:
    """The job as it is now, for people. Raises Refusal for a job that does not exist."""
    return texts.escape_texts(client.ask(wire.ListJobs(job_ids=(job_id,), include_ended=True)).jobs[0])


def read_all(
    client: Client, job: wire.JobView, rank: int, attempts: range | None = None
) -> Iterator[OutputPiece]:
    """Reads what output there is now."""
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
        """Creates a follower of a job's output. `is_over`: when nothing more is to be expected; by default
        when the job has ended."""
        self._errors_apart = errors_apart
        self._is_over = is_over or (lambda job: job.phase in ENDED)
        self._round_s = round_s
        self._client = client
        self._job_id = job_id
        self._rank = rank
        self._number, self._first = 0, 1
        """The attempt being read, and the first one to read."""
        self._offset = 0
        self._last_rounds = LAST_ROUNDS
        self._missing = ""
        """The last note about missing output, so that it appears once."""
        self._missing_rounds = 0
        self.caught_up = False
        """Whether all that was there when it began has been yielded, with the piece that came last."""

    def begin_at(self, attempt: int) -> None:
        """Leaves out the attempts before this one."""
        self._number, self._first = attempt - 1, attempt

    def skip_to(self, offset: int) -> None:
        """Leaves out what comes before this byte of the attempt that is being read."""
        self._offset = max(self._offset, offset)

    def pieces(self) -> Iterator[OutputPiece]:
        while True:
            job = job_now(self._client, self._job_id)
            yield job
            if self._number < self._first <= job.attempt:
                yield self._next_attempt()
            if self._number < self._first:
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

    def _contents(self, part: wire.LogPart, *, is_last: bool) -> Iterator[OutputPiece]:
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
    """Asks for a part of an attempt's output. None: this attempt has no output, or none yet."""
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
