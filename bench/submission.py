"""Submission to started worker, and durable submissions per second, beside a local Slurm.

    python bench/submission.py [--jobs 30] [--seconds 5] [--json FILE]

Both sides run on one machine, in turn, job by job (A B A B ...), so that the machine's mood hits both.
The worker is `sh -c 'date +%s%N > FILE'`: the time it writes, less the time before the submission.
cotenant is asked twice: through its client library, and through its command line, which pays for a
Python interpreter each time, as `sbatch` pays for a small C program. Without Slurm the comparison is
left out and said to be.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import machine

from cotenant.controller.cli.demo.cluster import PrivateCluster
from cotenant.controller.client.connection import Client
from cotenant.controller.domain import JobId, JobSpec, Launch
from cotenant.controller.wire import clients as wire
from tests.building.slurm import LocalSlurm, local_slurm, missing_programs

CLIENTS = 8
START_TIMEOUT_S = 60.0
SETTINGS = {"SchedulerParameters": "bf_interval=30", "MaxJobCount": "20000"}
"""The scheduler as it is by default, and room for all that is submitted."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=30, help="jobs per side for the latency")
    parser.add_argument("--seconds", type=float, default=5.0, help="per side for the rate")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--write", type=Path, default=None, help="a page for experiments/results")
    parser.add_argument("--note", default="", help="a line about the circumstances, for the page")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cotenant-bench-")))
        cluster = stack.enter_context(PrivateCluster(folder, "cpu:2", 2048))
        slurm = None
        if missing := missing_programs():
            print(f"without Slurm: not installed: {', '.join(missing)}")
        elif os.geteuid():
            print("without Slurm: its pretended GPUs can be made by root only")
        else:
            private = local_slurm(folder / "slurm", nodes=2, gpus=2, settings=SETTINGS)
            slurm = stack.enter_context(private)
        result = {
            "machine": machine.facts(),
            "jobs": options.jobs,
            "latency_ms": latencies(folder, cluster, slurm, options.jobs),
            "submissions_per_s": rates(cluster, slurm, options.seconds),
        }
    show(result)
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    if options.write is not None:
        options.write.write_text(page(result, options))


# --- Latency ---------------------------------------------------------------------------------------


def latencies(
    folder: Path, cluster: PrivateCluster, slurm: LocalSlurm | None, jobs: int
) -> dict[str, dict[str, float]]:
    """p50 and p99 of submission to started worker, in milliseconds."""
    sides: dict[str, Callable[[str], None]] = {
        "cotenant (library)": lambda script: _by_library(cluster, script),
        "cotenant (command line)": lambda script: _by_command_line(cluster, script),
    }
    if slurm is not None:
        sides["slurm (sbatch)"] = lambda script: _by_sbatch(slurm, script)
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for i in range(jobs + 1):  # The first round warms up.
        for name, submit in sides.items():
            stamp = folder / f"stamp-{i}-{len(name)}"
            before_ns = time.time_ns()
            submit(f"date +%s%N > {stamp}.part && mv {stamp}.part {stamp}")
            started_ns = _read_stamp(stamp)
            if i > 0:
                taken[name].append((started_ns - before_ns) / 1e6)
            _until_idle(cluster)
    return {name: {"p50": _quantile(ms, 0.5), "p99": _quantile(ms, 0.99)} for name, ms in taken.items()}


def _by_library(cluster: PrivateCluster, script: str) -> None:
    with Client(cluster.endpoint) as client:
        client.ask(wire.Submit(specs=(_spec(script),)))


def _spec(script: str, hold: bool = False) -> JobSpec:
    launch = Launch(argv=("/bin/sh", "-c", script), workdir="/", env={"PATH": "/usr/bin:/bin"})
    return JobSpec(job_id=JobId("new-0"), hold=hold, launch=launch)


def _by_command_line(cluster: PrivateCluster, script: str) -> None:
    command = [sys.executable, "-m", "cotenant.controller.cli.main", "submit", "--", "/bin/sh", "-c", script]
    env = {
        **os.environ,
        "COTENANT_AGENT__CONTROLLER": cluster.endpoint,
        "COTENANT_CONTROLLER__ENDPOINT": cluster.endpoint,
    }
    subprocess.run(command, env=env, check=True, capture_output=True, timeout=60)


def _by_sbatch(slurm: LocalSlurm, script: str) -> None:
    slurm.run("sbatch", "--output=/dev/null", "--wrap", script)


