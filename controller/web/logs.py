"""A job's output for the page: its last lines over all attempts, or all of it.

Rule: bounded. A look reads `TAIL_BYTES` of at most `ATTEMPTS_MAX` attempts; the whole output is passed on as
it is read. What a terminal would obey is left out of what is shown.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from cotenant.controller.cli.frame.terminal import last_words
from cotenant.controller.client import Refusal
from cotenant.controller.domain import AttemptNo, JobId
from cotenant.controller.web.connections import Connections
from cotenant.controller.web.page import Asking
from cotenant.controller.wire import LogPart, ReadJobLog

TAIL_BYTES: Final = 32 * 1024
TAIL_LINES: Final = 200
ATTEMPTS_MAX: Final = 4
PART_BYTES: Final = 256 * 1024
FAR: Final = 1 << 62
"""Behind the end of any log: the answer says where that is."""
_COLOUR: Final = re.compile(r"\x1b\[[0-9;:]*m")


class AttemptTail(NamedTuple):
    """What one attempt wrote last."""

    attempt: int
    text: str
    missing: str = ""
    is_cut: bool = False
    """There is more before it."""


def tail(asks: Asking, job_id: JobId, attempt: int, rank: int) -> tuple[AttemptTail, ...]:
    """The newest attempt's last lines, and of those before it as many as there is room for; the oldest first.

    Raises:
        Refusal: it is somebody else's, or no rank of it.
    """
    found: list[AttemptTail] = []
    room = TAIL_LINES
    for number in range(attempt, max(0, attempt - ATTEMPTS_MAX), -1):
        if room <= 0:
            break
        output = _end_of(asks, job_id, number, rank, room)
        if output is not None:
            found.append(output)
            room -= output.text.count("\n") + 1
    return tuple(reversed(found))


def _end_of(asks: Asking, job_id: JobId, attempt: int, rank: int, lines: int) -> AttemptTail | None:
    end = _part(asks, job_id, attempt, rank, FAR, 1)
    if end is None:
        return None
    begin = max(0, end.next_offset - TAIL_BYTES)
    part = _part(asks, job_id, attempt, rank, begin, TAIL_BYTES)
    if part is None:
        return None
    text = _COLOUR.sub("", last_words(part.data, lines))
    is_cut = begin > 0 or part.data.count(b"\n") > lines
    return AttemptTail(attempt, text, part.missing, is_cut)


def _part(asks: Asking, job_id: JobId, attempt: int, rank: int, offset: int, limit: int) -> LogPart | None:
    """None: this attempt has no output, or none yet."""
    try:
        return asks.ask(
            ReadJobLog(job_id=job_id, attempt=AttemptNo(attempt), rank=rank, offset=offset, limit=limit)
        )
    except Refusal as refusal:
        if refusal.failure.code == "not-found":
            return None
        raise


async def whole(connections: Connections, job_id: JobId, attempts: int, rank: int) -> AsyncIterator[bytes]:
    """Everything, byte for byte; a line of ours before each further attempt."""
    for number in range(1, attempts + 1):
        if number > 1:
            yield f"--- attempt {number} ---\n".encode()
        offset, part = 0, None
        while part is None or not (part.at_end or part.closed):
            at, attempt = offset, number
            part = await connections.ask(lambda asks: _part(asks, job_id, attempt, rank, at, PART_BYTES))  # noqa: B023
            if part is None or (part.next_offset <= offset and not part.data):
                break
            if part.missing:
                yield f"--- missing: {part.missing} ---\n".encode()
            yield part.data
            offset = part.next_offset
