"""The streams of an attempt in its supervisor's `select` loop: its terminal and its ports, and what their
clients ask.

Rule: a question is kept until there is something to say or its time is over, and an answer is given only
where the agent reads. Nobody but the newest session of a terminal is answered. A client that has not asked
for a while is taken to be gone: a terminal's output no longer waits for it, and a connection is closed.
"""

from __future__ import annotations

import selectors
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final, NamedTuple

from cotenant.agent.ipc.records import Order
from cotenant.agent.supervisor.port_connection import NoConnection, PortConnection
from cotenant.agent.supervisor.processes.terminal import Terminal
from cotenant.controller.wire import AskStream, HostStream, StreamAsk, StreamReply, StreamTold

STREAMS_MAX: Final = 64
WAIT_S_MAX: Final = 30.0
LOST_S: Final = 45.0
"""A client asks at least every `WAIT_S_MAX`."""
WRITE_AGAIN_S: Final = 0.01
FORMER_MAX: Final = 1024
REPLACED: Final = StreamTold(state="replaced", why="another client has connected to this terminal")


class HeldAsk(NamedTuple):
    """A question that is not answered yet, and until when it may wait."""

    word: AskStream
    until_s: float


class Streams:
    def __init__(
        self,
        order: Order,
        selector: selectors.BaseSelector,
        say: Callable[[StreamReply], None],
        has_room: Callable[[], bool],
    ) -> None:
        """Starts without a terminal. `say`: tells the agent; `has_room`: whether it reads what it is told."""
        self._job_epoch = order.start.job_epoch
        self._selector, self._say, self._has_room = selector, say, has_room
        self._terminal: Terminal | None = None
        self._ends: dict[str, Terminal | PortConnection] = {}
        """By session: of the terminal's there is one."""
        self._held: dict[tuple[str, bool], HeldAsk] = {}
        """By session, and whether it is for output: a newer one takes its place."""
        self._former: deque[str] = deque(maxlen=FORMER_MAX)
        self._heard_s: dict[str, float] = {}
        """When each session has asked last."""
        self._write_s = inf

    @property
    def next_alarm_s(self) -> float:
        alarms = [held.until_s for held in self._held.values()]
        alarms += [heard_s + LOST_S for heard_s in self._heard_s.values()]
        return min([self._write_s, *alarms])

    def serve(self, terminal: Terminal, now_s: float) -> None:
        """Its first client is on its way: until then no output that would get lost is read."""
        self._terminal = self._ends[""] = terminal
        self._heard_s[""] = now_s
        terminal.stream.follow()

    # --- Questions -----------------------------------------------------------------------------------

    def ask(self, word: AskStream, now_s: float) -> None:
        """Takes in a question; it is answered by `work`, which is called after this."""
        ask, key = word.ask, (word.ask.session, word.ask.limit > 0)
        why_not = self._objection(word)
        if why_not is None and ask.session not in self._ends:
            try:
                self._ends[ask.session] = self._begin(ask)
            except NoConnection as problem:
                why_not = StreamTold(state="refused", why=str(problem))
        if why_not is not None:
            self._tell(word, why_not)
            return
        self._heard_s[ask.session] = now_s
        if ask.rows and ask.columns and self._terminal is self._ends[ask.session] is not None:
            self._terminal.resize(ask.rows, ask.columns)
        before = self._held.get(key)
        self._held[key] = HeldAsk(word, now_s + min(max(ask.wait_s, 0.0), WAIT_S_MAX))
        if before is not None and before.word.request != word.request:
            self._tell(before.word, self._stream(word).answer(StreamAsk(session=ask.session)))

    def _objection(self, word: AskStream) -> StreamTold | None:
        """Why a question has no answer here."""
        if word.job_epoch != self._job_epoch:  # Of another job of this number, in a lost history.
            return StreamTold(state="away", why="its host has not heard of this attempt")
        if word.ask.session in self._former:
            return REPLACED if not word.ask.port else StreamTold(state="ended")
        if len(self._ends) > STREAMS_MAX and word.ask.session not in self._ends:
            return StreamTold(state="refused", why=f"{STREAMS_MAX} connections to its ports are open")
        return None

    def _begin(self, ask: StreamAsk) -> Terminal | PortConnection:
        """The end of a new session. Raises NoConnection: there is no such stream."""
        if ask.port:
            return PortConnection(ask.port, self._selector)
        if self._terminal is None:
            raise NoConnection("it has no terminal")
        for session in [session for session, end in self._ends.items() if end is self._terminal]:
            self._forget(session, REPLACED)
        self._terminal.stream.begin_session()
        return self._terminal

    def _forget(self, session: str, told: StreamTold) -> None:
        """A session is over; whoever waits in it hears that."""
        end = self._ends.pop(session)
        self._heard_s.pop(session, None)
        self._former.append(session)
        if isinstance(end, PortConnection):
            end.close()
        for key in [key for key in self._held if key[0] == session]:
            self._tell(self._held.pop(key).word, told)

    # --- Answers -------------------------------------------------------------------------------------

    def work(self, now_s: float) -> None:
        """Passes bytes on both ways, and answers what can be answered."""
        self._write_s = inf
        for word, _ in self._held.values():
            self._stream(word).take_in(word.ask)
        for end in self._ends.values():
            end.write()
            if isinstance(end, PortConnection):
                end.read()
            if end.stream.unwritten:
                self._write_s = now_s + WRITE_AGAIN_S
        for session in [each for each, heard_s in self._heard_s.items() if now_s >= heard_s + LOST_S]:
            self._lose(session)
        terminal = self._terminal
        if terminal is not None and terminal.stream.has_ended:
            terminal.stream.is_followed = False
        for key, (word, until_s) in list(self._held.items()):
            if key not in self._held:
                continue
            stream, is_late = self._stream(word), now_s >= until_s
            if not self._has_room():  # It wakes us when it reads again; then it is soon asked again, too.
                if is_late:
                    del self._held[key]
            elif is_late or stream.is_due(word.ask) or (stream.has_ended and not word.ask.port):
                del self._held[key]
                self._tell(word, told := stream.answer(word.ask))
                if told.state == "ended" and word.ask.port:
                    self._forget(key[0], told)

    def _stream(self, word: AskStream) -> HostStream:
        return self._ends[word.ask.session].stream

    def _lose(self, session: str) -> None:
        """A client says nothing any more. That of the terminal may come back, as a closed laptop does."""
        if self._ends[session] is self._terminal:
            self._heard_s.pop(session)
            self._terminal.stream.is_followed = False
        else:
            self._forget(session, StreamTold(state="ended"))

    def end(self) -> None:
        """Nothing more comes: tells those who wait for it what there is."""
        for word, _ in self._held.values():
            self._tell(word, self._stream(word).answer(word.ask))
        self._held.clear()

    def _tell(self, word: AskStream, told: StreamTold) -> None:
        self._say(StreamReply(request=word.request, told=told))
