"""Forecasters of demand on real hours: runs what is missing, then writes results/gfs-forecast.md.

    python experiments/gfs/forecast.py         five seeds on ../shared, or COTENANT_SHARED_DATA; ten CPU
    minutes python experiments/gfs/forecast.py --page  only the page, from the runs that are there

Rule: no number on the page is typed here, and no sentence depends on one without counting it.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[2] / name) for name in ("", "bench"))

import machine
import numpy as np
import torch
import xgboost

from experiments.gfs import forecast_page, forecast_runs
from experiments.shared import paths


def main() -> int:
    options = parsed()
    for seed in () if options.page else forecast_runs.SEEDS:
        if forecast_runs.load(seed) is None:
            try:
                forecast_runs.run(seed, partial(told, seed))
            except forecast_runs.NoData as error:
                print(error, file=sys.stderr)
                return 1
    runs = [run for run in map(forecast_runs.load, forecast_runs.SEEDS) if run is not None]
    if not runs:
        print("nothing has been run yet", file=sys.stderr)
        return 1
    facts = machine.sentences(numpy=np.__version__, torch=torch.__version__, xgboost=xgboost.__version__)
    written: Path = options.out / "gfs-forecast.md"
    written.write_text(forecast_page.text(runs, facts, options.out / "gfs-forecast"))
    print(f"{written}: {len(runs)} seeds")
    return 0


def told(seed: int, done: int, model: str) -> None:
    print(f"seed {seed}, {done} done: {model or 'all'}", flush=True)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--page", action="store_true", help="run nothing")
    parser.add_argument("--out", type=Path, default=paths.RESULTS, help="folder of the page")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
