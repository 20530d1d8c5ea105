"""A client's use of a stream of a job (`wire/streams.py`)."""

from __future__ import annotations

from cotenant.controller.domain import JobId
from cotenant.controller.wire.clients.base import Question, Reply
from cotenant.controller.wire.streams import StreamAsk, StreamTold


class UseStream(Question["StreamUsed"], frozen=True, kw_only=True, tag="use-stream"):
    """Only for the job's owner."""

    job_id: JobId
    attempt: int
    ask: StreamAsk


class StreamUsed(Reply, frozen=True, kw_only=True, tag="stream-used"):
    told: StreamTold
