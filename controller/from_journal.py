"""Answers questions about the past where no controller runs, from this account's journal.

Rule: the answers are those of the controller's own queries, over the state that the journal leads to, as of
its last entry. It only reads: it takes no lock, begins no epoch, asks no policy for a decision, and leaves
everything to the next controller. The journal is opened at the first question that nobody else answers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from cotenant.controller import store
from cotenant.controller.api import Denied, JournalQueries
from cotenant.controller.domain import HostId
from cotenant.controller.engine import EngineConfig
from cotenant.controller.policies.registry import make_or_stand_in
from cotenant.controller.system import paths
from cotenant.controller.system.keys import local_identity
from cotenant.controller.system.sections import Settings
from cotenant.controller.wire import LogReply, ReadLog, decode, encode, unpack
from cotenant.controller.wire import clients as wire


class JournalAnswers:
    """What this account's journal answers, opened at the first question."""

    def __init__(self, folder: Path, settings: Settings, told: Callable[[float], None]) -> None:
        """Opens nothing yet. `folder`: of the journal. `told`: called with the time of its last entry."""
        self._folder, self._settings = folder, settings
        self._told = told
        self._core: store.ReadingCore | None = None
        self._is_tried = False

    def close(self) -> None:
        if self._core is not None:
            self._core.journal.close()

    def ask(self, body: wire.Question[Any]) -> wire.Reply | None:
        """The answer or the refusal; None: the journal cannot be read, or does not answer this question."""
        core = self._opened()
        if core is None:
            return None
        said = list[Any]()
        try:
            JournalQueries(core, self._ask_files).ask(body, local_identity(), said.append)
        except Denied as denied:
            return wire.Failure(request_id=0, code=denied.code, message=str(denied), hint=denied.hint)
        except store.StorageError as error:
            text = f"the journal {core.journal.place} cannot be read: {error}"
            return wire.Failure(request_id=0, code="refused", message=text, hint="")
        # As a client reads it off the wire: a row becomes the view that it stands for.
        return decode(encode(said[0]), wire.answer_to(type(body))) if said else None

    def _opened(self) -> store.ReadingCore | None:
        if not self._is_tried:
            self._is_tried = True
            self._core = read_core(self._folder)
            if self._core is not None:
                self._told(self._core.clock.wall())
        return self._core

    def _ask_files(self, host_id: HostId, question: ReadLog, answer: Callable[[LogReply], None]) -> None:
        from cotenant.agent.daemon.assembly import ATTEMPTS
        from cotenant.agent.daemon.tasks import look
        from cotenant.agent.ipc.records import attempt_folder

        attempts = paths.agent_state_dir(self._settings) / ATTEMPTS
        reply = look(attempt_folder(attempts, question.job_id, question.attempt), question)
        if reply.missing:
            reply = msgspec.structs.replace(reply, missing=f"{reply.missing} (it ran on {host_id})")
        answer(reply)


def read_core(folder: Path) -> store.ReadingCore | None:
    """The state after the last entry of a journal, at that entry's time; None: it cannot be read, or nothing
    has happened in it."""
    try:
        database = store.SqliteDatabase(folder)
        journal = store.JournalReader(database.open_reading(is_still=True), database.place)
    except store.JournalError:
        return None
    try:
        last_seq, now_s, wall_s = journal.last()
        runs = journal.runs()
        if last_seq and runs:
            config: EngineConfig = unpack(runs[-1].configuration, EngineConfig)
            state = store.recover(journal, make_or_stand_in, config)
            clock = store.Clock(now_s, monotonic=lambda: 0.0, wall=lambda: wall_s)
            return store.ReadingCore(journal, state, clock)
    except (store.JournalError, store.StorageError):
        pass
    journal.close()
    return None
