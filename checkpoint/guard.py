"""The guard between the hook and a script: whatever is raised behind it switches a part of the hook off, and
the script goes on.

Rule: every way from the hook into a script's frames is a *door*: a function that does what the script's own
run would do, and runs our part of it through a `Guard`. Nothing of ours is called outside one. The only thing
that passes is `AttemptEnds`, which is no failure.

Standard library only: this is loaded before the script's torch.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any, Final, TypeVar

from cotenant.checkpoint.unseen import Unseen

Door = TypeVar("Door", bound=Callable[..., Any])
_OURS: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class AttemptEnds(SystemExit):
    """This process ends here on purpose: it has saved and leaves its devices, or must not take its next
    step. It is no error that a script's `except Exception` may swallow."""


def door(function: Door) -> Door:
    """Marks a function that the script calls, and that runs ours through a guard."""
    function.__cotenant_door__ = True  # type: ignore[attr-defined]
    return function


def leave_out_frame(error: BaseException) -> None:
    """Our own frame is none of an error's of the script, which a door passes on (by a bare `raise`)."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


class Guard:
    """Runs what the hook does for one purpose, until something goes wrong with it."""

    def __init__(self, part: str, *, is_seen: bool = False) -> None:
        """`part`: what is switched off, in words that go before "is off". `is_seen`: what runs behind it is
        code of the script's, or runs in every step and enters `Unseen` where it has to do with tensors."""
        self.part, self._is_seen = part, is_seen
        self.why = ""
        """Why it is off; empty: it is on."""
        self.when_off: list[Callable[[str], None]] = []
        """Told the reason once."""

    def run(self, function: Callable[..., Any], *args: Any, otherwise: Any = None) -> Any:
        """What the function returns; `otherwise`, if this part is off or goes off by it."""
        if self.why:
            return otherwise
        try:
            if self._is_seen:
                return function(*args)
            with Unseen():
                return function(*args)
        except AttemptEnds:
            raise
        except Exception as error:  # noqa: BLE001  # whatever it is, the script must go on
            self.turn_off(error)
            return otherwise

    def turn_off(self, error: BaseException) -> None:
        """Switch this part off for good, and tell whoever wants to know."""
        if self.why:
            return
        self.why = f"{self.part} is off: cotenant's own code failed: {describe(error)}"
        for tell in self.when_off:
            with contextlib.suppress(Exception):
                tell(self.why)


def describe(error: BaseException) -> str:
    """Names an error, and the innermost line of ours that it came through."""
    line, trace = "", error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name.startswith(_OURS):
            line = f" ({name[len(_OURS) :]} line {trace.tb_lineno})"
        trace = trace.tb_next
    return f"{type(error).__name__}: {error}{line}"


COUNTING: Final = Guard("counting steps", is_seen=True)
REPORTING: Final = Guard("reporting steps", is_seen=True)
SAVING: Final = Guard("saving and resuming")
SPLITTING: Final = Guard("splitting batches", is_seen=True)
