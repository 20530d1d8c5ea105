"""Reporting and checkpoints for unchanged scripts, which do not import cotenant.

Rule: one rank per process speaks. The script's own Session comes first, then the one that a framework's
trainer drives; a script with neither gets one that watches it.

Reading order: `looking.py` (the picture at the loop's begin), `sites.py` and `boundaries.py` (where a script
stands, and where it may be left), `state_writer.py` and `state_reader.py` (its state), `passes.py` and
`files.py` (its data and files), `script_rank.py` (saves and leaves), `resuming.py` (goes on), `proof.py`
(shows that it does).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from cotenant.checkpoint.guard import REPORTING, SAVING, door
from cotenant.checkpoint.late_log import LateLog
from cotenant.checkpoint.rerun import folders_of_newest, marks_of_newest, steps_of_newest, written_of_newest
from cotenant.checkpoint.seeds import end_seeds
from cotenant.checkpoint.session import Session
from cotenant.checkpoint.zerocode import hugging_face
from cotenant.checkpoint.zerocode.files import allow_made_again
from cotenant.checkpoint.zerocode.hugging_face import TrainerRank
from cotenant.checkpoint.zerocode.resuming import Resumption
from cotenant.checkpoint.zerocode.script_rank import ScriptRank, Watched

__all__ = ["CHECKPOINT", "LEAVE", "Reporter", "install"]

CHECKPOINT: Final = "checkpoint"
LEAVE: Final = "leave"
"""The same, saved only when asked to leave: what is done where nothing is said."""
NOT_ASKED = "checkpoints were not wanted (--checkpoint never)"


def install(standing: Any, wanted: Sequence[str], startup: Any) -> Reporter:
    """Begins to report for the script. standing: what `cotenant.gradaccum.zerocode.install` returned; its
    verdict is told. startup: says when a module is imported (`sitecustomize`)."""
    is_wanted = CHECKPOINT in wanted or LEAVE in wanted
    reporter = Reporter("" if is_wanted else NOT_ASKED, leaves_only=CHECKPOINT not in wanted)
    standing.observers.append(reporter)
    standing.steps_saved = steps_of_newest()
    reporter.begin(startup)
    LateLog.is_beside = True
    if is_wanted:
        hugging_face.watch(startup.when_imported, reporter, reporter.watched)
    return reporter


class Reporter:
    """Observes the hook's verdict and steps (see `cotenant.gradaccum.zerocode.Observer`)."""

    def __init__(self, why_not: str = NOT_ASKED, *, leaves_only: bool = False) -> None:
        self._why_not, self.leaves_only = why_not, leaves_only
        self.watched = Watched()
        self._rank: ScriptRank | None = None
        self._driving: TrainerRank | None = None
        """Of a framework's trainer."""
        self._sessions: list[Session] = []
        """The script's own."""

    def begin(self, startup: Any) -> None:
        """Follow the script from here, as far as that is needed to save it."""
        self._count_sessions()
        if self._why_not:
            return
        watched = self.watched
        watched.passes.begin()
        watched.files.begin()
        folders = folders_of_newest()
        if folders:
            allow_made_again(folders)
        watched.files.written |= written_of_newest()
        if marks_of_newest():
            Resumption(self._make_rank, watched).begin()
        else:
            watched.files.when_destroyed = lambda reason: self._make_rank().end_attempt(reason)
            watched.look.when_taken += [watched.files.enter_loop, end_seeds]
            watched.look.begin(startup)
            SAVING.when_off.append(lambda _: watched.look.stop())

    @property
    def obstacle(self) -> str:
        """Why no trainer's loops are to be saved; empty: nothing speaks against it."""
        if self._sessions:
            return "the script has a Session of its own"
        return self._why_not or ("" if self._rank is None else "the script has made steps of its own before")

    def driven(self, rank: TrainerRank | None, reason: str) -> None:
        """A trainer's loops have begun, with a rank or without one for this reason."""
        self._driving = rank
        self._why_not = self._why_not or reason
        if self._rank is not None and reason:
            self._rank.give_up(reason)

    def decide(self, reason: str | None) -> None:
        """Before the first step is counted."""
        REPORTING.run(self.watched.look.end)  # Also when saving is off: something may be left of it.
        accumulates = True if reason is None else reason
        if self._driving is not None:
            self._driving.accumulation_known(reason)
        elif self._sessions:  # the script's own has said what it could know; a refusal is news
            if reason is not None:
                self._sessions[-1].accumulation_known(reason)
        elif self._rank is not None:
            self._rank.accumulation_known(reason)
        else:
            why_not = self._why_not or SAVING.why
            self._rank = ScriptRank(self.watched, why_not=why_not, leaves_only=self.leaves_only)
            self._rank.begin(accumulates)

    def withdrawn(self, reason: str) -> None:
        """The hook has told the supervisor itself."""

    def note_step(self, optimizer: Any) -> None:
        """The optimizer that counts has made a step."""
        if self._rank is not None and self._driving is None and not self._sessions:
            self._rank.note_step(optimizer)

    def _make_rank(self) -> ScriptRank:
        """One of a script that goes on from a checkpoint: it is made when the script comes to its loop,
        because all ranks are connected by then."""
        self._rank = ScriptRank(self.watched, why_not=self._why_not, leaves_only=self.leaves_only)
        return self._rank

    def _count_sessions(self) -> None:
        begin = Session.__init__

        @door
        def __init__(session: Session, *args: Any, **kwargs: Any) -> None:
            LateLog.is_beside = False
            self._sessions.append(session)
            begin(session, *args, **kwargs)
            SAVING.is_needed = False  # It has resumed by itself.

        Session.__init__ = __init__  # type: ignore[method-assign, assignment]
