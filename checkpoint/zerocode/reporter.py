"""Telling the supervisor about a script that has no `Session`: the same words, from the zero-code hook.

Rule: one session per process speaks. The script's own comes first.
"""

from __future__ import annotations

from typing import Any

from cotenant.checkpoint.session import Session


class Reporter:
    """Observes the hook's verdict and steps (see `cotenant.gradaccum.zerocode.Observer`)."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._own_sessions = 0
        self._watch_sessions()

    def decided(self, reason: str | None) -> None:
        """Before the first step is counted."""
        if not self._own_sessions:
            self._session = Session(accumulates=reason is None or reason)

    def withdrawn(self, reason: str) -> None:
        """The hook has told the supervisor itself."""

    def stepped(self, optimizer: Any) -> None:
        if self._session is not None:
            self._session.step_done()

    def _watch_sessions(self) -> None:
        begin = Session.__init__

        def __init__(session: Session, *args: Any, **kwargs: Any) -> None:
            self._own_sessions += 1
            begin(session, *args, **kwargs)

        Session.__init__ = __init__  # type: ignore[method-assign]
