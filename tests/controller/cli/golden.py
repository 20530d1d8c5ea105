"""What the command line says of a cluster of twelve jobs, word for word: `golden/VERB.txt` for each verb.

A file begins with the help of the verb and of its parts, and goes on with the lines of
`golden/command_lines`, all asked of one controller that was made for it: what the first has changed, the next
one finds. After a change that is meant, `python -m tests.controller.cli.golden --write` writes the files
anew, for a review by `git diff`.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final, get_args
from unittest.mock import patch

import click

from cotenant.controller.cli.main import main
from cotenant.controller.cli.verbs import BY_NAME, verb_command
from cotenant.controller.wire import clients
from tests.building.stand_in import StandIn
from tests.controller.cli.twelve_jobs import BEGAN_S, TwelveJobs

FOLDER: Final = Path(__file__).with_name("golden")
WIDTH: Final = 110
TERMINAL: Final = "(terminal)"
"""Before a command line whose output somebody looks at."""
LINES: Final = dict(
    re.findall(r"^\[(\S+)\]\n(.*?)\n$", (FOLDER / "command_lines").read_text() + "\n", re.M | re.S)
)
"""By the verb whose file it is; where another verb is asked, it shows what has become of it."""
FILES: Final = (*BY_NAME, "cotenant")


def transcript(name: str) -> str:
    """All that the file of this name holds."""
    with at_home() as home:
        if name == "cotenant":
            return "".join(
                run(line, home) for line in ("--help", "", "help queue", "salloc", "nonsense", "-x queue")
            )
        text = "".join(run(f"{line} --help", home) for line in helps(name))
        if lines := LINES.get(name, "").splitlines():
            with cluster(home):
                text += "".join(run(line, home) for line in lines)
    return text


def helps(name: str) -> Iterator[str]:
    """The verb and its parts, and their parts."""

    def below(line: str, command: click.Command) -> Iterator[str]:
        yield line
        for part, each in getattr(command, "commands", {}).items():
            yield from below(f"{line} {part}", each)

    return below(name, verb_command(BY_NAME[name]))


def run(line: str, home: str) -> str:
    """The command line, its exit code and what it has printed."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    words = shlex.split(line)
    with patch.dict(os.environ), redirect_stdout(out), redirect_stderr(err):
        if seen := words[:1] == [TERMINAL]:
            os.environ["NO_COLOR"] = "1"
            out.isatty = lambda: True  # type: ignore[method-assign]
        code = main(words[seen:])
    said = []
    for stream in (out, err):
        stream.flush()
        said.append(stream.buffer.getvalue().decode().replace(home, "/home/ann"))
    mark = "" if not said[1] else "--- standard error\n"
    return f"$ cotenant {line}    [{code}]\n{said[0]}{mark}{said[1]}\n"


@contextmanager
def at_home() -> Iterator[str]:
    """A home of its own, nothing set from outside, a width and a zone of time."""
    with tempfile.TemporaryDirectory() as home, patch.dict(os.environ, clear=True):
        os.environ.update(
            HOME=home, XDG_RUNTIME_DIR=home, COTENANT_CONFIG=f"{home}/cotenant.toml", COLUMNS=str(WIDTH),
            TZ="UTC", USER="ann", LOGNAME="ann", PATH="/usr/bin:/bin", LANG="C.UTF-8",
        )  # fmt: skip
        Path(home, "cotenant.toml").write_text("")
        time.tzset()
        with patch("time.time", lambda: BEGAN_S + 1500.0):
            yield home
    time.tzset()


@contextmanager
def cluster(home: str) -> Iterator[None]:
    """The twelve jobs answer whatever is asked; they live in the socket's thread, as a journal must."""
    made: list[TwelveJobs] = []

    def answer(body: Any) -> Any:
        if not made:
            made.append(TwelveJobs(Path(home, "state")))
        return made[0].answer(body)

    stand_in = StandIn(Path(home, "c.sock"))
    os.environ["COTENANT_CONTROLLER__ENDPOINT"] = stand_in.endpoint
    for kind in get_args(clients.AnyRequest):
        stand_in.says(kind, answer)
    try:
        yield
    finally:
        stand_in.close()
        for each in made:
            each.close()


def write() -> None:
    """Writes all files anew; those of verbs that are no more go."""
    FOLDER.mkdir(exist_ok=True)
    for stale in {path.stem for path in FOLDER.glob("*.txt")} - {*FILES}:
        (FOLDER / f"{stale}.txt").unlink()
    for name in FILES:
        (FOLDER / f"{name}.txt").write_text(transcript(name))


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.controller.cli.golden --write")
    write()
