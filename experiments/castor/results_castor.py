"""Castor against the others: runs what is missing, then writes results/castor.md and its plots.

    python experiments/castor/results_castor.py               everything: some minutes on two cores
    python experiments/castor/results_castor.py --minutes 5   stop then: fewer seeds; a later call goes on
    python experiments/castor/results_castor.py --page        only the page, from the runs that are there

Rule: what was run is kept in experiments/.cache/castor/; `--fresh` runs it again. Venus is read from
../shared, or where COTENANT_SHARED_DATA says; without it the page does without, and says so.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[2] / name) for name in ("", "bench"))

from experiments.castor import cells, page
from experiments.castor.cells import Runs
from experiments.castor.grounds import grounds
from experiments.shared import kept_runs


def main() -> int:
    options = parsed()
    wanted = cells.plan(cells.traces(), options.seeds)
    if options.fresh:
        for cell in wanted:
            cell.file.unlink(missing_ok=True)
    complete = True
    if not options.page:
        print(f"{len(wanted)} runs in all")
        try:
            complete = kept_runs.complete(
                wanted, cells.load, cells.run, workers=options.workers, minutes=options.minutes
            )
        except KeyboardInterrupt:
            complete = False
            print("\ninterrupted: the page has what there is")
    book = Runs((found for cell in wanted if (found := cells.load(cell)) is not None), options.seeds)
    if not grounds(book):
        print("no experiment has all its runs for any seed yet", file=sys.stderr)
        return 1
    written = page.write(book, options.out)
    print(
        f"{written}: {len(book.results)} of {len(wanted)} runs"
        + ("" if complete else "; run it again to go on")
    )
    return 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--page", action="store_true", help="run nothing")
    parser.add_argument("--fresh", action="store_true", help="forget what was run before")
    parser.add_argument("--seeds", type=int, default=cells.SEEDS)
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no run after so long")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, default=page.DOCS, help="folder of the page")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
