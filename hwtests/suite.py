"""The hardware suite in slices of eight minutes at most, in the order of what they decide.

    python -m hwtests.suite [--slice N|NAME,...] [--out hwtests/report] [--device cuda|cpu] [--rehearse]
                            [--minutes 8] [--seconds 3] [--list] [WORD ...]

Without `--slice` all run, each going on from where it was cut off. Each test is kept as it ends, each slice
writes `FOLDER/page.md`. Words that are not known here go to pytest: `--allow-faults`.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from hwtests import host, pairs, summary
from hwtests.command import run_command
from hwtests.rows import OUTCOMES, Row, read
from hwtests.slices import Outcome, Run, Slice, Unit, Values, find_no_obstacle

TESTS: Final = "tests"
STOP_WITHIN_S: Final = 40.0
"""The suite ends its daemons and jobs before it leaves."""
RAN: Final = (0, 1, 5)
"""Exit codes of a pytest that ran its tests: all passed, some failed, none was left."""
FAULTS_WORD: Final = "--allow-faults"


def run_tests(run: Run, name: str, files: Sequence[str], chosen: str) -> Values:
    """The tests of one slice that have not ended yet, in one pytest: what they set up is paid for once."""
    kept, log = run.folder / TESTS / f"{name}.jsonl", run.folder / TESTS / f"{name}.log"
    kept.parent.mkdir(exist_ok=True)
    words = ["-q", "-p", "no:cacheprovider", "--device", run.device.kind]
    words += [f"--keep={kept}", f"--seconds={run.seconds}", *run.words, *(("-k", chosen) if chosen else ())]
    tests = [f"hwtests/test_{file}.py" for file in files]
    code = run_to_its_end([sys.executable, "-m", "pytest", *words, *tests], log)
    if code not in RAN:
        raise ValueError(f"pytest ended with {code}: see {log}")
    return count_rows(read(kept))


def run_to_its_end(command: Sequence[str], log: Path) -> int:
    """The exit code; whatever goes wrong here, the suite is asked to end and, if it must be, killed."""
    with log.open("wb") as said:
        process = subprocess.Popen(command, cwd=host.ROOT, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        try:
            return process.wait()
        except BaseException:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            raise


def count_rows(rows: Sequence[Row]) -> Values:
    counts = Counter(row.outcome for row in rows)
    return {
        **{outcome: counts[outcome] for outcome in OUTCOMES},
        "failures": {row.test: row.reason for row in rows if row.outcome == "failed"},
        "skips": {row.test: row.reason for row in rows if row.outcome == "skipped"},
        "measured": {name: text for row in rows for name, text in row.measured.items()},
    }


def slice_of(
    name: str,
    question: str,
    *files: str,
    rehearsed: str | None = "",
    find_obstacle: Callable[[Run], str] = find_no_obstacle,
) -> Slice:
    """A slice of test files. `rehearsed`: pytest's `-k` in a rehearsal; None: it is left out there."""

    def list_units(run: Run) -> Mapping[str, Unit]:
        return {
            "tests": partial(run_tests, run, name, files, rehearsed if run.rehearse and rehearsed else "")
        }

    def obstacle(run: Run) -> str:
        return "a rehearsal leaves it out" if run.rehearse and rehearsed is None else find_obstacle(run)

    return Slice(name, question, list_units, obstacle)


def needs_gpu(run: Run) -> str:
    return "" if run.is_on_gpu else "its tests need a CUDA device"


def needs_two_gpus(run: Run) -> str:
    return host.lacks_two_gpus() if run.is_on_gpu else ""


def needs_leave(run: Run) -> str:
    return "" if FAULTS_WORD in run.words else f"it crashes the GPU's clients on purpose: add {FAULTS_WORD}"


SLICES: Final = (
    slice_of("mps", "Do processes become clients, do caps bite, is one taken off without harm to the other?",
             "mps", "mps_limits", find_obstacle=needs_gpu),
    slice_of("resume", "Does a preempted job go on to the same bits?", "resume", rehearsed="loss and fp32"),
    *pairs.SLICES,
    slice_of("warm-start", "Does a forked rank open the GPU and train to the same bits?", "warm_start"),
    slice_of("numbers", "Are sums of parts exact, and counters right under known loads?",
             "accumulation", "indicators", rehearsed="fp64"),
    slice_of("processes", "Who is seen on the GPU, who is held to its memory, what can be suspended?",
             "foreign", "torch_limits", "newer_limits", "mig", "cuda_checkpoint",
             find_obstacle=needs_gpu),
    slice_of("gangs", "What does an all-reduce cost without MPS, with one daemon, with one per GPU?", "gangs",
             rehearsed=None, find_obstacle=needs_two_gpus),
    slice_of("faults", "Whom does a fatal fault hit, and when does the GPU take work again?", "faults",
             rehearsed=None, find_obstacle=needs_leave),
)  # fmt: skip
"""Last the one that may leave a GPU that needs a reset."""


def read_rows(folder: Path) -> list[Row]:
    """Of all slices, also of those that were cut off."""
    return [row for path in sorted((folder / TESTS).glob("*.jsonl")) for row in read(path)]


def write_pages(run: Run, machine: Mapping[str, str], found: Mapping[str, Outcome]) -> None:
    text = summary.write_page(read_rows(run.folder), machine, summary.suite_parts())
    text += "\n".join(["", *pairs.write_section(found)])
    pairs.write_tables(run)
    (run.folder / "page.md").write_text(text, encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(__doc__ or "", "hwtests", SLICES, write_pages, Path("hwtests/report"), argv=argv)


if __name__ == "__main__":
    sys.exit(main())
