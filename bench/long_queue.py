"""A long queue: listing it, starting again with it, and what its cancellation holds up.

    python bench/long_queue.py [--jobs 15000] [--cancel 5000] [--runs 3] [--write PAGE]

The controller is the real one, without a host; each job has 30 environment variables and a secret. Listing is
`cotenant queue` as a process, into a pipe, with bytecode as pip writes it. CPU seconds, user and system, are
of that process and of the controller meanwhile. The aim for 15,000 jobs as JSON: the last row within 2 s.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import journal
import machine
import msgspec
import zmq

from cotenant.controller.client.connection import Client
from cotenant.controller.domain import JobId, JobSpec
from cotenant.controller.wire import clients as wire

BATCH = 100
LOOK_FOR_S = 3.0
"""After a cancellation: the controller looks for secrets that are not needed any more twice a second."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=15_000)
    parser.add_argument("--cancel", type=int, default=5_000)
    parser.add_argument("--runs", type=int, default=3, help="of each measurement; the median is shown")
    parser.add_argument("--write", type=Path, default=None, help="a page for experiments/results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cotenant-bench-") as name:
        rows = measured(Path(name), options)
    page = report(rows, options)
    print(page)
    if options.write:
        options.write.write_text(page)


def measured(folder: Path, options: Any) -> list[tuple[str, str]]:
    state, rows = folder / "state", []
    with journal.controller(state, folder) as endpoint, Client(endpoint, timeout_s=600.0) as client:
        began_s = time.monotonic()
        for first in range(0, options.jobs, BATCH):
            client.ask(wire.Submit(specs=tuple(job(at) for at in range(min(BATCH, options.jobs - first)))))
        rows.append((f"submitting, {BATCH} at a time", f"{time.monotonic() - began_s:.1f} s"))
        pid = client.ask(wire.GetStatus()).pid
        environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        environ |= {"PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
        for form in ("table", "json", "id"):
            runs = [listing(endpoint, form, environ, pid) for _ in range(options.runs + 1)][1:]
            cpu_s, first_s, whole_s, answering_s = (median(run[at] for run in runs) for at in range(4))
            text = f"{cpu_s:.2f} s of CPU, the controller {answering_s:.2f} s"
            text += f"; first row after {first_s:.2f} s, last after {whole_s:.2f} s"
            rows.append((f"`cotenant queue -o {form}`", text))
        ids = [JobId(str(number)) for number in range(1, options.cancel + 1)]
        began_s = time.monotonic()
        client.ask(wire.ChangeJobs(verb="cancel", job_ids=tuple(ids)))
        rows.append((f"cancelling {options.cancel:,}", f"{time.monotonic() - began_s:.2f} s"))
        rows.append((f"longest answer within {LOOK_FOR_S:g} s after it", f"{longest_answer(client):.2f} s"))
    process, _ = journal.launch(state, folder)
    journal.end(process, kill=False)
    starts = [restart(folder, state) for _ in range(options.runs)]
    cpu_s, ready_s = (median(start[at] for start in starts) for at in range(2))
    rows.append(("start from the snapshot", f"{cpu_s:.2f} s of CPU; ready after {ready_s:.2f} s"))
    return rows


def job(at: int) -> JobSpec:
    plain = journal.job(at)
    launch = msgspec.structs.replace(plain.launch, env={**plain.launch.env, "A_TOKEN": "x"})
    return msgspec.structs.replace(plain, launch=launch)


def listing(
    endpoint: str, form: str, environ: Mapping[str, str], controller_pid: int
) -> tuple[float, float, float, float]:
    """CPU seconds, time to the first line, time to the end, CPU seconds of the controller."""
    command = [sys.executable, "-m", "cotenant.controller.cli.main", "queue", "--endpoint", endpoint]
    before_s, before, began_s = cpu_of(controller_pid), os.times(), time.monotonic()
    with subprocess.Popen([*command, "-o", form], env=environ, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        first_s = time.monotonic() - began_s
        process.stdout.read()
    whole_s, after = time.monotonic() - began_s, os.times()
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return cpu_s, first_s, whole_s, cpu_of(controller_pid) - before_s


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def longest_answer(client: Client) -> float:
    longest_s, began_s = 0.0, time.monotonic()
    while time.monotonic() - began_s < LOOK_FOR_S:
        asked_s = time.monotonic()
        client.ask(wire.GetStatus())
        longest_s = max(longest_s, time.monotonic() - asked_s)
        time.sleep(0.02)
    return longest_s


def restart(folder: Path, state: Path) -> tuple[float, float]:
    """CPU seconds until it is ready, and the time."""
    began_s = time.monotonic()
    process, _ = journal.launch(state, folder)
    ready_s = time.monotonic() - began_s
    cpu_s = cpu_of(process.pid)
    journal.end(process, kill=True)
    return cpu_s, ready_s


def report(rows: list[tuple[str, str]], options: Any) -> str:
    known = dict(rows)
    longest = next(value for what, value in rows if what.startswith("longest answer"))
    lines = [
        f"# A queue of {options.jobs:,} jobs",
        "",
        (
            f"With {options.jobs:,} queued jobs, cancelling {options.cancel:,} takes "
            f"{known[f'cancelling {options.cancel:,}']}, and no answer after it takes longer than {longest}."
        ),
        "",
        "| what | measured |",
        "| --- | --- |",
        *(f"| {what} | {value} |" for what, value in rows),
        "",
        (
            "Each job has 30 environment variables and a secret; no host has joined. Medians of "
            f"{options.runs} runs."
        ),
        "",
        (
            f"Command: `python bench/long_queue.py --jobs {options.jobs} --cancel {options.cancel} "
            f"--runs {options.runs}`"
        ),
        machine.sentences(sqlite=sqlite3.sqlite_version, libzmq=zmq.zmq_version()),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
