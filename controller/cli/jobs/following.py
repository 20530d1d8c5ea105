"""A job's output over all its attempts, in order, as it comes.

Rule: each attempt is read to its end before the next; a part that a lost host took with it is named,
not skipped in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from cotenant.controller.client import Client, Refusal
from cotenant.controller.domain.ids import AttemptNo, JobId
from cotenant.controller.domain.job import ENDED
from cotenant.controller.domain.texts import for_people
from cotenant.controller.wire.clients import JobView, ListJobs, LogPart, ReadJobLog, WaitJobs

PART_BYTES: Final = 65_536
ROUND_S: Final = 1.0
"""How long one question waits for more output."""
LAST_ROUNDS: Final = 5
"""After a job's end its last lines may still be on their way: so many more questions."""


class AttemptOutput(NamedTuple):
    """From here on the output is this attempt's."""

    number: int


class Missing(NamedTuple):
    why: str


Piece = bytes | AttemptOutput | Missing | JobView
"""What a reader gets: output, marks, and the job whenever it has changed."""


def job_now(client: Client, job_id: JobId) -> JobView:
    """For people. Raises Refusal for a job that does not exist, and for an array's number."""
    return for_people(client.ask(ListJobs(job_ids=(job_id,), include_ended=True)).jobs[0])


def read_all(client: Client, job: JobView, rank: int, attempts: range | None = None) -> Iterator[Piece]:
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
                break  # never ask for the same again without end
            offset = part.next_offset


class Follower:
    """Output and changes until the job has ended and its last line is read.

    `pieces` may be called again after an interrupt: it goes on where it was.
    """

    def __init__(
        self, client: Client, job_id: JobId, rank: int, is_over: Callable[[JobView], bool] | None = None
    ) -> None:
        """`is_over`: when nothing more is to be expected; by default when the job has ended."""
        self._is_over = is_over or (lambda job: job.phase in ENDED)
        self._client = client
        self._job_id = job_id
        self._rank = rank
        self._number = 0
        """The attempt being read; 0 before the first."""
        self._offset = 0
        self._last_rounds = LAST_ROUNDS
        self._missing = ""
        """What was said last of output that is missing: once is enough."""
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
            part = _part(self._client, self._job_id, self._number, self._rank, self._offset, ROUND_S)
            self.caught_up |= self._number == job.attempt and (part is None or part.at_end or part.closed)
            if part is not None:
                yield from self._contents(part)
            closed = part is None or part.closed or bool(part.missing)
            if self._number < job.attempt and (part is None or closed or part.at_end):
                yield self._next_attempt()
            elif self._is_over(job) and (part is None or closed or part.at_end):
                self._last_rounds -= 1
                if closed or self._last_rounds == 0:
                    return
            elif closed:
                self._pause()

    def _contents(self, part: LogPart) -> Iterator[Piece]:
        if part.missing and part.missing != self._missing:
            yield Missing(part.missing)
        self._missing = part.missing
        self._offset = part.next_offset
        yield part.data

    def _next_attempt(self) -> AttemptOutput:
        self._number, self._offset = self._number + 1, 0
        return AttemptOutput(self._number)

    def _pause(self) -> None:
        """Until the job has ended, or a round has passed: then look again."""
        self._client.ask(WaitJobs(job_ids=(self._job_id,), timeout_s=ROUND_S))


def _part(
    client: Client, job_id: JobId, number: int, rank: int, offset: int, wait_s: float
) -> LogPart | None:
    """None: this attempt has no output, or none yet."""
    request = ReadJobLog(
        job_id=job_id,
        attempt=AttemptNo(number),
        rank=rank,
        offset=offset,
        limit=PART_BYTES,
        wait_s=wait_s,
    )
    try:
        return client.ask(request)
    except Refusal as refusal:
        if refusal.failure.code == "not-found":
            return None
        raise