def _read_stamp(path: Path) -> int:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not path.exists():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"a worker did not start within {START_TIMEOUT_S:.0f} s")
        time.sleep(0.002)
    return int(path.read_text())


def _until_idle(cluster: PrivateCluster) -> None:
    """The next round must not wait for this one's device."""
    with Client(cluster.endpoint) as client:
        jobs = client.ask(wire.ListJobs()).jobs
        if jobs:
            client.ask(wire.WaitJobs(job_ids=tuple(job.job_id for job in jobs)), timeout_s=60.0)


# --- Rate ------------------------------------------------------------------------------------------


def rates(cluster: PrivateCluster, slurm: LocalSlurm | None, seconds: float) -> dict[str, dict[str, float]]:
    """Accepted (durable) submissions per second with 1 and with `CLIENTS` clients; jobs are held."""
    found: dict[str, dict[str, float]] = {}
    for clients in (1, CLIENTS):
        name = f"{clients} client" + ("s" if clients > 1 else "")
        found[name] = {"cotenant": _rate(lambda stop: _submit_until(cluster, stop), clients, seconds)}
        if slurm is not None:
            found[name]["slurm"] = _rate(lambda stop: _sbatch_until(slurm, stop), clients, seconds)
    return found


def _rate(submit_until: Callable[[threading.Event], int], clients: int, seconds: float) -> float:
    stop = threading.Event()
    counts: list[int] = []
    threads = [threading.Thread(target=lambda: counts.append(submit_until(stop))) for _ in range(clients)]
    before_s = time.monotonic()
    for thread in threads:
        thread.start()
    stop.wait(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.monotonic() - before_s)


def _submit_until(cluster: PrivateCluster, stop: threading.Event) -> int:
    count = 0
    with Client(cluster.endpoint) as client:
        while not stop.is_set():
            client.ask(wire.Submit(specs=(_spec("true", hold=True),)))
            count += 1
    return count


def _sbatch_until(slurm: LocalSlurm, stop: threading.Event) -> int:
    count = 0
    while not stop.is_set():
        slurm.run("sbatch", "--hold", "--output=/dev/null", "--wrap", "true")
        count += 1
    return count


# --- Showing ---------------------------------------------------------------------------------------


def _quantile(values: Sequence[float], q: float) -> float:
    if len(values) < 2:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[round(q * 100) - 1]


def page(result: dict[str, Any], options: argparse.Namespace) -> str:
    latency = "\n".join(
        f"| {name} | {ms['p50']:.0f} | {ms['p99']:.0f} |" for name, ms in result["latency_ms"].items()
    )
    rates = "\n".join(
        f"| {clients} | {sides['cotenant']:.0f} | {sides.get('slurm', float('nan')):.0f} |"
        for clients, sides in result["submissions_per_s"].items()
    )
    medians = ", ".join(f"{ms['p50']:.0f} ms with {name}" for name, ms in result["latency_ms"].items())
    return f"""# Submission, beside a local Slurm

From a submission to a started worker it takes {medians} (medians).

Submission to started worker, {result["jobs"]} jobs each, one at a time, in turns:

| asked through | p50, ms | p99, ms |
| --- | --- | --- |
{latency}

Durable submissions per second (jobs held back, so that nothing starts):

| clients | cotenant | slurm |
| --- | --- | --- |
{rates}

cotenant's clients are threads with the client library, Slurm's are `sbatch` processes. Slurm is
Debian's, with its default scheduler, two nodes of two pretend GPUs; cotenant has two CPU slots. cotenant
answers when the submission is flushed to disk; what Slurm's answer promises was not examined.

Command: `python bench/submission.py --jobs {options.jobs} --seconds {options.seconds:g}`
{machine.sentences()} {options.note}
"""


def show(result: dict[str, object]) -> None:
    print(json.dumps(result["machine"]))
    print(f"\nsubmission to started worker, {result['jobs']} jobs each, ms")
    latency = result["latency_ms"]
    assert isinstance(latency, dict)
    for name, ms in latency.items():
        print(f"  {name:<26} p50 {ms['p50']:8.1f}   p99 {ms['p99']:8.1f}")
    print("\ndurable submissions per second")
    rate = result["submissions_per_s"]
    assert isinstance(rate, dict)
    for clients, sides in rate.items():
        print(f"  {clients:<12} " + "   ".join(f"{side} {value:8.1f}" for side, value in sides.items()))


if __name__ == "__main__":
    main()
