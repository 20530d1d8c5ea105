"""Lazer against the others: runs what is missing, then writes docs/results/lazer.md and its plots.

    python bench/results_lazer.py            everything, in as many minutes as it takes
    python bench/results_lazer.py --minutes 25   stop then; the page has fewer seeds, and a later call goes on
    python bench/results_lazer.py --quick --out quick-page   a few hundred jobs, to see that it works
    python bench/results_lazer.py --page     only the page, from the runs that are there

Rule: what was run is kept in bench/.cache/lazer/; `--fresh` runs it again.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from lazer import cells, page
from lazer.book import Book


def main() -> int:
    options = parsed()
    sizes = cells.QUICK if options.quick else cells.FULL
    wanted = cells.plan(sizes)
    if options.fresh:
        for cell in wanted:
            (cells.FOLDER / f"{cell.key}.json").unlink(missing_ok=True)
    complete = True
    if not options.page:
        print(f"{len(wanted)} runs in all")
        try:
            complete = cells.run_missing(wanted, workers=options.workers, minutes=options.minutes)
        except KeyboardInterrupt:
            complete = False
            print("\ninterrupted: the page has what there is")
    book = Book(sizes, wanted)
    if not book.results:
        print("nothing has been run yet", file=sys.stderr)
        return 1
    written = page.write(book, options.out)
    print(
        f"{written}: {len(book.results)} of {len(wanted)} runs"
        + ("" if complete else "; run it again to go on")
    )
    return 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few hundred jobs a run")
    parser.add_argument("--page", action="store_true", help="run nothing")
    parser.add_argument("--fresh", action="store_true", help="forget what was run before")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no run after so long")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, default=page.DOCS, help="folder of the page")
    options = parser.parse_args()
    if options.quick and options.out == page.DOCS:
        parser.error("--quick is for trying: name another folder with --out")
    return options


if __name__ == "__main__":
    sys.exit(main())
