"""The command line of a table of slices: which of them run, on what, and the page after each.

Rule: results in one folder are of one machine and one state. Each slice leaves the page whole, so a run that
is cut off keeps what it measured.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from cotenant.agent.host.locks import LOCK_DIR_ENV
from hwtests import host
from hwtests.slices import FAULTS, LIMIT_S, Outcome, Run, Slice, read_outcome, run_slice, write_whole

SAME: Final = ("GPUs", "driver", "torch", "commit", "device", "short slices")
"""What results in one folder must agree in."""

WritePages = Callable[[Run, Mapping[str, str], Mapping[str, Outcome]], None]
"""Of a run, its machine, and what became of its slices."""


def run_command(
    about: str,
    name: str,
    table: Sequence[Slice],
    write_pages: WritePages,
    out: Path,
    *,
    argv: Sequence[str] | None = None,
    memory_mib_min: int = 0,
    faults: tuple[type[Exception], ...] = FAULTS,
) -> int:
    """0: every chosen slice is over; 1: run the same again; 2: it cannot run here."""
    options = parse(about, name, table, out, argv)
    if options.list:
        print(
            "\n".join(f"{number:>2} {each.name:<15} {each.question}" for number, each in enumerate(table, 1))
        )
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # What ends us lets us end what we started.
    began_s = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began_s:5.0f} s  {text}", flush=True)

    options.out.mkdir(parents=True, exist_ok=True)
    if problem := find_obstacle(options.device, memory_mib_min):
        print(f"{name}: {problem}. Or rehearse on the CPU: --device cpu --rehearse", file=sys.stderr)
        return 2
    device = host.take_device(options.device)
    run = Run(options.out.resolve(), device, options.rehearse, say, options.seconds, options.words, faults)
    machine = host.machine(device.kind) | {"short slices": "yes" if run.rehearse else "no"}
    if problem := keep_machine(run.folder / "machine.json", machine):
        print(f"{name}: {problem}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="hw-l-") as locks:
        if not run.is_on_gpu:
            os.environ |= share_cpu(locks)
        return run_slices(run, table, options.chosen, options.minutes * 60, machine, write_pages)


def run_slices(
    run: Run,
    table: Sequence[Slice],
    chosen: Sequence[Slice],
    limit_s: float,
    machine: Mapping[str, str],
    write_pages: WritePages,
) -> int:
    left = []
    for each in chosen:
        if run_slice(each, run, limit_s).state in ("failed", "cut off"):
            left.append(each.name)
        found = {one.name: read_outcome(run.folder, one.name) for one in table}
        write_pages(run, machine, {key: outcome for key, outcome in found.items() if outcome is not None})
    run.say(f"written: {run.folder / 'page.md'}")
    if left:
        run.say(f"not over: {', '.join(left)}; run the same again to go on with them")
    return 1 if left else 0


def parse(
    about: str, name: str, table: Sequence[Slice], out: Path, argv: Sequence[str] | None
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=name, description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=out, metavar="FOLDER")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--slice", default="", metavar="N|NAME,...", help="these (see --list); else all, in order"
    )
    parser.add_argument("--minutes", type=float, default=LIMIT_S / 60, help="of each slice at most (8)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement (3)")
    parser.add_argument("--rehearse", action="store_true", help="short slices: numbers mean nothing")
    parser.add_argument("--list", action="store_true", help="list the slices and leave")
    options, words = parser.parse_known_args(argv)
    options.words = tuple(words)
    if options.minutes <= 0:
        parser.error("--minutes must be positive")
    by_name = {key: each for number, each in enumerate(table, 1) for key in (str(number), each.name)}
    wanted = options.slice.split(",") if options.slice else [each.name for each in table]
    if unknown := [key for key in wanted if key not in by_name]:
        parser.error(f"no such slice: {', '.join(unknown)}; see --list")
    options.chosen = [each for each in table if any(by_name[key] is each for key in wanted)]
    return options


def find_obstacle(device: str, memory_mib_min: int) -> str:
    """Why nothing can run here, in a sentence that says what to do; empty if it can."""
    lack = host.lacks_cluster() or (host.lacks_cuda() if device == "cuda" else host.lacks_torch())
    if lack or device == "cpu":
        return lack
    gpu = host.first_gpu()
    assert gpu is not None
    if (gpu.memory_mib or 0) < memory_mib_min:
        return f"{gpu.name} has {gpu.memory_mib} MiB, and two jobs need a GPU of {memory_mib_min} MiB"
    return ""


def share_cpu(folder: str) -> dict[str, str]:
    """Variables of a run on a CPU slot: no other agent minds it, and no GPU is seen.

    With one thread a rank: threads that wait for each other at every operation crawl on a busy machine.
    """
    return {LOCK_DIR_ENV: f"{folder}/locks", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def keep_machine(path: Path, machine: Mapping[str, str]) -> str:
    """Keep what the folder's results were measured on; what differs from that, if anything does."""
    if not path.exists():
        write_whole(path, machine)
        return ""
    before = json.loads(path.read_text())
    apart = [
        f"{name} was {before.get(name)} and is {machine[name]}"
        for name in SAME
        if before.get(name) != machine[name]
    ]
    return (
        f"{path.parent} holds results of another state ({'; '.join(apart)}): take another --out"
        if apart
        else ""
    )
