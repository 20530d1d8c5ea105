"""Real jobs that may share two CPU slots, and what the simulator foresees of them from each kind alone.

    python experiments/foreseen/run.py [--queues 5 6 7] [--policies sjf ...] [--repeats 5] [--minutes 1000]
                                       [--measure] [--page-only]

Each kind is measured alone: by the product's profiler, and as one run to its end that is preempted once.
Then each queue (a seed of `experiments/shared/live/schedule.py`) runs under each policy, some five minutes
each, in a cluster of its own with the settings that a user has. Runs lie in `data/`: what is there is not
run again. Writes experiments/results/foreseen.md. The machine must be idle otherwise.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple

sys.path.extend(str(Path(__file__).resolve().parents[2] / name) for name in ("", "bench"))

import machine
import msgspec

from cotenant.controller.cli.demo.cluster import ProcessStartFailed
from cotenant.controller.cli.demo.measuring import NotMeasured
from experiments.castor.live_sharing import jobs
from experiments.castor.live_sharing.run import CastorRun, children_first, go_first, run_live
from experiments.foreseen import page
from experiments.shared import kept_runs, paths
from experiments.shared.live.given import write
from experiments.shared.live.run import WentWrong
from experiments.shared.live.schedule import Pace, draw

DATA: Final = Path(__file__).with_name("data")
MEASURED: Final = "measured-*.json"
QUEUES: Final = (5, 6, 7)
POLICIES: Final = ("sjf", "srtf", "castor", "castor-cost", "cotenant")
JOBS: Final = 26
LOAD: Final = 1.5
"""Offered load aimed at, loading not counted."""
SETTINGS: Final = {"COTENANT_LAUNCH__WARM": "false"}
"""Each of these jobs has an environment of its own, its length is in it: for each a process would import what
it needs, on the cores on which the jobs train, and nothing would ever be forked from it."""
Say = Callable[[str], None]


class Cell(NamedTuple):
    """One live run."""

    queue: int
    policy: str
    repeat: int

    @property
    def file(self) -> Path:
        return DATA / f"{self.queue}-{self.policy}-{self.repeat}.json"


def measure(say: Say) -> None:
    """Measures each kind alone, once more."""
    with children_first():
        found = jobs.measure(list(jobs.KINDS), say, to_end=True)
    write(DATA / f"measured-{len(list(DATA.glob(MEASURED))) + 1}.json", found)


def measured() -> dict[str, jobs.Measured]:
    """Each kind alone, the means of all times that it was measured; empty if it never was."""
    found = [
        msgspec.json.decode(path.read_bytes(), type=dict[str, jobs.Measured])
        for path in sorted(DATA.glob(MEASURED))
    ]
    return {kind: mean_of([each[kind] for each in found]) for kind in (found[0] if found else ())}


def mean_of(several: Sequence[jobs.Measured]) -> jobs.Measured:
    """The first, with the mean pace of all."""
    paces = [each.pace for each in several]
    mean = Pace(**{name: fmean(getattr(pace, name) for pace in paces) for name in Pace.__struct_fields__})
    return msgspec.structs.replace(several[0], whole=mean)


def load(cell: Cell) -> CastorRun | None:
    if not cell.file.exists():
        return None
    found = msgspec.json.decode(cell.file.read_bytes(), type=CastorRun)
    return found if found.complete else None


def run(cell: Cell, kinds: dict[str, jobs.Measured], say: Say) -> None:
    """Runs a queue under a policy; what a page needs of it is kept when it is complete."""

    def keep(found: CastorRun) -> None:
        if found.complete:
            kept_runs.keep(msgspec.structs.replace(found, timeline=None, marks={}), cell.file)

    say(f"queue {cell.queue} under {cell.policy}, run {cell.repeat + 1}")
    schedule = draw(cell.queue, JOBS, LOAD, jobs.KINDS)
    run_live(schedule, kinds, cell.policy, {}, machine.facts(), keep, say)


def cells(queues: Sequence[int], policies: Sequence[str], repeats: int) -> list[Cell]:
    """Every queue and policy once before any is run again."""
    return [Cell(queue, name, n) for n, queue, name in product(range(repeats), queues, policies)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--queues", type=int, nargs="+", default=list(QUEUES), help="seeds")
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=1000.0, help="begin no run after so long")
    parser.add_argument("--measure", action="store_true", help="measure each kind alone once more, first")
    parser.add_argument("--page-only", action="store_true", help="run nothing: only what was measured before")
    asked = parser.parse_args()
    DATA.mkdir(exist_ok=True)
    os.environ.update(SETTINGS)
    go_first(os.getpid())
    began_s = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began_s:5.0f} s  {text}", flush=True)

    try:
        if asked.measure or not (asked.page_only or measured()):
            measure(say)
        kinds = measured()
        for cell in cells(asked.queues, asked.policies, 0 if asked.page_only else asked.repeats):
            if load(cell) is None and time.monotonic() - began_s < asked.minutes * 60.0:
                run(cell, kinds, say)
    except (WentWrong, ProcessStartFailed, NotMeasured) as error:
        print(f"foreseen: {error}; what was measured is in {DATA}", file=sys.stderr)
        return 1
    runs = {
        (cell.queue, cell.policy, cell.repeat): found
        for path in sorted(DATA.glob("[0-9]*-*-*.json"))
        if (found := load(cell := cell_of(path))) is not None
    }
    if not kinds or not runs:
        print("foreseen: no run is complete yet", file=sys.stderr)
        return 1
    print(page.write(runs, kinds))
    return 0


def cell_of(path: Path) -> Cell:
    queue, _, rest = path.stem.partition("-")
    policy, _, repeat = rest.rpartition("-")
    return Cell(int(queue), policy, int(repeat))


if __name__ == "__main__":
    os.chdir(paths.ROOT)
    sys.exit(main())
