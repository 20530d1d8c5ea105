"""Reporting and checkpoints for unchanged scripts, which do not import cotenant.

Rule: one session per process speaks. The script's own comes first, then the one that drives its loops; a
script with neither gets one that only reports.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from typing import Any, Final

from cotenant.checkpoint.disk.layout import CheckpointError, names_newest_first
from cotenant.checkpoint.session import Session
from cotenant.checkpoint.talk import gang
from cotenant.checkpoint.talk.protocol import ENV_RESUME, RESUME_NONE
from cotenant.checkpoint.zerocode import hugging_face
from cotenant.checkpoint.zerocode.loop import Driver

__all__ = ["CHECKPOINT", "Reporter", "install"]

CHECKPOINT: Final = "checkpoint"
LEAVE: Final = "leave"
"""The same, saved only when asked to leave: what is done where nothing is said."""
NOT_ASKED = "checkpoints were not wanted (--checkpoint never)"


def install(standing: Any, wanted: Sequence[str], when_imported: Any = None) -> Reporter:
    """Begins to report for the script. standing: what `cotenant.gradaccum.zerocode.install` returned; its
    verdict is told. `when_imported(name, callback)` says when a framework's module is there."""
    reporter = Reporter(leaves_only=CHECKPOINT not in wanted)
    standing.observers.append(reporter)
    if CHECKPOINT in wanted or LEAVE in wanted:
        reporter.not_resumable = Driver(sys.modules["__main__"], reporter).begin()
        if when_imported is not None:
            hugging_face.watch(when_imported, reporter.driven)
    return reporter


class Reporter:
    """Observes the hook's verdict and steps (see `cotenant.gradaccum.zerocode.Observer`)."""

    def __init__(self, not_resumable: str = NOT_ASKED, *, leaves_only: bool = False) -> None:
        self.not_resumable, self._leaves_only = not_resumable, leaves_only
        self._driving: Session | None = None
        self._reporting: Session | None = None
        self._sessions: list[Session] = []
        self._main: weakref.ref[Any] | None = None
        self._count_sessions()

    @property
    def has_steps(self) -> bool:
        """Steps are counted, and no loop is driven: one that begins now is not the first that trains."""
        return self._reporting is not None

    def driven(self, session: Session | None, reason: str) -> None:
        """The script's loops have begun, with a session or without one for this reason."""
        self._driving, self.not_resumable = session, reason
        if self._reporting is not None:
            self._reporting.cannot_resume(reason)
        if session is not None and self._leaves_only and not reason:
            session.save_when_leaving()

    def decide(self, reason: str | None) -> None:
        """Before the first step is counted."""
        if self._driving is not None:
            self._driving.accumulation_known(reason)
        elif self._sessions:  # the script's own has said what it could know; a refusal is news
            if reason is not None:
                self._sessions[-1].accumulation_known(reason)
        else:
            self._refuse_to_start_again()
            self._reporting = Session(accumulates=reason is None or reason, resumable_note=self.not_resumable)

    def withdrawn(self, reason: str) -> None:
        """The hook has told the supervisor itself."""

    def note_step(self, optimizer: Any) -> None:
        """The first optimizer that steps is the one that counts; another one when that is gone."""
        if self._driving is not None and self.not_resumable:
            self._driving.cannot_resume(self.not_resumable)
            self._driving = None
        if self._reporting is None:
            return
        if self._main is None or self._main() is None:
            self._main = weakref.ref(optimizer)
        if self._main() is optimizer:
            self._reporting.step_done()

    def _refuse_to_start_again(self) -> None:
        """Checkpoints that cannot be used are an error that shows, not a fresh start."""
        env = gang.environment()
        if env.root is None or env.resume == RESUME_NONE or not names_newest_first(env.root, env.attempt):
            return
        raise CheckpointError(
            f"there are checkpoints of this job in {env.root}, but the script cannot be resumed: "
            f"{self.not_resumable}. Was it changed? Set {ENV_RESUME}={RESUME_NONE} to start afresh"
        )

    def _count_sessions(self) -> None:
        begin = Session.__init__

        def __init__(session: Session, *args: Any, **kwargs: Any) -> None:
            self._sessions.append(session)
            begin(session, *args, **kwargs)

        Session.__init__ = __init__  # type: ignore[method-assign, assignment]
