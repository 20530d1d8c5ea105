"""How fast the simulator is: jobs per processor second, what a decision costs, and how much memory it takes.

    python bench/simulator.py [--policies fifo,sjf,srtf] [--vcs all] [--jobs N] [--parts vcs,growth,large]
                              [--write experiments/results/bench-simulator.md]

Three parts, each run in a fresh process (so that peak memory is its own), in processor time without
the making of the workload:

* vcs: the nine bundled Philly VCs on 8 hosts of 8 GPUs.
* growth: the first 5,000 jobs of one busy VC, and the same ten times over in a row on the same cluster. Where
  more arrives than the cluster can do, the queue is ten times as long at the end.
* large: 698,000 generated jobs (Helios Saturn's size) on 64 hosts of 8 GPUs, under sjf.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

import machine
import numpy as np

from cotenant.controller.sim import Cluster, Workload, prepare, read, simulate, synthesise
from cotenant.controller.sim.results.summary import summarise
from cotenant.controller.training import compute

VCS: Final = ("0e4a51", "103959", "51b7ef", "6214e9", "6c71a0", "b436b2", "e13805", "ed69ec", "ee9e8c")
GROWTH_VC, GROWTH_JOBS, GROWTH = "6214e9", 5000, 10
LARGE_POLICY: Final = "sjf"
SMALL, LARGE = Cluster(hosts=8, gpus_per_host=8), Cluster(hosts=64, gpus_per_host=8)

Row = dict[str, Any]


def cell(name: str, policy: str, jobs: int | None) -> Row:
    """One run, in this process."""
    workload, cluster = workload_of(name, jobs)
    before_mib = peak_mib()
    summary = summarise(simulate(workload, cluster, policy, compute=compute))
    waited = summary["wait_s"] or {"mean": 0.0}
    return {
        "what": name,
        "policy": policy,
        "jobs": summary["jobs"],
        "finished": summary["finished"],
        "offered_load": summary["offered_load"],
        "wait_h": waited["mean"] / 3600.0,
        "events": summary["events"],
        "preemptions": summary["preemptions"],
        "cpu_s": summary["cpu_s"],
        "jobs_per_cpu_s": summary["jobs"] / summary["cpu_s"],
        "decision_ms": summary["decision_ms"],
        "peak_mib": peak_mib(),
        "before_mib": before_mib,
    }


def workload_of(name: str, jobs: int | None) -> tuple[Workload, Cluster]:
    """`VC`, `VC x10` (the growth part's), or `saturn`."""
    if name == "saturn":
        return prepare(synthesise("saturn", jobs=jobs, seed=0), cluster=LARGE, seed=0), LARGE
    vc, _, times = name.partition(" x")
    jobs = GROWTH_JOBS if times else jobs
    workload = prepare(read(f"philly/{vc}"), cluster=SMALL, seed=0, jobs=jobs)
    return (repeated(workload, int(times)) if times else workload), SMALL


def repeated(workload: Workload, times: int) -> Workload:
    """The same jobs again and again, each round after the last arrival of the one before it."""
    span_s = float(workload.submit_s[-1]) * (1.0 + 1.0 / len(workload))
    columns: dict[str, Any] = {
        field.name: np.tile(getattr(workload, field.name), times)
        for field in dataclasses.fields(workload)
        if isinstance(getattr(workload, field.name), np.ndarray)
    }
    columns["submit_s"] += np.repeat(np.arange(times) * span_s, len(workload))
    return dataclasses.replace(workload, **columns, job_ids=())


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


def apart(name: str, policy: str, jobs: int | None) -> Row:
    """One run in a process of its own."""
    command = [sys.executable, __file__, "--cell", name, "--policies", policy]
    command += ["--jobs", str(jobs)] if jobs is not None else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    row: Row = json.loads(done.stdout)
    print(line(row), flush=True)
    return row


COLUMNS: Final = (
    "trace", "policy", "jobs", "finished", "load", "mean wait, h", "events/job", "preemptions/job",
    "jobs per CPU s", "decision, ms (mean)", "p99", "peak, MiB",
)  # fmt: skip


def line(row: Row) -> str:
    load, decision = row["offered_load"], row["decision_ms"]
    cells = (
        row["what"], row["policy"], f"{row['jobs']:,}", f"{row['finished']:,}",
        f"{load:.2f}" if load is not None else "", f"{row['wait_h']:,.1f}",
        f"{row['events'] / row['jobs']:.1f}", f"{row['preemptions'] / row['jobs']:.2f}",
        f"{row['jobs_per_cpu_s']:,.0f}", f"{decision['mean']:.4f}", f"{decision['p99']:.4f}",
        f"{row['peak_mib']:,.0f}",
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def table(rows: list[Row]) -> Iterator[str]:
    yield "| " + " | ".join(COLUMNS) + " |"
    yield "|" + " --- |" * len(COLUMNS)
    yield from map(line, rows)


def rates(rows: list[Row], policies: list[str]) -> Iterator[str]:
    """A row for each policy: over all VCs, and on its slowest."""
    yield "| policy | jobs per CPU s | on the slowest VC | peak, MiB |"
    yield "|" + " --- |" * 4
    for policy in policies:
        of = [row for row in rows if row["policy"] == policy]
        least = min(of, key=lambda row: float(row["jobs_per_cpu_s"]))
        whole = sum(row["jobs"] for row in of) / sum(row["cpu_s"] for row in of)
        slow = f"{least['jobs_per_cpu_s']:,.0f} ({least['what']})"
        yield f"| {policy} | {whole:,.0f} | {slow} | {least['peak_mib']:.0f} |"


def growth_of(rows: list[Row], policies: list[str]) -> str:
    ratios = []
    for policy in policies:
        one, ten = (row for row in rows if row["policy"] == policy)
        ratios.append(f"{policy} {(ten['cpu_s'] / ten['jobs']) / (one['cpu_s'] / one['jobs']):.2f}")
    return f"A job of a trace ten times as long costs so many times as much: {', '.join(ratios)}."


def page(parts: dict[str, list[Row]], policies: list[str], command: str) -> str:
    lines = ["# How fast the simulator is", ""]
    if "vcs" in parts:
        of = [row for row in parts["vcs"] if row["policy"] == policies[0]]
        rate = sum(row["jobs"] for row in of) / sum(row["cpu_s"] for row in of)
        lines += [
            f"The simulator does {rate:,.0f} jobs per processor second under {policies[0]} over nine Philly",
            "VCs; the aim under the classic policies is 20,000.",
            "",
            *rates(parts["vcs"], policies),
            "",
        ]
    if "growth" in parts:
        text = f"{growth_of(parts['growth'], policies)} The aim is at most 1.2."
        lines += [*wrap(text, 110, break_on_hyphens=False), ""]
    for row in parts.get("large", []):
        lines += [
            f"{row['jobs']:,} jobs under {row['policy']} take {row['peak_mib']:,.0f} MiB at most; the aim is",
            "less than 1,024.",
            "",
        ]
    lines += [
        "The Philly VCs run on 8 hosts of 8 GPUs, the large trace (generated, Helios Saturn's size) on 64.",
        "Each run has a process of its own. Where more arrives than the cluster can do, ten times as long a",
        "trace makes the queue ten times as long.",
        "",
        f"Command: `{command}`",
        machine.sentences(numpy=np.__version__),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policies", default="fifo,sjf,srtf")
    parser.add_argument("--vcs", default="all", help="which of the nine, by comma")
    parser.add_argument("--jobs", type=int, default=None, help="only the first so many of each trace")
    parser.add_argument("--parts", default="vcs,growth,large")
    parser.add_argument("--write", type=Path, default=None, help="a page for experiments/results")
    parser.add_argument("--cell", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    policies = options.policies.split(",")
    if options.cell:
        print(json.dumps(cell(options.cell, policies[0], options.jobs)))
        return 0
    vcs = list(VCS) if options.vcs == "all" else options.vcs.split(",")
    names = {
        "vcs": vcs,
        "growth": [f"{GROWTH_VC} x1", f"{GROWTH_VC} x{GROWTH}"],
        "large": ["saturn"],
    }
    parts = {
        part: [
            apart(name, policy, options.jobs)
            for policy in (policies if part != "large" else [LARGE_POLICY])
            for name in names[part]
        ]
        for part in options.parts.split(",")
    }
    command = " ".join(["python", "bench/simulator.py", *sys.argv[1:]])
    print(*(row for rows in parts.values() for row in table(rows)), sep="\n")
    text = page(parts, policies, command)
    print(text)
    if options.write:
        options.write.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
