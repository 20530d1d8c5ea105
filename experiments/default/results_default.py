"""results/default.md and default-tables.md: the default against fifo, EASY, tiresias and patient.

    python experiments/default/results_default.py              everything
    python experiments/default/results_default.py --minutes 5  no new run after that; a second call goes on
    python experiments/default/results_default.py --page       only the page, from the runs that are there

Runs are kept in experiments/.cache, one by one; the page says how many are there.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[2] / name) for name in ("", "bench"))

import machine

from experiments.default import cells, page
from experiments.shared import kept_runs, paths


def main() -> int:
    options = parsed()
    every = cells.runs()
    if not options.page:
        kept_runs.complete(every, cells.load, cells.run, workers=options.workers, minutes=options.minutes)
    results = [found for cell in every if (found := cells.load(cell)) is not None]
    if not results:
        print("nothing has been run yet", file=sys.stderr)
        return 1
    written = page.write(results, every, machine.sentences(), options.out)
    print(f"{written}: {len(results)} of {len(every)} runs")
    return 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--page", action="store_true", help="run nothing")
    parser.add_argument("--minutes", type=float, default=1e5, help="how long new runs may begin")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, default=paths.RESULTS, help="folder of the page")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
