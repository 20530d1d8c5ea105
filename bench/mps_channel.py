"""Questions to an MPS control daemon: how many are answered, and how long that takes.

    python bench/mps_channel.py [--questions 400] [--write experiments/results/bench-mps-channel.md]

From 1 to 8 processes ask NVIDIA's own daemon at a time, through the channel (in turns, with a sentinel) and
without it (one front end each, as one would by hand). Needs `nvidia-cuda-mps-control` and no GPU: no MPS
server is started. An answer counts when it is whole and right.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath

import machine

from cotenant.mps.answers import Incomplete, Rejected, answer_before_sentinel, percentage, query
from cotenant.mps.channel import ChannelError, ControlChannel
from cotenant.mps.environment import PIPE_DIRECTORY
from cotenant.mps.ownership import LOG_DIRECTORY
from cotenant.mps.process import CONTROL

ASKERS = (1, 2, 4, 8)
QUESTION = "get_default_active_thread_percentage"
SENTINEL = "end-of-answer-bench"
Ask = Callable[[int], tuple[bool, float]]
"""Whether the answer was right, and the seconds it took."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=400, help="for each row")
    parser.add_argument("--write", type=Path, default=None, help="a page for experiments/results")
    parser.add_argument("--note", default="", help="a line about the circumstances, for the page")
    options = parser.parse_args()
    program = shutil.which(CONTROL)
    if program is None:
        print(f"skipped: {CONTROL} is not on PATH")
        return
    with tempfile.TemporaryDirectory(prefix="mps-") as name:
        pipe = Path(name) / "pipe"
        pipe.mkdir()
        environment = {**os.environ, PIPE_DIRECTORY: str(pipe), LOG_DIRECTORY: name}
        subprocess.run((program, "-d"), env=environment, check=True)
        channel = ControlChannel(pipe_directory=PurePosixPath(pipe), program=program)
        try:
            rows = [
                row(kind, ask, askers, options.questions)
                for askers in ASKERS
                for kind, ask in (
                    ("channel", partial(through, channel)),
                    ("front ends", partial(beside, program, environment)),
                )
            ]
        finally:
            channel.quit(1)
    page = report(rows, options)
    print(page)
    if options.write:
        options.write.write_text(page)


def through(channel: ControlChannel, _: int) -> tuple[bool, float]:
    began_s = time.monotonic()
    try:
        right = percentage(channel.ask(QUESTION)) == 100.0
    except (ChannelError, Incomplete, Rejected):
        right = False
    return right, time.monotonic() - began_s


def beside(program: str, environment: dict[str, str], _: int) -> tuple[bool, float]:
    began_s = time.monotonic()
    text = query(QUESTION, SENTINEL)
    done = subprocess.run(
        (program,), input=text, env=environment, capture_output=True, text=True, check=False
    )
    try:
        right = percentage(answer_before_sentinel(done.stdout, SENTINEL)) == 100.0
    except (Incomplete, Rejected):
        right = False
    return right, time.monotonic() - began_s


def row(kind: str, ask: Ask, askers: int, questions: int) -> tuple[str, ...]:
    with multiprocessing.Pool(askers) as pool:
        answers = pool.map(ask, range(questions), 1)
    took_ms = [1000 * seconds for _, seconds in answers]
    right = sum(is_right for is_right, _ in answers)
    return (
        kind,
        str(askers),
        f"{right} of {questions}",
        f"{statistics.median(took_ms):.1f}",
        f"{max(took_ms):.0f}",
    )


def report(rows: list[tuple[str, ...]], options: argparse.Namespace) -> str:
    lines = [
        "# Questions to an MPS control daemon",
        "",
        (
            f"With {rows[-1][1]} processes at a time, the agent's channel to the daemon answers "
            f"{rows[-2][2]} questions, and control programs started side by side answer {rows[-1][2]}."
        ),
        "",
        "| asked by | processes at a time | answered | median ms | longest ms |",
        "| --- | --- | --- | --- | --- |",
        *(f"| {' | '.join(each)} |" for each in rows),
        "",
        "Times of the channel include waiting for a turn; times of front ends, which are control programs",
        "started side by side, include lost answers.",
        "",
        f"Command: `python bench/mps_channel.py --questions {options.questions}`",
        machine.sentences(),
        *([options.note] if options.note else []),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
