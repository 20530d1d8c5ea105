"""`python -m tests.unchanged`: runs every script that we have by itself and as a job; prints what differs.

Rule: with default settings, a job that nobody asks for anything ends as `python script.py` does: the same
parameters, files, output, exit code and random draws. The exit code is 0 only if nothing differs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from tests.unchanged import live
from tests.unchanged.collection import Script, chosen_for_quick, loops, scripts
from tests.unchanged.runs import Runner, one_runner
from tests.unchanged.verdicts import Kind, Verdict, judge

AT_ONCE: Final = 2 * min(2, len(os.sched_getaffinity(0)))
"""Jobs mostly wait: for a profile, as short as it is."""
TRAITS_QUICK: Final = 150
QUICK: Final = 40
"""Scripts in the quick version, beside the traits and the generated ones."""
FINE: Final = (Kind.SAME, Kind.KNOWN, Kind.SKIPPED)
LOOPS: Final = 300
LOOPS_QUICK: Final = 25


class Judges:
    """Each thread has a runner of its own."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._own = threading.local()
        self._lock = threading.Lock()
        self._open = ExitStack()

    def judge(self, script: Script) -> Verdict:
        runner: Runner | None = getattr(self._own, "runner", None)
        if runner is None:
            with self._lock:
                runner = self._own.runner = self._open.enter_context(one_runner())
        return judge(runner, script, **self._settings)

    def close(self) -> None:
        self._open.close()


def run(chosen: Sequence[Script], at_once: int, settings: Mapping[str, Any]) -> Iterator[Verdict]:
    """What became of each, as they end. `settings` are those of all jobs."""
    judges = Judges(settings)
    pool = ThreadPoolExecutor(at_once)
    try:
        waiting: list[Future[Verdict]] = [pool.submit(judges.judge, each) for each in chosen]
        for future in as_completed(waiting):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)
        judges.close()


def show(verdicts: Iterator[Verdict], total: int) -> list[Verdict]:
    """Prints what differs as it is found."""
    ended: list[Verdict] = []
    terminal = sys.stderr.isatty()
    for verdict in verdicts:
        ended.append(verdict)
        if terminal:
            print(
                f"\r\033[K{len(ended)} of {total}: {verdict.script.name}", end="", file=sys.stderr, flush=True
            )
        if verdict.kind not in FINE:
            print("\r\033[K" * terminal + verdict.line(), flush=True)
    if terminal:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    return ended


def keep(ended: Sequence[Verdict]) -> None:
    """Writes the generated scripts that differ, for looking at."""
    chosen = [
        each.script for each in ended if each.script.text and each.kind not in (Kind.SAME, Kind.SKIPPED)
    ]
    if not chosen:
        return
    folder = Path(tempfile.mkdtemp(prefix="unchanged-"))
    for script in chosen:
        (folder / f"{script.name.replace('/', '-')}.py").write_text(script.text)
    print(f"what was generated of these is in {folder}")


def summary(ended: Sequence[Verdict]) -> Iterator[str]:
    counts = Counter(each.kind for each in ended)
    for reason, number in Counter(each.said for each in ended if each.kind is Kind.SKIPPED).items():
        yield f"skipped {number}: {reason}"
    for each in ended:
        if each.kind is Kind.KNOWN:
            yield f"{each.script.name} differs as is known: {each.script.known}"
    paths = Counter(path for each in ended for path in each.traces)
    for path, number in paths.most_common(5):
        yield f"trace of ours in {number} scripts: {path}"
    ran = len(ended) - counts[Kind.SKIPPED]
    others = "".join(f", {counts[kind]} {text}" for kind, text in OTHERS.items() if counts[kind])
    yield f"{ran} scripts, {counts[Kind.DIFFERS]} differ{others}"


OTHERS: Final = {Kind.UNLIKE: "are not alike twice by themselves", Kind.BROKEN: "fail by themselves"}


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.unchanged", description=__doc__)
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="scripts with this in their names"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the generated loops and of what is drawn for --quick"
    )
    parser.add_argument("--loops", type=int, help="generated loops: 300; 25 with --quick, 2 with --live")
    parser.add_argument("--quick", action="store_true", help="the version of two minutes")
    parser.add_argument(
        "--known", action="store_true", help="jobs of a known kind: none is profiled in place"
    )
    parser.add_argument("--live", action="store_true", help="some scripts, as jobs of a real cluster")
    parser.add_argument("--list", action="store_true", help="print the names and leave")
    return parser.parse_args(argv)


def choose(options: argparse.Namespace) -> list[Script]:
    chosen = list(scripts())
    count = LOOPS
    if options.live:
        chosen, count = [each for each in chosen if each.name in live.CHOSEN], live.LOOPS
    elif options.quick:
        chosen, count = chosen_for_quick(chosen, options.seed, traits=TRAITS_QUICK, others=QUICK), LOOPS_QUICK
    chosen += loops(options.seed, count if options.loops is None else options.loops)
    return [each for each in chosen if any(word in each.name for word in options.only or ("",))]


def begin(chosen: Sequence[Script], options: argparse.Namespace) -> Iterator[Verdict]:
    if not options.live:
        yield from run(chosen, AT_ONCE, {"profile_s": 0.0} if options.known else {})
        return
    with one_runner() as runner:
        yield from live.verdicts(chosen, runner)


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    chosen = choose(options)
    if options.list:
        print("\n".join(each.name for each in chosen))
        return 0
    print(f"{len(chosen)} scripts, seed {options.seed}", flush=True)
    total = len(chosen) * (live.RUNS if options.live else 1)
    ended = show(begin(chosen, options), total)
    keep(ended)
    print("\n".join(summary(ended)))
    return int(any(each.kind not in FINE for each in ended))


if __name__ == "__main__":
    sys.exit(main())
