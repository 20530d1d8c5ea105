"""The guard between the hook and a script: whatever is raised behind it switches a part of the hook off, and
the script goes on.

Rule: every way from the hook into a script's frames is a *door*: a function that does what the script's own
run would do, and runs our part of it through a `Guard`. Nothing of ours is called outside one: not by torch,
and not by Python itself (imports, audit, tracing, threads, exits). The only thing that passes is
`AttemptEnds`, which is no failure.

Rule: whoever runs the job hears what was switched off, by a word that needs nothing else of ours. A script
that is being taken up where it was left is another thing: it would go on from a wrong state, and ends.

Standard library only: this is loaded before the script's torch.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar

from cotenant.checkpoint.unseen import Unseen

Door = TypeVar("Door", bound=Callable[..., Any])
FAILED: Final = "failed"
ENV_SOCKET: Final = "COTENANT_SOCKET"
_TEXT_MAX: Final = 500
_TELL_S: Final = 0.2
"""The supervisor may be busy for so long."""
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
        self.is_needed = False
        """The script is being taken up where it was left, which is no run of its own without this part."""

    def run(self, function: Callable[..., Any], *args: Any, otherwise: Any = None, seen: bool = False) -> Any:
        """What the function returns; `otherwise`, if this part is off or goes off by it. `seen`: code of the
        script's runs behind it, here."""
        if self.why:
            return otherwise
        try:
            if seen or self._is_seen:
                return function(*args)
            with Unseen():
                return function(*args)
        except AttemptEnds:
            raise
        except Exception as error:  # noqa: BLE001  # whatever it is, the script must go on
            self.turn_off(error)
            return otherwise

    def door(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, for callers that are not ours and expect nothing of it."""

        @door
        @functools.wraps(function)
        def through(*args: Any) -> Any:
            return self.run(function, *args)

        return through

    def turn_off(self, error: BaseException) -> None:
        """Switch this part off for good, and tell whoever wants to know.

        Raises:
            AttemptEnds: the script cannot be taken up without this part.
        """
        if self.why:
            return
        self.why = f"{self.part} is off: cotenant's own code failed: {describe(error)}"
        if self.is_needed:
            tell_supervisor(FAILED, what="load", error=self.why)
            say(f"this job was to go on where it was left, and ends: {self.why}")
            raise AttemptEnds(1)
        if not tell_supervisor(FAILED, what="hook", error=self.why):
            say(f"{self.why}; the script goes on")
        for tell in self.when_off:
            try:
                tell(self.why)
            except Exception as second:  # noqa: BLE001  # the first one is known
                tell_supervisor(FAILED, what="hook", error=describe(second))


def tell_supervisor(name: str, **fields: Any) -> bool:
    """Sends one datagram, and says whether somebody has got it. It is made here: whatever else we have may be
    what has failed."""
    path, rank = os.environ.get(ENV_SOCKET), os.environ.get("RANK", "0")
    if not path:
        return False
    with contextlib.suppress(Exception):
        import json
        import socket

        texts = {key: value[:_TEXT_MAX] for key, value in fields.items()}
        message = {"v": 1, "m": name, "rank": int(rank) if rank.isdecimal() else 0, **texts}
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.settimeout(_TELL_S)
            out.sendto(json.dumps(message).encode(), path)
        return True
    return False


def say(text: str) -> None:
    """Writes a line of ours to the job's log."""
    write_line(f"cotenant: {text}")


def write_line(line: str) -> None:
    """Writes a line to standard error, or loses it: what we say may not fail a script, and none of it waits
    in a buffer, which would fail the script at its end."""
    with contextlib.suppress(Exception):
        if sys.__stderr__ is not None:
            os.write(sys.__stderr__.fileno(), f"{line}\n".encode(errors="backslashreplace"))


def describe(error: BaseException) -> str:
    """Names an error, and the innermost line of ours that it came through."""
    line, trace = "", error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name.startswith(_OURS):
            line = f" ({name[len(_OURS) :]} line {trace.tb_lineno})"
        trace = trace.tb_next
    return f"{type(error).__name__}: {error}{line}"


def listen_for(events: Collection[str], hear: Callable[[str, tuple[Any, ...]], None]) -> None:
    """Have the interpreter tell of these events for ever: an audit hook cannot be taken away. It is also
    called when the interpreter takes its modules apart, and then must not look for anything in one."""
    is_ending = sys.is_finalizing

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in events and not is_ending():
            hear(event, args)

    sys.addaudithook(hook)


COUNTING: Final = Guard("counting steps", is_seen=True)
REPORTING: Final = Guard("reporting steps", is_seen=True)
SAVING: Final = Guard("saving and resuming")
SPLITTING: Final = Guard("splitting batches", is_seen=True)
LIMITING: Final = Guard("holding this process to its part of the GPU")
STARTING: Final = Guard("what is done at the start of this process", is_seen=True)
ENDING: Final = Guard("what is done at the end of this process")
