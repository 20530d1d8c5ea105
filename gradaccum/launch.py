"""`python -m cotenant.gradaccum.launch [--steps N] script.py args...`: a script with the zero-code hook.

Rule: the script is started by the interpreter itself, in place of this process and with the user's own
arguments, so that `sys.argv`, `__main__`, tracebacks, exit codes and signals are those of `python script.py`.
All that differs is the environment. A job of cotenant needs no launcher: its agent sets
the same variables.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from cotenant.checkpoint.talk.protocol import ENV_ACCUMULATION_SCHEDULE, ENV_ACCUMULATION_STEPS, ENV_ZERO_CODE
from cotenant.gradaccum.schedule import Schedule

STARTUP = Path(__file__).resolve().parent / "startup"


def environment(env: Mapping[str, str], words: str, schedule: str = "") -> dict[str, str]:
    """`env` with the hook in it. words: which parts are wanted; schedule: s by steps, empty for as it is."""
    path = [str(STARTUP), *(entry for entry in [env.get("PYTHONPATH", "")] if entry)]
    added = {"PYTHONPATH": os.pathsep.join(path), ENV_ZERO_CODE: words}
    if schedule:
        added[ENV_ACCUMULATION_SCHEDULE] = schedule
    return {**env, **added}


def command(words: Sequence[str]) -> list[str]:
    """The command of this interpreter, with its own flags, running what the user named."""
    flags = ["-O"] * sys.flags.optimize + ["-B"] * sys.flags.dont_write_bytecode
    return [sys.executable, *flags, *(f"-W{option}" for option in sys.warnoptions), *words]


def _schedule(text: str) -> str:
    try:
        parsed = Schedule.parse(text if ":" in text else f"0:{text}")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return ",".join(f"{start}:{s}" for start, s in parsed.entries)


def main(argv: Sequence[str]) -> NoReturn:
    """Does not return if the script can be started."""
    parser = argparse.ArgumentParser(
        prog="python -m cotenant.gradaccum.launch",
        description="Run a training script with its batches split into micro-batches, where that is exact.",
        epilog="Give -m MODULE instead of a script to run a module.",
    )
    parser.add_argument(
        "--steps",
        type=_schedule,
        default=None,
        metavar="S",
        help=f"micro-batches per step, or 0:2,120:1 "
        f"(default: {ENV_ACCUMULATION_SCHEDULE} or {ENV_ACCUMULATION_STEPS}, else 1)",
    )
    parser.add_argument(
        "--mean",
        action="store_true",
        help="the loss is a mean over rows: frameworks' own knobs may be turned",
    )
    parser.add_argument("script", nargs=argparse.REMAINDER, help="script and its arguments")
    options = parser.parse_args(argv)
    if not options.script:
        parser.error("no script was given")
    words = "accumulate,mean" if options.mean else "accumulate"
    sys.stdout.flush()
    started = command(options.script)
    os.execve(started[0], started, environment(os.environ, words, options.steps or ""))


if __name__ == "__main__":
    main(sys.argv[1:])
