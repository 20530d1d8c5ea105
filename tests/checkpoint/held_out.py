"""`python -m tests.checkpoint.held_out`: loops that nobody has tuned on, preempted three times and resumed.

Rule: a script is drawn from a seed (a form of loop, a model, data, an optimizer, up to five traits of
`states.txt` and of `tests/unchanged/traits.txt`), and so are the steps after which it is to stop. Its
weights, its files and the lines that it prints after its loop are those of the run that nobody stopped, or it
is refused. The exit code is 0 only if none is different and none has failed.
"""

from __future__ import annotations

import argparse
import os
import pickle
import random
import re
import runpy
import sys
import tempfile
import threading
import types
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from tests.checkpoint.habits import (
    MODULES,
    SAVED,
    SEED_OF_JOB,
    Kind,
    Outcome,
    StoppedScript,
    first_difference,
)
from tests.checkpoint.ranks import Warm
from tests.unchanged.loops import generate
from tests.unchanged.traits import FILE, MARKS, TRAINED, Trait, read_traits

WATCHERS: Final = (
    "stack_seen_",
    "rows_freed_",
    "forked_beside",
    "alarm",
    "everything_counted",
    "tensors_alive_",
    "objects_alive_",
    "references_",
    "memory_given_",
    "loader_watched_",
    "batches_watched_",
    "copied_and_pickled",
    "warning_filters_",
    "warnings_recorded",
    "errors_when_freed",
)
"""Begin the names of traits that keep what no two processes have alike: who calls, what is alive, which
strings are one object, which warnings were given, the number of a process, in which line a timer rings, each
operation of torch."""
MACHINE: Final = Path(__file__).resolve().parents[2] / "bench" / "machine.py"
STATES: Final = Path(__file__).with_name("states.txt")
TRAITS: Final[Sequence[Trait]] = [
    *read_traits(STATES.read_text()),
    *(
        each
        for each in read_traits(FILE.read_text())
        if MARKS[0] not in each.code and not each.name.startswith(WATCHERS)
    ),
]
AT_ONCE: Final = 2 * min(2, len(os.sched_getaffinity(0)))
AGAIN: Final = 6
"""Runs that nobody stops, where one that was stopped differs."""
STEPS_MIN: Final = 5
"""With fewer there is no room for three stops."""
FINE: Final = (Kind.EXACT, Kind.REFUSED, Kind.UNHEARD)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What became of one script."""

    number: int
    text: str
    outcome: Outcome | None
    """None: it is not to be judged."""
    why_not: str = ""

    @property
    def is_fine(self) -> bool:
        return self.outcome is None or self.outcome.kind in FINE


class HeldOut(StoppedScript):
    """One generated script: what it has left is compared, its files and its last lines too."""

    def difference(self, last: int) -> str:
        return self._difference_between("whole", "job", "logs-whole", f"logs-{last}")

    def difference_by_itself(self) -> str:
        """What differs between runs that nobody stops: where objects lie in memory may decide."""
        for number in range(AGAIN):
            again, log = f"again-{number}", f"logs-again-{number}"
            self._start(again, log, seed=SEED_OF_JOB, env={}).wait()
            found = self._difference_between("whole", again, "logs-whole", log)
            if found:
                return found
        return ""

    def _difference_between(self, one: str, other: str, log: str, other_log: str) -> str:
        left, right = (_left_in(self._folder / cwd) for cwd in (one, other))
        if left.keys() != right.keys():
            return f"files: {sorted(left.keys() ^ right.keys())} in one alone"
        for name in sorted(left, key=lambda each: each != SAVED):
            found = first_difference(left[name], right[name])
            if found:
                return f"{name}: {found}"
        printed, again = (_printed_last(self._folder / each / "rank-0.log") for each in (log, other_log))
        return first_difference(printed, again, "printed")


def _left_in(folder: Path) -> dict[str, Any]:
    """The files of a folder, each as what it holds."""
    found: dict[str, Any] = {}
    for path in sorted(
        each for each in folder.rglob("*") if each.is_file() and "__pycache__" not in each.parts
    ):
        name = str(path.relative_to(folder))
        is_saved = path.suffix == ".pt"
        found[name] = (
            torch.load(path, weights_only=False, pickle_module=OF_SCRIPTS) if is_saved else path.read_bytes()
        )
    return found


class _OfScripts(pickle.Unpickler):
    """Reads tensors of the script's classes as plain ones."""

    def find_class(self, module: str, name: str) -> Any:
        return torch.Tensor if module == "__main__" else super().find_class(module, name)


OF_SCRIPTS: Final = types.SimpleNamespace(Unpickler=_OfScripts, load=pickle.load, __name__="pickle")


def _printed_last(log: Path) -> list[str]:
    """What was printed after the loop."""
    lines = [
        line for line in log.read_text(errors="replace").splitlines() if not line.startswith('{"result"')
    ]
    at = next((number for number, line in enumerate(lines) if line.startswith(TRAINED)), len(lines))
    return lines[at:]


class Judges:
    """Each thread has a process of its own that it forks from."""

    def __init__(self) -> None:
        self._own = threading.local()
        self._lock = threading.Lock()
        self._open = ExitStack()

    def judge(self, seed: int, number: int) -> Judged:
        warm: Warm | None = getattr(self._own, "warm", None)
        if warm is None:
            with self._lock:
                warm = self._own.warm = Warm(MODULES)
                self._open.callback(warm.close)
        with tempfile.TemporaryDirectory(prefix="o") as name:
            return judge(warm, Path(name), seed, number)

    def close(self) -> None:
        self._open.close()


