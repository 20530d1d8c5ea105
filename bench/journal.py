"""Durable submissions per second, and how long a restart takes with 10,000 jobs.

    python bench/journal.py [--seconds 5] [--jobs 10000] [--write experiments/results/bench-journal.md]

The controller is the real one, a process of its own; a submission counts when its acknowledgement came,
and that leaves after the commit is flushed to the disk. Beside it, in the same run and folder, what the
disk alone can do: one-row commits of SQLite (WAL, synchronous=FULL), which is one flush each.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import machine
import zmq

from cotenant.controller.client.connection import Client
from cotenant.controller.domain import JobId, JobSpec, Launch
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import decode, encode

OPEN = (1, 8, 64, 256)
"""Submissions under way at one time, as that many clients would have."""
KILLED = "recovery from entries alone (killed, no snapshot)"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="per measurement")
    parser.add_argument("--jobs", type=int, default=10_000, help="for the restart")
    parser.add_argument("--write", type=Path, default=None, help="a page for experiments/results")
    parser.add_argument("--note", default="", help="a line about the circumstances, for the page")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cotenant-bench-") as name:
        folder = Path(name)
        rows = [
            ("one-row commits of SQLite, nothing else", f"{disk_commits(folder, options.seconds):,.0f}/s")
        ]
        rows += list(submissions(folder, options.seconds))
        rows += list(restarts(folder, options.jobs))
    page = report(rows, options)
    print(page)
    if options.write:
        options.write.write_text(page)


def disk_commits(folder: Path, seconds: float) -> float:
    """What the disk can do: one flush per commit."""
    database = sqlite3.connect(folder / "raw.sqlite", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE entries(seq INTEGER PRIMARY KEY, data BLOB)")
    data, began_s = os.urandom(500), time.monotonic()
    for count in itertools.count():
        if (passed_s := time.monotonic() - began_s) >= seconds:
            database.close()
            return count / passed_s
        database.execute("INSERT INTO entries VALUES(NULL, ?)", (data,))
    raise AssertionError


def submissions(folder: Path, seconds: float) -> Iterator[tuple[str, str]]:
    with controller(folder / "rate", folder) as endpoint, Client(endpoint) as client:
        for width in OPEN:
            before = client.ask(wire.GetStatus()).counters["commits"]
            accepted, passed_s = submit_for(endpoint, seconds, width)
            commits = client.ask(wire.GetStatus()).counters["commits"] - before
            what = f"durable submissions, {width} under way"
            yield what, f"{accepted / passed_s:,.0f}/s, {accepted / max(1, commits):.1f} per commit"


def submit_for(endpoint: str, seconds: float, width: int) -> tuple[int, float]:
    """Keep `width` submissions under way; how many were acknowledged, and in what time."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(endpoint)
        numbers, accepted, under_way = itertools.count(1), 0, 0
        began_s = time.monotonic()
        while time.monotonic() - began_s < seconds or under_way:
            while under_way < width and time.monotonic() - began_s < seconds:
                submit(socket, next(numbers))
                under_way += 1
            assert isinstance(decode(socket.recv(), wire.AnyReply), wire.Submitted)
            accepted, under_way = accepted + 1, under_way - 1
        return accepted, time.monotonic() - began_s


def submit(socket: zmq.Socket[bytes], number: int) -> None:
    request = wire.Request(
        request_id=number, body=wire.Submit(specs=(job(),), idempotency_key=f"{os.urandom(8).hex()}")
    )
    socket.send_multipart([wire.CLIENT_MARK, encode(request)])


def job(at: int = 0) -> JobSpec:
    """One with an environment of ordinary size."""
    env = {f"VARIABLE_{number}": "value" * 5 for number in range(30)}
    launch = Launch(argv=("python", "train.py", "--lr", "0.1"), workdir="/home/somebody/project", env=env)
    return JobSpec(job_id=JobId(f"new-{at}"), name="train", expected_s=3_600.0, launch=launch)


def restarts(folder: Path, count: int) -> Iterator[tuple[str, str]]:
    state = folder / "restart"
    with controller(state, folder, "--set", "controller.snapshot_every=1000000") as endpoint:
        submit_batches(endpoint, count)
        size = sum(path.stat().st_size for path in state.iterdir())  # The last commits may be in the log.
    yield f"journal with {count:,} queued jobs", f"{size / 2**20:.1f} MiB"
    recovered = measure_restart(folder, state, stop_well=True)
    yield (
        KILLED,
        f"{recovered[0]:.2f} s; ready {recovered[1]:.2f} s after start",
    )
    recovered = measure_restart(folder, state, stop_well=False)
    yield (
        "recovery from the snapshot of an orderly end",
        f"{recovered[0]:.2f} s; ready {recovered[1]:.2f} s after start",
    )


def submit_batches(endpoint: str, count: int) -> None:
    with Client(endpoint, timeout_s=60.0) as client:
        for first in range(0, count, 100):
            client.ask(wire.Submit(specs=tuple(job(at) for at in range(min(100, count - first)))))


def measure_restart(folder: Path, state: Path, *, stop_well: bool) -> tuple[float, float]:
    began_s = time.monotonic()
    process, words = launch(state, folder)
    ready_s = time.monotonic() - began_s
    end(process, kill=not stop_well)
    return float(dict(word.split("=") for word in words[2:])["recovered_s"]), ready_s


# --- The controller --------------------------------------------------------------------------------


@contextmanager
def controller(state: Path, folder: Path, *words: str) -> Iterator[str]:
    """A running one, which is killed at the end."""
    process, ready = launch(state, folder, *words)
    try:
        yield ready[1]
    finally:
        end(process, kill=True)


def launch(state: Path, folder: Path, *words: str) -> tuple[subprocess.Popen[str], list[str]]:
    command = [sys.executable, "-m", "cotenant.controller", "--state-dir", str(state), *words]
    process = subprocess.Popen(
        [*command, "--endpoint", f"ipc://{folder}/run/c.sock"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    ready = process.stdout.readline().split()
    assert ready and ready[0] == "ready", ready
    return process, ready


def end(process: subprocess.Popen[str], *, kill: bool) -> None:
    process.kill() if kill else process.terminate()
    process.communicate(timeout=60)


# --- The page --------------------------------------------------------------------------------------


def report(rows: list[tuple[str, str]], options: Any) -> str:
    what, fastest = [row for row in rows if row[0].startswith("durable")][-1]
    width, recovered = what.partition(", ")[2], dict(rows)[KILLED].partition(";")[0]
    lines = [
        "# Durable submissions and restarts",
        "",
        f"The controller makes {fastest.partition('/s')[0]} submissions a second durable with {width}.",
        f"After a kill with {options.jobs:,} queued jobs it recovers in {recovered}.",
        "",
        "| what | measured |",
        "| --- | --- |",
        *(f"| {what} | {value} |" for what, value in rows),
        "",
        "A submission counts when its acknowledgement came: its commit was flushed to the disk before.",
        "Each job has 30 environment variables; no host has joined, so all of them wait.",
        "",
        f"Command: `python bench/journal.py --seconds {options.seconds:g} --jobs {options.jobs}`",
        machine.sentences(sqlite=sqlite3.sqlite_version, libzmq=zmq.zmq_version()),
        *([options.note] if options.note else []),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
