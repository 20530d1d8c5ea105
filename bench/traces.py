"""Processor time to read, generate and prepare traces.

    python bench/traces.py [--repeat 5] [--json FILE]

Read: a packed table of 88,067 generated jobs with twelve columns (as many rows as the nine bundled VCs have
together). Generated: the largest kind. Prepared: all of it, with estimates, on 512 GPUs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import machine
import numpy as np

from cotenant.controller.sim import Cluster, prepare, read, synthesise, write_csv

ROWS = 88_067


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=5, help="the median counts")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cotenant-bench-") as folder:
        table = Path(folder) / "jobs.csv.gz"
        write_csv(synthesise("philly", seed=1, jobs=ROWS), table)
        whole = synthesise("saturn", seed=1)
        work: dict[str, Callable[[], object]] = {
            f"read {ROWS:,} rows": lambda: read(table),
            f"generate {len(whole):,} jobs": lambda: synthesise("saturn", seed=1),
            f"prepare {len(whole):,} jobs": lambda: prepare(
                whole, cluster=Cluster(hosts=64, gpus_per_host=8), seed=1, noise=0.3
            ),
        }
        cpu_s = {name: median_cpu_s(do, options.repeat) for name, do in work.items()}
    for name, seconds in cpu_s.items():
        print(f"{name}: {seconds:.2f} s of processor time")
    print(machine.sentences(numpy=np.__version__))
    if options.json:
        result = {"machine": machine.facts(numpy=np.__version__), "cpu_s": cpu_s}
        options.json.write_text(json.dumps(result, indent=2) + "\n")


def median_cpu_s(do: Callable[[], object], repeat: int) -> float:
    taken = []
    for _ in range(repeat):
        started = time.process_time()
        do()
        taken.append(time.process_time() - started)
    return float(np.median(taken))


if __name__ == "__main__":
    main()