def judge(warm: Warm, folder: Path, seed: int, number: int) -> Judged:
    """What becomes of the script of that number, in an empty folder."""
    text = generate(seed, number, TRAITS)
    (folder / "train.py").write_text(text)
    draw = random.Random(f"stops of {seed}/{number}")
    script = HeldOut(warm, folder, folder / "train.py", draw)
    try:
        outcome = script.outcome()
        if script.steps < STEPS_MIN:
            return Judged(
                number=number, text=text, outcome=None, why_not=f"makes fewer than {STEPS_MIN} steps"
            )
        if outcome.kind is Kind.DIFFERENT and script.difference_by_itself():
            return Judged(number=number, text=text, outcome=None, why_not="is not alike twice by itself")
    except AssertionError as error:
        if "ranks ended with" in str(error):
            return Judged(number=number, text=text, outcome=None, why_not="fails by itself")
        outcome = Outcome(kind=Kind.NOT_STOPPED, said=str(error)[-300:])
    return Judged(number=number, text=text, outcome=outcome)


def run(seed: int, numbers: Sequence[int]) -> Iterator[Judged]:
    """What became of each, as they end."""
    judges = Judges()
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        waiting = [pool.submit(judges.judge, seed, number) for number in numbers]
        for future in as_completed(waiting):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)
        judges.close()


ABOUT: Final = """\
Each script is put together by its number and the seed: a form of loop, a model, a loss, an optimizer, a
schedule, data, a loader, and up to five of some 300 traits (where scripts keep state, what they do to torch
and to the process). It runs once by itself, and once as a job that is asked to stop after three steps that
the seed draws; its weights, its files and the lines after its loop must be the same. Nobody has tuned
anything on this seed.
"""
NAMES: Final = re.compile(r"`[^`]*`")
PATHS: Final = re.compile(r"/[^\s()]+")
NUMBERS: Final = re.compile(r"\b\d+\b")


def reason_of(said: str) -> str:
    """A refusal without the names and lines of its script, so that those alike can be counted."""
    text = NAMES.sub("`...`", said.partition(": ")[2] or said)
    return NUMBERS.sub("N", PATHS.sub("...", text))


def page(ended: Sequence[Judged], seed: int) -> Iterator[str]:
    """What was found, as Markdown."""
    outcomes = [each.outcome for each in ended if each.outcome is not None]
    counts = Counter(each.kind for each in outcomes)
    proven = sum(each.kind is Kind.EXACT and all(each.proven) for each in outcomes)
    yield f"{len(outcomes)} scripts of seed {seed}, three stops each.\n"
    yield "| outcome | scripts |\n| --- | ---: |"
    yield f"| bit for bit, every resume proven | {proven} |"
    yield f"| bit for bit, a resume not proven | {counts[Kind.EXACT] - proven} |"
    for kind in Kind:
        if kind is not Kind.EXACT and (counts[kind] or kind in (Kind.DIFFERENT, Kind.LOST)):
            yield f"| {kind.value} | {counts[kind]} |"
    for why, count in Counter(each.why_not for each in ended if each.outcome is None).items():
        yield f"\n{count} more are not judged: each {why}."
    reasons = Counter(reason_of(each.said) for each in outcomes if each.kind is Kind.REFUSED)
    if reasons:
        yield "\n| why refused | scripts |\n| --- | ---: |"
        yield from (f"| {reason} | {count} |" for reason, count in reasons.most_common())


def keep(ended: Sequence[Judged]) -> None:
    """Writes the scripts that are not fine, for looking at."""
    bad = [each for each in ended if not each.is_fine]
    if not bad:
        return
    folder = Path(tempfile.mkdtemp(prefix="held-out-"))
    for each in bad:
        (folder / f"s{each.number}.py").write_text(each.text)
    print(f"what was generated of these is in {folder}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.checkpoint.held_out", description=__doc__)
    parser.add_argument("--scripts", type=int, default=100, metavar="N", help="how many")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the number of the first")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, metavar="FILE", help="a page with what was found")
    options = parser.parse_args(argv)
    sentences = runpy.run_path(str(MACHINE))["sentences"]  # It knows the commit that this begins with.
    numbers = range(options.first, options.first + options.scripts)
    print(f"{len(numbers)} scripts, seed {options.seed}", flush=True)
    ended: list[Judged] = []
    for each in run(options.seed, numbers):
        ended.append(each)
        if not each.is_fine and each.outcome is not None:
            told = f"{each.outcome.kind.value}, stopped after {each.outcome.stops}: {each.outcome.said}"
            print(f"{each.number}: {told}", flush=True)
        if sys.stderr.isatty():
            print(f"\r\033[K{len(ended)} of {len(numbers)}", end="", file=sys.stderr, flush=True)
    keep(ended)
    found = "\n".join(page(ended, options.seed))
    print(found)
    if options.write:
        command = f"`python -m tests.checkpoint.held_out --scripts {len(numbers)} --seed {options.seed}`"
        about = sentences(torch=torch.__version__)
        options.write.write_text(
            f"# Held-out loops, preempted and resumed\n\n{ABOUT}\n{found}\n\nCommand: {command}\n{about}\n"
        )
    return int(any(not each.is_fine for each in ended))


if __name__ == "__main__":
    sys.exit(main())
