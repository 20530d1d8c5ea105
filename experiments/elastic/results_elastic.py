"""results/elastic.md: what it brings to resize jobs, on whole devices, with pauses and loads.

    python experiments/elastic/results_elastic.py              everything: twenty-five processor minutes
    python experiments/elastic/results_elastic.py --minutes 5  no new run after that; a second call goes on
    python experiments/elastic/results_elastic.py --page       only the page, from the runs that are there

Runs are kept in experiments/.cache, one by one; the page says which are not there.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[2] / name) for name in ("", "bench"))

import machine
import numpy as np

from experiments.elastic import page, runs
from experiments.shared import kept_runs, paths


def main() -> int:
    options = parsed()
    every = list(runs.cells())
    if not options.page:
        kept_runs.complete(every, runs.load, runs.run, workers=options.workers, minutes=options.minutes)
    results = [found for cell in every if (found := runs.load(cell)) is not None]
    if not results:
        print("nothing has been run yet", file=sys.stderr)
        return 1
    written: Path = options.out / "elastic.md"
    facts = machine.sentences(numpy=np.__version__)
    written.write_text(page.text(results, every, facts, options.out / "elastic"))
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
