"""A client's questions about the streams of one attempt, asked until the controller and the host answer.

Rule: that nobody answers just now is no error: whoever asks goes on, and says so to a person after a while.
"""

from __future__ import annotations

import time
from typing import Final

from cotenant.controller.client.connection import Client, Refusal, Unreachable
from cotenant.controller.domain import JobId
from cotenant.controller.wire import StreamAsk, StreamTold
from cotenant.controller.wire import clients as wire

READ_WAIT_S: Final = 10.0
"""How long a question for output waits for some."""
WRITE_WAIT_S: Final = 1.0
"""How long input waits for room."""
ANSWER_S: Final = 5.0
"""Beyond that, before the question is asked anew."""
AWAY_S: Final = 0.2
"""Between two questions while nobody answers."""
_FOR_NOW: Final = ("refused", "standby", "internal")


class StreamLine:
    """A connection for questions about streams. Not for several threads at once."""

    def __init__(self, client: Client, job_id: JobId, attempt: int) -> None:
        self._client, self._job_id, self._attempt = client, job_id, attempt

    def ask(self, ask: StreamAsk) -> StreamTold:
        """The answer; after a moment `away` where there is none.

        Raises:
            Refusal: it is not ours, or has no terminal.
        """
        question = wire.UseStream(job_id=self._job_id, attempt=self._attempt, ask=ask)
        try:
            told = self._client.ask(question, timeout_s=ask.wait_s + ANSWER_S).told
        except Unreachable as error:
            told = StreamTold(state="away", why=str(error))
        except Refusal as refusal:
            if refusal.failure.code not in _FOR_NOW:
                raise
            told = StreamTold(state="away", why=str(refusal))
        if told.state == "away":
            time.sleep(AWAY_S)
        return told
