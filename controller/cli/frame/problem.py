"""What ends a verb early, and its exit code: something went wrong (one line: a code, the cause, and the next
thing to try), the command line is wrong (and which help there is to try), or it was asked to end: by Ctrl-C,
or by SIGTERM (`timeout`, a service manager, a shutdown).

Rule: scripts rely on these numbers (docs/cli.md lists them); `run` alone returns its job's own code. What
click found is read from its exceptions' fields. Its own sentence is kept only where there is none. Both
signals unwind what is under way in the same way, as KeyboardInterrupt, so that no child and no half of a file
stays behind; only the exit code says which of them it was.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import click


OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
NOT_ALLOWED: Final = 4
UNREACHABLE: Final = 5
NEVER_FITS: Final = 6
NEVER_STARTED: Final = 125
INTERRUPTED: Final = 130
CLOSED_PIPE: Final = 141
"""As of a command that SIGPIPE ends: its reader has closed the pipe."""

EXIT_CODES: Final[dict[str, int]] = {
    "refused": FAILED,
    "failed": FAILED,
    "version": FAILED,
    "internal": FAILED,
    "usage": USAGE,
    "config": USAGE,
    "not-found": NOT_FOUND,
    "not-allowed": NOT_ALLOWED,
    "unreachable": UNREACHABLE,
    "never-fits": NEVER_FITS,
    "never-started": NEVER_STARTED,
}


class Problem(Exception):
    """Ends the command. `code` is a key of EXIT_CODES; `hint` is a command to try, or advice."""

    def __init__(self, code: str, message: str, hint: str = "", parts: Sequence[str] = ()) -> None:
        """`parts`: where several things are wrong, a sentence for each."""
        super().__init__(message)
        assert code in EXIT_CODES, code
        self.code = code
        self.message = message
        self.hint = hint
        self.parts = tuple(parts)

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.code]

    def as_json(self) -> dict[str, Any]:
        known = {"code": self.code, "exit_code": self.exit_code, "message": self.message, "hint": self.hint}
        return {"schema": "error/1", **known, "parts": list(self.parts)}

    def __str__(self) -> str:
        from cotenant.controller.domain import one_line  # `--help` imports nothing.

        line = f"error[{self.code}]: {' '.join(self.message.split()).rstrip('.')}"
        lines = [f"{line}; {self.hint}" if self.hint else line, *(f"  {part}" for part in self.parts)]
        return "\n".join(map(one_line, lines))


def usage_problem(error: click.UsageError, name: str) -> Problem:
    """`name` is the verb, with its part: `cotenant sim compare`."""
    path = error.ctx.command_path if error.ctx else name
    text, meant = _described(error, path)
    return Problem("usage", text, f"did you mean {meant}?" if meant else f"try `{path} --help`")


def _described(error: click.UsageError, path: str) -> tuple[str, str]:
    """What is wrong, and what may have been meant."""
    import click

    if isinstance(error, click.NoSuchOption):
        known = {name for each in error.ctx.command.params for name in each.opts} if error.ctx else set()
        return f"no such option: {error.option_name}", _meant_option(error, known)
    if isinstance(error, click.NoSuchCommand):
        near = next(iter(error.possibilities or ()), "")
        return f"no such command {error.command_name!r}", f"`{path} {near}`" if near else ""
    if (
        isinstance(error, click.BadParameter)
        and error.param
        and not isinstance(error, click.MissingParameter)
    ):
        return f"{error.param.opts[-1]} {error.message}", ""
    text = error.format_message()
    return text[:1].lower() + text[1:], ""


OPTIONS_ELSEWHERE: Final = {
    option: ours
    for ours, options in {
        "--gpus": "--gres --ngpus --num-gpus --gpu --gpus-per-node --ntasks --nproc-per-node",
        "--cpus": "--cpus-per-task --cpus-per-gpu --num-cpus",
        "--mem": "--mem-per-gpu --gpu-mem --vram",
        "--host-mem": "--memory --mem-per-cpu --ram",
        "--time": "--timeout --time-limit --walltime",
        "--name": "--job-name --jobname",
        "--workdir": "--chdir --cwd --working-dir",
        "--after": "--dependency --depends-on",
        "--class": "--qos",
        "--organisation": "--account --project",
        "--priority": "--nice",
        "--constraint": "--partition --queue",
        "--env": "--environment",
        "--retries": "--requeue --restart --max-restarts",
        "--tail": "--lines",
        "--policies": "--policy",
        "--policy": "--scheduler",
    }.items()
    for option in options.split()
}
"""Options of Slurm and others, and what is closest to them here."""


def _meant_option(error: click.NoSuchOption, known: set[str]) -> str:
    """One of the command's options: what the word begins, else what others call so, else the nearest."""
    word = error.option_name
    begun = sorted(each for each in known if each.startswith(word)) if word.startswith("--") else []
    elsewhere = OPTIONS_ELSEWHERE.get(word, "")
    return next(filter(known.__contains__, (*begun, elsewhere)), "") or next(
        iter(error.possibilities or ()), ""
    )


def part_of(command: Any, name: str, words: Sequence[str]) -> str:
    """`cotenant sim compare` of `cotenant sim compare --jobs`."""
    for word in words:
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            break
        name = f"{name} {word}"
    return name


def suggestion(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """`did you mean X?`, or nothing where no known word is near."""
    near = nearest(word, known, cutoff)
    return f"did you mean {near}?" if near else ""


def nearest(word: str, known: Iterable[str], cutoff: float) -> str:
    import difflib

    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)), "")


_SIGNALLED = INTERRUPTED - signal.SIGINT
_heard: list[int] = []


def heard(number: int) -> None:
    """The process was asked to end by this signal."""
    _heard.append(number)


def ended_by() -> int:
    """The exit code of what was cut short: 130 after Ctrl-C, 143 after SIGTERM."""
    return _SIGNALLED + (_heard[-1] if _heard else signal.SIGINT)


@contextmanager
def listening() -> Iterator[None]:
    """SIGTERM interrupts as Ctrl-C does. Elsewhere than in the main thread, or ignored: as it is."""
    del _heard[:]
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return
    signal.signal(signal.SIGTERM, _terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminated(number: int, frame: FrameType | None) -> None:
    heard(number)
    raise KeyboardInterrupt
