"""The streams of an attempt in its supervisor's `select` loop: its terminal, and what its clients ask of it.

Rule: a question is kept until there is something to say or its time is over, and an answer is given only
where the agent reads. Nobody but the newest session of a terminal is answered. A client that has not asked
for a while is taken to be gone, and no output waits for it any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final, NamedTuple

from cotenant.agent.ipc import StreamIn, StreamOut
from cotenant.agent.supervisor.processes import Terminal
from cotenant.controller.wire import StreamAsk, StreamTold

QUESTIONS_MAX: Final = 256
WAIT_S_MAX: Final = 30.0
LOST_S: Final = 45.0
"""A client asks at least every `WAIT_S_MAX`."""
WRITE_AGAIN_S: Final = 0.01
FORMER_MAX: Final = 64
REPLACED: Final = "another client has connected to this terminal"


class HeldAsk(NamedTuple):
    """A question that is not answered yet, and until when it may wait."""

    word: StreamIn
    until_s: float


class Streams:
    def __init__(self, say: Callable[[StreamOut], None], has_room: Callable[[], bool]) -> None:
        """Starts without a terminal. `say`: tells the agent; `has_room`: whether it reads what it is told."""
        self._terminal: Terminal | None = None
        self._say, self._has_room = say, has_room
        self._held: dict[tuple[str, bool], HeldAsk] = {}
        """By session, and whether it is for output: a newer one takes its place."""
        self._session = ""
        self._former: deque[str] = deque(maxlen=FORMER_MAX)
        self._heard_s = -inf
        self._write_s = inf

    @property
    def next_alarm_s(self) -> float:
        alarms = [held.until_s for held in self._held.values()]
        if self._terminal is not None and self._terminal.stream.is_followed:
            alarms.append(self._heard_s + LOST_S)
        return min([self._write_s, *alarms])

    def serve(self, terminal: Terminal, now_s: float) -> None:
        """Its first client is on its way: until then no output that would get lost is read."""
        self._terminal, self._heard_s = terminal, now_s
        terminal.stream.follow()

    def ask(self, word: StreamIn, now_s: float) -> None:
        """Takes in a question; it is answered by `work`, which is called after this."""
        ask, terminal = word.ask, self._terminal
        if terminal is None or ask.port:
            self._tell(word, StreamTold(state="refused", why="there is no such stream here"))
            return
        if ask.session in self._former:
            self._tell(word, StreamTold(state="replaced", why=REPLACED))
            return
        if ask.session != self._session:
            self._begin_session(terminal, ask.session)
        self._heard_s = now_s
        if ask.rows and ask.columns:
            terminal.resize(ask.rows, ask.columns)
        key = ask.session, ask.limit > 0
        if key not in self._held and len(self._held) >= QUESTIONS_MAX:
            self._tell(word, StreamTold(state="away", why="too many questions are open"))
            return
        before = self._held.get(key)
        self._held[key] = HeldAsk(word, now_s + min(max(ask.wait_s, 0.0), WAIT_S_MAX))
        if before is not None and before.word.request != word.request:
            self._tell(before.word, terminal.stream.answer(StreamAsk(session=ask.session)))

    def _begin_session(self, terminal: Terminal, session: str) -> None:
        """Whoever had the terminal hears that it has another client now."""
        if self._session:
            self._former.append(self._session)
        for key, held in list(self._held.items()):
            if key[0] == self._session:
                del self._held[key]
                self._tell(held.word, StreamTold(state="replaced", why=REPLACED))
        self._session = session
        terminal.stream.begin_session()

    def work(self, now_s: float) -> None:
        """Passes input on, and answers what can be answered."""
        terminal, self._write_s = self._terminal, inf
        if terminal is None:
            return
        stream = terminal.stream
        for held in self._held.values():
            stream.take_in(held.word.ask)
        terminal.write()
        if stream.unwritten:
            self._write_s = now_s + WRITE_AGAIN_S
        if now_s >= self._heard_s + LOST_S or stream.has_ended:
            stream.is_followed = False
        for key, (word, until_s) in list(self._held.items()):
            if not self._has_room():  # It wakes us when it reads again; then it is soon asked again, too.
                if now_s >= until_s:
                    del self._held[key]
            elif stream.is_due(word.ask) or stream.has_ended or now_s >= until_s:
                del self._held[key]
                self._tell(word, stream.answer(word.ask))

    def end(self) -> None:
        """Nothing more comes: tells those who wait for it what there is."""
        for word, _ in self._held.values():
            assert self._terminal is not None
            self._tell(word, self._terminal.stream.answer(word.ask))
        self._held.clear()

    def _tell(self, word: StreamIn, told: StreamTold) -> None:
        self._say(StreamOut(request=word.request, told=told))
