"""results/cotenant.md: the product's own policy against patient, srtf, castor-cost and castor.

    python experiments/cotenant/results_cotenant.py              everything: fifty processor minutes
    python experiments/cotenant/results_cotenant.py --minutes 5  no new run after that; a second call goes on
    python experiments/cotenant/results_cotenant.py --page       only the page, from the runs that are there

Runs are kept in experiments/.cache, one by one; the page says which are not there.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.extend(str(Path(__file__).resolve().parents[2] / name) for name in ("", "bench"))

import machine

from experiments.cotenant import cells, grounds, page
from experiments.gfs import scheduling_runs
from experiments.shared import kept_runs, paths


def main() -> int:
    options = parsed()
    every, spot, told = list(cells.cells()), grounds.spot_cells(), list(grounds.told_cells())
    if not options.page:
        at_most: dict[str, Any] = {"workers": options.workers, "minutes": options.minutes}
        kept_runs.complete(every, cells.load, cells.run, **at_most)
        kept_runs.complete(spot, scheduling_runs.load, scheduling_runs.run, **at_most)
        kept_runs.complete(told, grounds.load_told, grounds.run_told, **at_most)
    results = [found for cell in every if (found := cells.load(cell)) is not None]
    if not results:
        print("nothing has been run yet", file=sys.stderr)
        return 1
    written = options.out / "cotenant.md"
    others = [
        grounds.spot({cell: row for cell in spot if (row := scheduling_runs.load(cell)) is not None}),
        grounds.told([one for cell in told if (one := grounds.load_told(cell)) is not None]),
    ]
    pictures = options.out / "cotenant"
    written.write_text(page.text(results, every, others, machine.sentences(), pictures))
    print(f"{written}: {len(results)} of {len(every)} runs")
    return 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--page", action="store_true", help="run nothing")
    parser.add_argument("--minutes", type=float, default=1e5, help="how long new runs may begin")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=paths.RESULTS, help="folder of the page")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
