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

from cotenant.agent.ipc import StreamIn, StreamOut
from cotenant.agent.supervisor.port_connection import ForeignPort, PortConnection
from cotenant.agent.supervisor.processes import Terminal
from cotenant.controller.wire import HostStream, StreamAsk, StreamTold

QUESTIONS_MAX: Final = 256
FORWARDS_MAX: Final = 64
WAIT_S_MAX: Final = 30.0
LOST_S: Final = 45.0
"""A client asks at least every `WAIT_S_MAX`."""
WRITE_AGAIN_S: Final = 0.01
FORMER_MAX: Final = 1024
REPLACED: Final = "another client has connected to this terminal"


class HeldAsk(NamedTuple):
    """A question that is not answered yet, and until when it may wait."""

    word: StreamIn
    until_s: float


class Streams:
    def __init__(
        self,
        selector: selectors.BaseSelector,
        say: Callable[[StreamOut], None],
        has_room: Callable[[], bool],
    ) -> None:
        """Starts without a terminal. `say`: tells the agent; `has_room`: whether it reads what it is told."""
        self._selector, self._say, self._has_room = selector, say, has_room
        self._terminal: Terminal | None = None
        self._forwards: dict[str, PortConnection] = {}
        """By session."""
        self._held: dict[tuple[str, bool], HeldAsk] = {}
        """By session, and whether it is for output: a newer one takes its place."""
        self._session = ""
        """The terminal's."""
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
        self._terminal, self._heard_s[self._session] = terminal, now_s
        terminal.stream.follow()

    # --- Questions -----------------------------------------------------------------------------------

    def ask(self, word: StreamIn, now_s: float) -> None:
        """Takes in a question; it is answered by `work`, which is called after this."""
        ask, key = word.ask, (word.ask.session, word.ask.limit > 0)
        stream = self._stream_for(word)
        if stream is None:
            return
        self._heard_s[ask.session] = now_s
        if key not in self._held and len(self._held) >= QUESTIONS_MAX:
            self._tell(word, StreamTold(state="away", why="too many questions are open"))
            return
        before = self._held.get(key)
        self._held[key] = HeldAsk(word, now_s + min(max(ask.wait_s, 0.0), WAIT_S_MAX))
        if before is not None and before.word.request != word.request:
            self._tell(before.word, stream.answer(StreamAsk(session=ask.session)))

    def _stream_for(self, word: StreamIn) -> HostStream | None:
        """The stream that is meant, begun if this is its first question; None: it is answered."""
        ask, terminal = word.ask, self._terminal
        if ask.port:
            return self._forward_for(word)
        if terminal is None or ask.session in self._former:
            no = StreamTold(state="refused", why="it has no terminal")
            self._tell(word, no if terminal is None else StreamTold(state="replaced", why=REPLACED))
            return None
        if ask.session != self._session:
            self._begin_session(terminal, ask.session)
        if ask.rows and ask.columns:
            terminal.resize(ask.rows, ask.columns)
        return terminal.stream

    def _forward_for(self, word: StreamIn) -> HostStream | None:
        ask = word.ask
        try:
            if ask.session not in self._forwards:
                if ask.session in self._former:
                    raise ForeignPort("this connection is closed")
                if len(self._forwards) >= FORWARDS_MAX:
                    raise ForeignPort(f"{FORWARDS_MAX} connections to its ports are open")
                self._forwards[ask.session] = PortConnection(ask.port, self._selector)
        except ForeignPort as problem:
            self._tell(word, StreamTold(state="refused", why=str(problem)))
            return None
        return self._forwards[ask.session].stream

    def _begin_session(self, terminal: Terminal, session: str) -> None:
        """Whoever had the terminal hears that it has another client now."""
        if self._session:
            self._former.append(self._session)
        for key, held in list(self._held.items()):
            if key[0] == self._session:
                del self._held[key]
                self._tell(held.word, StreamTold(state="replaced", why=REPLACED))
        self._heard_s.pop(self._session, None)
        self._session = session
        terminal.stream.begin_session()

    # --- Answers -------------------------------------------------------------------------------------

    def work(self, now_s: float) -> None:
        """Passes bytes on both ways, and answers what can be answered."""
        self._write_s = inf
        for held in self._held.values():
            self._of(held.word).take_in(held.word.ask)
        ends: list[Terminal | PortConnection] = [*self._forwards.values()]
        for end in (*ends, *([self._terminal] if self._terminal is not None else [])):
            end.write()
            if end.stream.unwritten:
                self._write_s = now_s + WRITE_AGAIN_S
        for forward in self._forwards.values():
            forward.read()
        for session in [each for each, heard_s in self._heard_s.items() if now_s >= heard_s + LOST_S]:
            self._leave(session)
        if self._terminal is not None and self._terminal.stream.has_ended:
            self._terminal.stream.is_followed = False
        for key, (word, until_s) in list(self._held.items()):
            if key not in self._held:
                continue
            stream, is_late = self._of(word), now_s >= until_s
            leaves = stream.has_ended and not word.ask.port
            if not self._has_room():  # It wakes us when it reads again; then it is soon asked again, too.
                if is_late:
                    del self._held[key]
            elif stream.is_due(word.ask) or leaves or is_late:
                del self._held[key]
                told = stream.answer(word.ask)
                self._tell(word, told)
                if told.state == "ended" and word.ask.port:
                    self._leave(word.ask.session)

    def _of(self, word: StreamIn) -> HostStream:
        """The stream that a held question is about."""
        if word.ask.port:
            return self._forwards[word.ask.session].stream
        assert self._terminal is not None
        return self._terminal.stream

    def _leave(self, session: str) -> None:
        """A client is gone."""
        self._heard_s.pop(session, None)
        for key in [key for key in self._held if key[0] == session]:
            self._tell(self._held.pop(key).word, StreamTold(state="ended"))
        if session in self._forwards:
            self._former.append(session)
            self._forwards.pop(session).close()
        elif self._terminal is not None and session == self._session:
            self._terminal.stream.is_followed = False

    def end(self) -> None:
        """Nothing more comes: tells those who wait for it what there is."""
        for word, _ in self._held.values():
            self._tell(word, self._of(word).answer(word.ask))
        self._held.clear()

    def _tell(self, word: StreamIn, told: StreamTold) -> None:
        self._say(StreamOut(request=word.request, told=told))
