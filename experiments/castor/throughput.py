"""How far the throughput model is from measured step times: six applications, and jobs on CPU slots.

    python experiments/castor/throughput.py [--data FILE] [--live] [--json FILE] [--write FILE]
                                            [--pictures FOLDER]

The protocol was written down before the first number was looked at, and no row is left out.

Data: `adaptdl_step_times` (Qiao et al., OSDI 2021; Apache-2.0): step times of six applications against local
batch size and placement. Each application is fitted on its own. A row's error is |predicted - measured| /
measured of its step time; an application's error is the mean over its held-out rows.

*Placements held out.* A placement is the devices on each host in sorted order (1+2 and 2+1 are the same);
rows that only say how many hosts and devices are placed by these two numbers. All rows of a placement, at
every batch size, fall into one of five folds, drawn with a seed; each fold is predicted by the fit to the
other four. Seeds 0 to 4, all reported; what counts is the mean over seeds. The harder reading is reported
beside it: every placement with as many hosts and devices is held out together.

*From what a profiler sees.* The fit gets 1, 2 and 4 devices of one host and 1+1 and 2+2 on two hosts, at the
smallest, the middle and the largest batch size: fifteen rows, or as many of them as were measured. It
predicts every row above four devices.

*Live* (`--live`): small torch scripts on CPU slots, profiled alone at several accumulation steps; each inner
number of steps is predicted by the fit to the others.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, Final

sys.path.extend(str(Path(__file__).resolve().parents[2] / name) for name in ("", "bench"))

import machine
import msgspec
import numpy as np
import scipy

from cotenant.profiler.step_law import StepTable, solve
from experiments.castor.throughput_model import live, protocol
from experiments.castor.throughput_model.page import page, tables
from experiments.castor.throughput_model.protocol import SEEDS, Row
from experiments.shared import paths

DATA: Final = paths.ROOT.parent / "shared" / "interference" / "adaptdl_step_times.csv.gz"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA, help="adaptdl_step_times.csv.gz")
    parser.add_argument("--live", action="store_true", help="also profile jobs on these cores (2 min)")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--write", type=Path, default=None, help="a page for experiments/results")
    parser.add_argument("--pictures", type=Path, default=None, help="a folder for the figure")
    options = parser.parse_args()
    result: dict[str, Any] = {"machine": machine.facts(numpy=np.__version__, scipy=scipy.__version__)}
    if options.data.is_file():
        result |= judged(protocol.read(options.data), options.pictures)
    else:
        print(f"{options.data} is not here: the six applications are left out (--data FILE names it)")
    if options.live:
        result["live"] = [msgspec.to_builtins(job, str_keys=True) for job in live.measure()]
    print(tables(result))
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    if options.write is not None:
        options.write.write_text(page(result))


def judged(rows: dict[str, list[Row]], pictures: Path | None) -> dict[str, Any]:
    """Everything about the six applications; the figure where a folder is named."""
    applications = {}
    for app, found in rows.items():
        by_seed = [protocol.predicted(found, protocol.by_placement, seed) for seed in SEEDS]
        harder = [protocol.predicted(found, protocol.by_counts, seed) for seed in SEEDS]
        seen, _, _ = protocol.from_a_profile(found)
        applications[app] = {
            "rows": len(found),
            "placements": len({row.placement for row in found}),
            "held_out": [msgspec.to_builtins(protocol.spread(found, one)) for one in by_seed],
            "held_out_by_counts": [msgspec.to_builtins(protocol.spread(found, one)) for one in harder],
            "unknown_reach": [protocol.unknown(found, protocol.by_placement, seed) for seed in SEEDS],
            "held_out_in_range": protocol.in_range(found, protocol.by_placement, SEEDS[0]),
            "seen": msgspec.to_builtins(seen),
        }
    if pictures is not None:
        draw(applications, pictures)
    return {"applications": applications, "fit_ms": fit_ms(rows)}


def draw(applications: dict[str, Any], folder: Path) -> None:
    from cotenant.controller.sim.results import plots
    from experiments.castor.throughput_model import figures

    held_out = {}
    for app, found in applications.items():
        means = [one["mean"] for one in found["held_out"]]
        held_out[app] = (float(np.mean(means)), min(means), max(means))
    seen = {app: found["seen"]["error"]["mean"] for app, found in applications.items()}
    folder.mkdir(parents=True, exist_ok=True)
    plots.save(figures.errors(held_out, seen, (0.085, 0.25)), folder / "throughput-errors.svg")


def fit_ms(rows: dict[str, list[Row]]) -> dict[str, float]:
    """Processor time of one fit, without holding out: to a profile, and to an application's every row."""
    few = {app: protocol.seen_by_a_profiler(found) for app, found in rows.items()}
    return {name: _median_ms(tables_) for name, tables_ in (("profile", few), ("every row", rows))}


def _median_ms(rows: dict[str, list[Row]]) -> float:
    taken = []
    for found in rows.values():
        table = StepTable.make([row.step for row in found])
        started_s = time.process_time()
        solve(table)
        taken.append(1e3 * (time.process_time() - started_s))
    return float(np.median(taken))


if __name__ == "__main__":
    main()
