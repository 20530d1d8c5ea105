"""Which of a script's optimizers counts the steps of its training."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final

from cotenant.checkpoint.guard import door

OTHERS_MAX: Final = 32
"""So many steps of others in a row, and the training goes on with another one."""


class MainOptimizer:
    """The first one to step counts; another one takes over when it is gone or rests: the next fold, the next
    phase."""

    of_attempt_before: Callable[[], Any] | None = None
    """In a resumed process: the one that counted when the script was left."""
    let_go: Callable[[], None] | None = None
    """Lets go of what we have read of the script's variables: it may be all that keeps one alive."""

    def __init__(self) -> None:
        self._main: weakref.ref[Any] | None = None
        self._ident, self._others = 0, 0

    def counts(self, optimizer: Any) -> bool:
        """Whether a step of this optimizer is a step of the training."""
        if id(optimizer) == self._ident:
            self._others = 0
            return True
        if self._main is None and self.of_attempt_before is not None:
            self._follow(self.of_attempt_before() or optimizer)
            return self.counts(optimizer)
        if self.let_go is not None and self._main is not None and self._main() is not None:
            self.let_go()
        if self._main is not None and self._main() is not None and self._others < OTHERS_MAX:
            self._others += 1
            return False
        self._follow(optimizer)
        return True

    def _follow(self, optimizer: Any) -> None:
        self._main, self._ident, self._others = weakref.ref(optimizer, self._gone), id(optimizer), 0

    @door
    def _gone(self, which: Any) -> None:
        """Another object may get its place in memory."""
        if which is self._main:
            self._ident = 0
