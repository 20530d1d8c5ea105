"""Real DDP jobs under a policy, twice, and the simulator given the same arrivals and the measured times.

    python experiments/lazer/live_against_simulated.py [--jobs 24] [--seed 3] [--policy lazer]
                                                       [-p KEY=VALUE ...]

Two private clusters one after the other, about six minutes each on two cores. What was measured lies in
`--data`, run by run, and is written as jobs end; started again with the same options, runs that are complete
are not repeated (`--fresh` does), and with `--page-only` only simulation, page and picture are made anew.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[2] / name) for name in ("", "bench"))

import machine
import msgspec
import numpy
import torch

from cotenant.controller.cli.demo.cluster import ProcessStartFailed
from cotenant.controller.policies import registry
from cotenant.controller.policies.base import Parameters
from experiments.lazer import live_page
from experiments.shared import paths
from experiments.shared.live.errors import Told, compare, told_live, told_simulated
from experiments.shared.live.given import parameter, write
from experiments.shared.live.run import LiveRun, WentWrong, run_live
from experiments.shared.live.schedule import Arrival, Pace, draw

RUNS = 2
SCALED: dict[str, Parameters] = {
    "lazer": {"x_max_s": 8.0, "bootstrap": 4, "updates_min": 8, "refit_every": 2},
}
"""Stages that a few dozen jobs can go through."""


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be run: the same for every run."""

    seed: int
    load: float
    policy: str
    parameters: Parameters
    schedule: tuple[Arrival, ...]
    paces: dict[str, Pace] | None = None
    """Measured in the first run's warm-up; all runs' numbers of steps and `--expect` come from it."""


def main() -> int:
    options = parse()
    parameters = {
        **SCALED.get(options.policy, {}),
        **dict(parameter(options.policy, p) for p in options.parameters),
    }
    planned = Planned(
        seed=options.seed,
        load=options.load,
        policy=options.policy,
        parameters=parameters,
        schedule=tuple(draw(options.seed, options.jobs, options.load)),
    )
    try:
        runs = measured(options.data, planned, options.runs, fresh=options.fresh, page_only=options.page_only)
    except (WentWrong, ProcessStartFailed) as error:
        print(f"live_against_simulated: {error}; what was measured is in {options.data}", file=sys.stderr)
        return 1
    report(runs, options.data, options.page, options.picture)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=24)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--load", type=float, default=1.0, help="offered load aimed at")
    parser.add_argument("--policy", default="lazer", choices=sorted(registry.ours_available()))
    parser.add_argument("-p", dest="parameters", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--data", type=Path, default=paths.EXPERIMENTS / "lazer" / "live")
    parser.add_argument("--page", type=Path, default=paths.RESULTS / "live-lazer.md")
    parser.add_argument("--picture", type=Path, default=paths.PICTURES / "live-lazer.svg")
    parser.add_argument("--fresh", action="store_true", help="repeat complete runs as well")
    parser.add_argument("--page-only", action="store_true", help="run nothing: only what was measured before")
    options = parser.parse_args()
    if options.jobs < 2 or options.runs < 1 or options.load <= 0:
        parser.error("--jobs must be at least 2, --runs at least 1, --load positive")
    return options


# --- Measuring ---------------------------------------------------------------------------------------


def measured(data: Path, planned: Planned, count: int, *, fresh: bool, page_only: bool) -> list[LiveRun]:
    """Every run, from disk where it is complete there."""
    data.mkdir(parents=True, exist_ok=True)
    plan_path = data / "schedule.json"
    if plan_path.exists() and not fresh:
        before = msgspec.json.decode(plan_path.read_bytes(), type=Planned)
        if msgspec.structs.replace(before, paces=None) == planned or page_only:
            planned = before
        else:
            raise SystemExit(f"{data} holds runs of another schedule or policy: --fresh, or another --data")
    runs = []
    for number in range(1, count + 1):
        path = data / f"run-{number}.json"
        found = msgspec.json.decode(path.read_bytes(), type=LiveRun) if path.exists() and not fresh else None
        if page_only and (found is None or not found.rows):
            raise SystemExit(f"--page-only, and nothing was measured: {path}")
        if found is None or not (found.complete or page_only):
            found, paces = _run(number, planned, path)
            planned = msgspec.structs.replace(planned, paces=paces)
            write(plan_path, planned)
        runs.append(found)
    return runs


def _run(number: int, planned: Planned, path: Path) -> tuple[LiveRun, dict[str, Pace]]:
    began_s = time.monotonic()

    def say(text: str) -> None:
        print(f"run {number}, {time.monotonic() - began_s:4.0f} s  {text}", flush=True)

    return run_live(
        planned.schedule,
        planned.paces,
        planned.policy,
        planned.parameters,
        machine.facts(torch=str(torch.__version__), numpy=numpy.__version__),
        lambda run: write(path, run),
        say,
    )


# --- Comparing ---------------------------------------------------------------------------------------


def report(runs: Sequence[LiveRun], data: Path, page: Path, picture: Path) -> None:
    """Errors as JSON, page, picture, and a line per comparison on the screen."""
    live: list[list[Told]] = [told_live(run.rows) for run in runs]
    simulated = [told_simulated(run) for run in runs]
    floors = [compare(f"run {n} beside run 1", live[0], jobs) for n, jobs in enumerate(live[1:], 2)]
    foretold = [
        compare(f"simulated with run {n}'s times beside run {m}", jobs, told)
        for n, told in enumerate(simulated, 1)
        for m, jobs in enumerate(live, 1)
        if n != m
    ]
    foreseen = compare(
        "simulated from the warm-up alone beside run 1", live[0], told_simulated(runs[0], foreseen=True)
    )
    errors = [*foretold, foreseen, *floors]
    write(data / "errors.json", errors)
    live_page.draw(picture, live, simulated[0])
    words = [Path(sys.argv[0]).name, *(word for word in sys.argv[1:] if word != "--page-only")]
    text = live_page.page(
        runs,
        live,
        errors,
        floor=floors[0] if floors else None,
        foretold=foretold,
        foreseen=foreseen,
        picture=os.path.relpath(picture.resolve(), page.parent.resolve()),
        command=f"python experiments/lazer/{shlex.join(words)}",
    )
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")
    for e in errors:
        print(f"{e.what}: median {e.median:.1%}, P90 {e.p90:.1%} of {e.jobs} jobs")
    print(f"written: {page}, {picture}, {data / 'errors.json'}")


if __name__ == "__main__":
    sys.exit(main())
