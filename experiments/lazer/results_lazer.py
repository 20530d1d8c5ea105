"""Lazer against the others: runs what is missing, then writes results/lazer.md and its picture.

    python experiments/lazer/results_lazer.py                  everything, in as many minutes as it takes
    python experiments/lazer/results_lazer.py --minutes 25     stop then; a later call goes on
    python experiments/lazer/results_lazer.py --fresh patient  forget what was run of a policy (`all`: of all)
    python experiments/lazer/results_lazer.py --quick --out DIR  a few hundred jobs, to see that it works

Rule: what was run is kept in experiments/.cache/lazer/; the page is written once every run is there.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[2] / name) for name in ("", "bench"))

from experiments.lazer import cells, page
from experiments.lazer.cells import Book


def main() -> int:
    options = parsed()
    sizes = cells.QUICK if options.quick else cells.FULL
    wanted = cells.plan(sizes)
    for cell in wanted:
        if options.fresh in ("all", cell.policy):
            (cells.FOLDER / f"{cell.key}.json").unlink(missing_ok=True)
    print(f"{len(wanted)} runs in all")
    try:
        complete = cells.run_missing(wanted, workers=options.workers, minutes=options.minutes)
    except KeyboardInterrupt:
        complete = False
    if not complete:
        print("\nnot all runs are there: run it again to go on", file=sys.stderr)
        return 1
    print(page.write(Book(sizes), options.out))
    return 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few hundred jobs a run")
    parser.add_argument("--fresh", metavar="POLICY", default="", help="forget what was run of it before")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no run after so long")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, default=page.DOCS, help="folder of the page")
    options = parser.parse_args()
    if options.quick and options.out == page.DOCS:
        parser.error("--quick is for trying: name another folder with --out")
    return options


if __name__ == "__main__":
    sys.exit(main())
