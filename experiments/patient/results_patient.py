"""patient against what it was and srtf-full: runs what is missing, then writes results/patient.md.

    python experiments/patient/results_patient.py              the bundled Philly VCs; ten processor minutes
    python experiments/patient/results_patient.py --wide FILE  and a trace of gangs as wide as its cluster
    python experiments/patient/results_patient.py --page       only the page, from the runs that are there

Rule: the runs are kept beside the page, in patient/runs.csv; `--fresh` forgets them.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[2] / name) for name in ("", "bench"))

from experiments.patient import page, runs
from experiments.shared import paths


def main() -> int:
    options = parsed()
    file = options.out / "patient" / "runs.csv"
    if options.fresh:
        file.unlink(missing_ok=True)
    if not options.page:
        runs.complete(file, options.wide, options.workers)
    rows = runs.load(file)
    if not rows:
        print("nothing has been run yet", file=sys.stderr)
        return 1
    written = options.out / "patient.md"
    written.write_text(page.text(rows, file.parent))
    print(f"{written}: {len(rows)} runs")
    return 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--page", action="store_true", help="run nothing")
    parser.add_argument("--fresh", action="store_true", help="forget what was run before")
    parser.add_argument(
        "--wide", metavar="FILE", help="a trace whose gangs are as wide as 18 hosts of 8 GPUs"
    )
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, default=paths.RESULTS, help="folder of the page")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
