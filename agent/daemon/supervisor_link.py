"""The agent's end of the connection to one supervisor.

Rule: a connection may break at any time and means nothing by itself; each new one starts with the
supervisor's whole status, and the state machine repeats what must arrive. The agent does not wait for a
supervisor that does not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from cotenant.agent.daemon.core import (
    AnyAgentEvent,
    Connected,
    Disconnected,
    EndCame,
    GangMessageCame,
    Key,
    StatusCame,
)
from cotenant.agent.ipc import (
    CONTROL,
    RESULT,
    EndedNow,
    FromSupervisor,
    GangOut,
    Result,
    StatusNow,
    ToSupervisor,
    connect,
    read_frame,
    read_or_put_aside,
    write_message,
)
from cotenant.controller.wire import BadMessage, decode, version_of

_RETRY_S_MIN: Final = 0.02
_RETRY_S_MAX: Final = 1.0
_UNSENT_BYTES_MAX: Final = 256 * 1024


class Line:
    def __init__(
        self,
        key: Key,
        folder: Path,
        *,
        post: Callable[[AnyAgentEvent], None],
        log: Callable[[str], None],
    ) -> None:
        self._key = key
        self._path = folder / CONTROL
        self._post = post
        self._log = log
        self._writer: asyncio.StreamWriter | None = None
        self._version: int | None = None
        """That of the supervisor, who outlives an upgrade of the agent."""
        self._closed = False

    async def run(self) -> None:
        """Connect, listen, connect again, until closed."""
        wait_s = _RETRY_S_MIN
        while not self._closed:
            try:
                reader, writer = await connect(self._path)
            except OSError:  # Not there yet, or not any more.
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _RETRY_S_MAX)
                continue
            wait_s = _RETRY_S_MIN
            await self._listen(reader, writer)
            await asyncio.sleep(wait_s)

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        job_id, attempt = self._key
        self._writer = writer
        self._post(Connected(job_id=job_id, attempt=attempt))
        try:
            while (frame := await read_frame(reader)) is not None:
                self._version = version_of(frame)  # It speaks first, and may be older than we are.
                self._take(decode(frame, FromSupervisor))
        except BadMessage as error:
            self._log(f"job {job_id} attempt {attempt}: bad message from its supervisor: {error}")
        finally:
            self._writer = None
            writer.close()
            self._post(Disconnected(job_id=job_id, attempt=attempt))

    def _take(self, message: FromSupervisor) -> None:
        match message:
            case StatusNow(status=status) if (status.job_id, status.attempt) == self._key:
                self._post(StatusCame(status=status))
            case EndedNow():
                result = read_or_put_aside(self._path.with_name(RESULT), Result, self._log)
                if result is not None:
                    self._post(EndCame(result=result))
            case GangOut(to_host=to_host, payload=payload):
                said = GangMessageCame(
                    job_id=self._key[0], attempt=self._key[1], to_host=to_host, payload=payload
                )
                self._post(said)
            case _:
                self._log(f"{self._path}: a message about another attempt was dropped")

    def tell(self, message: ToSupervisor) -> None:
        writer = self._writer
        if writer is None:
            return
        if writer.transport.get_write_buffer_size() > _UNSENT_BYTES_MAX:
            writer.transport.abort()
            return
        with suppress(ConnectionError):
            write_message(writer, message, self._version)

    def close(self) -> None:
        self._closed = True
        if self._writer is not None:
            self._writer.close()
