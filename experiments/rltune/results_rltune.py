"""rltune and scorer against the orders they are compared with: runs what is missing, then writes the page.

    python experiments/rltune/results_rltune.py --minutes 20   stops then; run it again to go on
    python experiments/rltune/results_rltune.py --page         only the page, from the runs that are there

Rule: the runs are kept beside the page, in rltune/runs.csv; `--fresh` forgets them.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[2] / name) for name in ("", "bench"))

from experiments.rltune import page, runs
from experiments.shared import paths


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--page", action="store_true", help="run nothing")
    parser.add_argument("--fresh", action="store_true", help="forget what was run before")
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--seeds", type=int, default=5, help="of estimates that are drawn")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, default=paths.RESULTS, help="folder of the page")
    options = parser.parse_args()
    file = options.out / "rltune" / "runs.csv"
    if options.fresh:
        file.unlink(missing_ok=True)
    if not options.page:
        runs.complete(file, options.seeds, options.workers, options.minutes)
    rows = runs.load(file)
    if not rows:
        print("nothing has been run yet", file=sys.stderr)
        return 1
    written = options.out / "rltune.md"
    written.write_text(page.text(rows, options.seeds, file.parent))
    print(f"{written}: {len(rows)} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
