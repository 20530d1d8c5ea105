"""results/slurm-steer.md: a real Slurm, steered, beside itself with multifactor and with fifo.

    python experiments/slurm/steer_slurm.py --seeds 3      # four minutes a seed; jobs sleep

The arms of a seed run side by side, each in a Slurm of its own with its own accounts, on the same arrivals.
Runs are kept in `steer_runs.json`; what is there is not run again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import machine

from experiments.shared import paths
from experiments.slurm import steer_page
from experiments.slurm.steer_runs import ARMS, CPUS, NODES, arrivals, run_arm
from tests.building.slurm import missing_programs

FILE: Final = paths.RESULTS / "slurm-steer.md"
BROKEN: Final = threading.BrokenBarrierError
KEPT: Final = Path(__file__).with_name("steer_runs.json")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--orders", default="sjf", help="orders to steer by, a,b")
    parser.add_argument("--load", type=float, default=3.0)
    parser.add_argument("--window", type=float, default=60.0, help="seconds in which jobs arrive")
    asked = parser.parse_args()
    if missing := missing_programs(accounting=True):
        print(f"no {', '.join(missing)} here: see tests/building/slurm.py", file=sys.stderr)
        return 1
    arms = [*ARMS, *asked.orders.split(",")]
    kept: dict[str, dict[str, Any]] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for seed in range(asked.seeds):
        known = kept.setdefault(f"load {asked.load:g}, {asked.window:g} s, seed {seed}", {})
        missing_arms = [arm for arm in arms if arm not in known]
        known |= run_seed(seed, missing_arms, asked.load, asked.window)
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")
        print(f"seed {seed}: done", flush=True)
    command = " ".join(["python experiments/slurm/steer_slurm.py", *sys.argv[1:]])
    FILE.write_text(steer_page.page(kept, arms, command, machine.sentences()))
    return 0


def run_seed(seed: int, arms: list[str], load: float, window_s: float) -> dict[str, Any]:
    if not arms:
        return {}
    jobs = arrivals(seed, cpus=NODES * CPUS, load=load, window_s=window_s)
    gate = threading.Barrier(len(arms))

    def run(arm: str) -> list[dict[str, Any]]:
        try:
            with tempfile.TemporaryDirectory(prefix="sl") as folder:
                return run_arm(Path(folder), arm, jobs, gate)
        except BaseException:
            gate.abort()
            raise

    with ThreadPoolExecutor(len(arms)) as pool:
        started = {arm: pool.submit(run, arm) for arm in arms}
    problems = [each.exception() for each in started.values()]
    for problem in sorted(filter(None, problems), key=lambda each: isinstance(each, BROKEN)):
        raise problem  # The first cause: the others only found the gate broken.
    return {arm: each.result() for arm, each in started.items()}


if __name__ == "__main__":
    sys.exit(main())
