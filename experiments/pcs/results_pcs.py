"""PCS's figures in the fluid world: runs what is missing, then writes results/pcs.md.

    python experiments/pcs/results_pcs.py         half an hour of processor time
    python experiments/pcs/results_pcs.py --page  only the page, from the runs that are there

Rule: no number of ours on the page is typed here. The runs are kept in experiments/.cache/pcs/; `--fresh`
forgets them.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[2] / name) for name in ("", "bench"))

import machine
import numpy as np

from experiments.pcs import fronts, page, runs
from experiments.shared import paths


def main() -> int:
    options = parsed()
    if options.fresh:
        shutil.rmtree(runs.CACHE, ignore_errors=True)
    if not options.page:
        run_missing()
    written: Path = options.out / "pcs.md"
    written.write_text(page.text(machine.sentences(numpy=np.__version__), options.out / "pcs"))
    print(f"{written} is written")
    return 0


def run_missing() -> None:
    cells = list(runs.cells())
    for number, cell in enumerate(cells, 1):
        if runs.load(cell) is None:
            value = runs.run(cell)
            print(
                f"{number} of {len(cells)}: {cell.vc} {cell.policy}, {value['cpu_s']:.1f} CPU s", flush=True
            )
    if runs.loaded(runs.search_file()) is None:
        print(f"search: {runs.search()['cpu_s']:.0f} CPU s", flush=True)
    for vc in runs.VCS:
        if runs.loaded(fronts.file(vc)) is None:
            print(f"front of {vc}: {fronts.run(vc)['searches'][-1]['cpu_s']:.0f} CPU s", flush=True)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--page", action="store_true", help="run nothing")
    parser.add_argument("--fresh", action="store_true", help="forget what was run before")
    parser.add_argument("--out", type=Path, default=paths.RESULTS, help="folder of the page")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
