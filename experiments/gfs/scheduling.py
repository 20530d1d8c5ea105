"""results/gfs.md: GFS's policies, their ablations, ours and the baselines over the generated workload.

    python experiments/gfs/scheduling.py                        # two days, five seeds: the page's
    python experiments/gfs/scheduling.py --days 5 --seeds 3 --minutes 20

A run of two days takes 6 to 21 CPU seconds, one of five days several times that. Runs are kept; what is
missing is simulated, and the page says of how much it is made.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import machine

from experiments.gfs import scheduling_page, scheduling_runs
from experiments.gfs.scheduling_runs import reserved
from experiments.shared import paths
from experiments.shared.kept_runs import complete

FILE, PICTURES = paths.RESULTS / "gfs.md", paths.RESULTS / "gfs"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=1e6, help="how long new runs may begin")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    asked = parser.parse_args()
    cells = list(dict.fromkeys(scheduling_runs.cells(asked.days, range(asked.seeds))))
    complete(cells, scheduling_runs.load, scheduling_runs.run, workers=asked.workers, minutes=asked.minutes)
    rows = {cell: row for cell in cells if (row := scheduling_runs.load(cell)) is not None}
    command = " ".join(["python experiments/gfs/scheduling.py", *sys.argv[1:]])
    facts = machine.sentences()
    FILE.write_text(scheduling_page.page(rows, len(cells), command, facts, reserved(), PICTURES))
    print(f"{FILE}: {len(rows)} of {len(cells)} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
