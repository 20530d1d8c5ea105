"""Streams of bytes between a client and a job's host: its terminal, and connections to its ports.

The client asks and the host answers, as with logs. Bytes are numbered from the beginning of a stream. A
question says how far the client has read and how much it will take, which is the credit: the host keeps what
it has sent until a later question asks for what follows, and reads no more than `WINDOW_BYTES` ahead of that.
The answer says how far the client's own bytes were taken, and what follows is sent again until it was.

Rule: whoever relays questions and answers keeps nothing, and any of them may be lost, repeated or late: the
bytes come out once and in order. Pure.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

WINDOW_BYTES: Final = 64 * 1024
"""What either end keeps of what it has sent; of a terminal also what a client sees first."""
PIECE_BYTES: Final = 64 * 1024
"""In one question or answer."""

SIZE_VARIABLE: Final = "COTENANT_TERMINAL"
"""In the environment of a job with a terminal: its size at the start, `24x80`."""

StreamState = Literal["open", "ended", "replaced", "away", "refused"]
"""ended: nothing follows, here; replaced: another client has the terminal; away: ask again in a moment."""


class StreamAsk(msgspec.Struct, frozen=True, kw_only=True):
    """A question about a stream; one with `data` sends as well."""

    session: str
    """Random name of this use of the stream. A terminal has one at a time, and a new one takes over."""
    port: int = 0
    """0: the job's terminal; else a connection to that port of its host."""
    seen: int = 0
    """The client has the output before this byte."""
    limit: int = 0
    """It takes so many bytes of what follows; 0: it wants none."""
    wait_s: float = 0.0
    """How long the answer may be held back while there is nothing to say."""
    offset: int = 0
    data: bytes = b""
    """The client's own bytes from `offset` on."""
    ends: bool = False
    """Nothing follows them: of a terminal its client leaves, of a connection it will send no more."""
    rows: int = 0
    columns: int = 0
    """Of the client's window; 0: as they are."""


class StreamTold(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a `StreamAsk`."""

    offset: int = 0
    data: bytes = b""
    """Output from `offset` on, which is more than what was asked for if that is kept no longer."""
    taken: int = 0
    """The client's bytes before this one have been taken."""
    state: StreamState = "open"
    why: str = ""
    """For a person, unless it is open."""


class SentBytes:
    """Bytes that this end sends: the last `WINDOW_BYTES` of them, so that they can be sent again."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self.end = 0
        """How many there were in all."""
        self.acknowledged = 0

    @property
    def start(self) -> int:
        """The first byte that is kept."""
        return self.end - len(self._kept)

    @property
    def room(self) -> int:
        """So many may be put without losing one that the other end does not have."""
        return max(0, WINDOW_BYTES - (self.end - self.acknowledged))

    def put(self, data: bytes) -> None:
        self._kept += data
        self.end += len(data)
        del self._kept[:-WINDOW_BYTES]

    def part(self, offset: int, limit: int) -> tuple[int, bytes]:
        """What follows `offset`, and where it begins: later, if that is kept no longer."""
        start = min(max(offset, self.start), self.end)
        at = start - self.start
        return start, bytes(self._kept[at : at + limit])

    def acknowledge(self, offset: int) -> None:
        """The other end has what comes before `offset`."""
        self.acknowledged = min(max(offset, self.start), self.end)


class HostStream:
    """The host's end of a stream, without the descriptor that its bytes come from and go to."""

    def __init__(self) -> None:
        self.sent = SentBytes()
        self.taken = 0
        """So many of the client's bytes."""
        self.unwritten = bytearray()
        """Taken from the client, and not yet passed on."""
        self.taken_bytes = 0
        """In all, from all clients."""
        self.is_followed = False
        """A client asks for the output: none of it may get lost."""
        self.is_over = False
        """There will be no more output."""
        self.has_ended = False
        """The client sends no more."""

    def begin_session(self) -> None:
        """Another client has it: what it sends is numbered anew, and it will ask for all that is kept."""
        self.taken, self.has_ended = 0, False
        self.follow()

    def follow(self) -> None:
        """From now on nothing that is kept gets lost."""
        self.sent.acknowledge(0)
        self.is_followed = True

    @property
    def room(self) -> int:
        """So much output may be read now."""
        return self.sent.room if self.is_followed else WINDOW_BYTES

    def take_in(self, ask: StreamAsk) -> None:
        """Takes what a question brings; again and again, until it is answered."""
        if ask.offset <= self.taken:
            fresh = ask.data[self.taken - ask.offset :][: WINDOW_BYTES - len(self.unwritten)]
            self.unwritten += fresh
            self.taken += len(fresh)
            self.taken_bytes += len(fresh)
        self.has_ended |= ask.ends and self.taken == ask.offset + len(ask.data)
        if ask.limit:
            self.is_followed = True
            self.sent.acknowledge(ask.seen)

    def is_due(self, ask: StreamAsk) -> bool:
        """Whether there is something to say."""
        if ask.limit and (self.is_over or self.sent.end > ask.seen):
            return True
        return self.taken != ask.offset if ask.data else not ask.limit

    def answer(self, ask: StreamAsk) -> StreamTold:
        offset, data = self.sent.part(ask.seen, min(ask.limit, PIECE_BYTES))
        is_all = bool(ask.limit) and self.is_over and offset == self.sent.end
        return StreamTold(offset=offset, data=data, taken=self.taken, state="ended" if is_all else "open")


class ClientStream:
    """The client's end of a stream."""

    def __init__(self, session: str, port: int = 0) -> None:
        self._session, self._port = session, port
        self._sent = SentBytes()
        self._ends = False
        self.seen = 0
        """So much of the output has come, or was missed."""
        self.missed = 0
        """Bytes of output that nobody kept until they were asked for."""

    @property
    def room(self) -> int:
        """So much may be put."""
        return self._sent.room

    @property
    def is_sent(self) -> bool:
        """Whether all that was put has arrived."""
        return self._sent.acknowledged == self._sent.end

    def put(self, data: bytes, *, ends: bool = False) -> None:
        """Data to be sent; `ends`: nothing follows it."""
        self._sent.put(data)
        self._ends |= ends

    def ask_to_read(self, wait_s: float) -> StreamAsk:
        return StreamAsk(
            session=self._session, port=self._port, seen=self.seen, limit=PIECE_BYTES, wait_s=wait_s
        )

    def ask_to_write(self, wait_s: float, *, rows: int = 0, columns: int = 0) -> StreamAsk:
        offset, data = self._sent.part(self._sent.acknowledged, PIECE_BYTES)
        return StreamAsk(
            session=self._session, port=self._port, wait_s=wait_s, offset=offset, data=data,
            ends=self._ends, rows=rows, columns=columns,
        )  # fmt: skip

    def has_written(self, told: StreamTold) -> None:
        """The answer to what was written."""
        self._sent.acknowledge(max(told.taken, self._sent.acknowledged))

    def read(self, told: StreamTold) -> bytes:
        """What is new in the answer to a question for output."""
        if told.offset > self.seen:
            self.missed += told.offset - self.seen if self.seen else 0
            self.seen = told.offset
        fresh = told.data[self.seen - told.offset :]
        self.seen += len(fresh)
        return fresh
