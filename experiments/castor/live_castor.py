"""Real DDP jobs that may share two CPU slots: the same arrivals under one policy after the other.

    python experiments/castor/live_castor.py [--jobs 26] [--seed 5] [--load 1.5] [--minutes 35]
                                             [--policies fifo ...]

First each kind of job is measured alone by the product's profiler, then each policy runs the schedule in a
private cluster of its own, about five minutes each. What was measured lies in `--data`, run by run; started
again with the same options, runs that are complete are not repeated (`--fresh` does all again), and with
`--page-only` only simulation, page and pictures are made anew. The machine must be idle otherwise.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[2] / name) for name in ("", "bench"))

import machine
import msgspec
import numpy
import torch

from cotenant.controller.cli.demo.cluster import ProcessStartFailed
from cotenant.controller.cli.demo.measuring import NotMeasured
from cotenant.controller.policies.base import Parameters
from experiments.castor.live_sharing import jobs, page
from experiments.castor.live_sharing.run import CastorRun, children_first, go_first, run_live
from experiments.shared import paths
from experiments.shared.live.given import parameter, write
from experiments.shared.live.run import WentWrong
from experiments.shared.live.schedule import draw

POLICIES = (
    "fifo",
    "sjf-ffs:part=false",
    "castor:part=false",
    "sjf",
    "castor:part=false",
)
"""`part=false`: as published, without our parting of pairs that lose. A second time: the noise."""


def main() -> int:
    options = parse()
    options.data.mkdir(parents=True, exist_ok=True)
    go_first(os.getpid())
    os.environ["COTENANT_SHARING__MAX"] = "0"  # The published policies bound nothing.
    began_s = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began_s:5.0f} s  {text}", flush=True)

    try:
        planned = plan(options, say)
        runs = [
            run
            for number, label in enumerate(options.policies, 1)
            if (run := one(number, label, planned, options, began_s, say)) is not None
        ]
    except (WentWrong, ProcessStartFailed, NotMeasured) as error:
        print(f"live_castor: {error}; what was measured is in {options.data}", file=sys.stderr)
        return 1
    if not runs:
        print("live_castor: no run is complete yet", file=sys.stderr)
        return 1
    written = page.write(runs, planned, options.page, options.pictures)
    print("written:", *written, sep="\n  ")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=26)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--load", type=float, default=1.5, help="offered load aimed at, loading not counted")
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), metavar="NAME[:KEY=VALUE,...]")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no run after so long")
    parser.add_argument("--data", type=Path, default=paths.EXPERIMENTS / "castor" / "live_sharing")
    parser.add_argument("--page", type=Path, default=paths.RESULTS / "live-castor.md")
    parser.add_argument("--pictures", type=Path, default=paths.PICTURES)
    parser.add_argument("--fresh", action="store_true", help="repeat what is complete as well")
    parser.add_argument("--page-only", action="store_true", help="run nothing: only what was measured before")
    options = parser.parse_args()
    if options.jobs < 2 or options.load <= 0:
        parser.error("--jobs must be at least 2, --load positive")
    return options


def plan(options: argparse.Namespace, say: Callable[[str], None]) -> jobs.Planned:
    """The schedule from the seed, and each kind measured; from disk where they are there."""
    path = options.data / "plan.json"
    schedule = tuple(draw(options.seed, options.jobs, options.load, jobs.KINDS))
    if path.exists() and not options.fresh:
        before = msgspec.json.decode(path.read_bytes(), type=jobs.Planned)
        if before.schedule != schedule and not options.page_only:
            raise SystemExit(f"{options.data} holds runs of another schedule: --fresh, or another --data")
        return before
    if options.page_only:
        raise SystemExit(f"--page-only, and nothing was measured: {path}")
    say(f"seed {options.seed}, {len(schedule)} jobs over {schedule[-1].at_s:.0f} s; each kind alone first")
    kinds = [kind for kind in jobs.KINDS if any(arrival.kind == kind for arrival in schedule)]
    with children_first():
        measured = jobs.measure(kinds, say)
    planned = jobs.Planned(seed=options.seed, load=options.load, schedule=schedule, measured=measured)
    write(path, planned)
    return planned


def one(
    number: int,
    label: str,
    planned: jobs.Planned,
    options: argparse.Namespace,
    began_s: float,
    say: Callable[[str], None],
) -> CastorRun | None:
    """One policy's run, from disk if it is complete there; None if it was not run."""
    policy, parameters = policy_of(label)
    path = options.data / f"run-{number}.json"
    if path.exists() and not options.fresh:
        found = msgspec.json.decode(path.read_bytes(), type=CastorRun)
        if found.complete:
            return found
    if options.page_only or time.monotonic() - began_s > options.minutes * 60:
        return None
    facts = machine.facts(torch=str(torch.__version__), numpy=numpy.__version__)
    return run_live(
        planned.schedule, planned.measured, policy, parameters, facts, lambda run: write(path, run), say
    )


def policy_of(label: str) -> tuple[str, Parameters]:
    """`castor:part=false` as name and parameters."""
    name, _, rest = label.partition(":")
    return name, dict(parameter(name, text) for text in rest.split(",") if text)


if __name__ == "__main__":
    os.chdir(paths.ROOT)
    sys.exit(main())
