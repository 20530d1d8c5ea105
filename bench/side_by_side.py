"""Two states of the code, simulated in turns: how long each takes, and whether every decision is the same.

Rule: a change for speed is believed only from here. Each state runs in processes of its own, the two take
turns, and what is compared is the median of the pairs' ratios: whatever else the machine does meets both.
Decisions are compared apart from the timing: a digest of every decision, refusal and command, byte for
byte, and of the engine's state at the end.

    python bench/side_by_side.py --before HEAD~3 --runs castor:synth:earth:2000,patient:philly/6214e9:1000
    python bench/side_by_side.py --before HEAD~3 --all
    python bench/side_by_side.py --before HEAD~3 --twelve [--names 'srtf;pcs:elastic=true']

`--all` compares decisions only: every policy on three Philly VCs, and 80 whole clusters with their faults
(`same_decisions.py`). It takes about two minutes on two quiet cores. `--twelve` compares all that policies
decide and tell on twelve workloads (`twelve_workloads.py`): every name, with variants of its parameters.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, NamedTuple

import machine
import same_decisions

ROOT: Final = Path(__file__).resolve().parents[1]
DEFAULT: Final = "castor:synth:earth:1500,castor-cost:synth:earth:1500,patient:philly/6214e9:2000"


class Asked(NamedTuple):
    """One workload under one policy, as in `castor:synth:earth:2000`."""

    policy: str
    trace: str
    jobs: int

    @classmethod
    def read(cls, text: str) -> Asked:
        policy, _, rest = text.partition(":")
        trace, _, jobs = rest.rpartition(":")
        if not trace or not jobs.isdecimal():
            raise SystemExit(f"{text!r} is not POLICY:TRACE:JOBS, as in castor:philly/b436b2:2000")
        return cls(policy, trace, int(jobs))

    def __str__(self) -> str:
        return f"{self.policy}, {self.trace}, {self.jobs:,} jobs"


class Pair(NamedTuple):
    """Of one workload: processor seconds of each turn, before and after; whether decisions are equal."""

    asked: Asked
    before_s: list[float]
    after_s: list[float]
    equal: bool

    @property
    def ratios(self) -> list[float]:
        return [one / other for one, other in zip(self.before_s, self.after_s, strict=True)]

    def row(self) -> str:
        jobs, before_s, after_s = self.asked.jobs, *map(statistics.median, (self.before_s, self.after_s))
        ratios = f"{statistics.median(self.ratios):.2f} ({min(self.ratios):.2f} to {max(self.ratios):.2f})"
        speeds = f"{jobs / before_s:,.0f} | {jobs / after_s:,.0f}"
        return f"| {self.asked} | {speeds} | {ratios} | {'the same' if self.equal else 'DIFFERENT'} |"


# --- In a process of one state of the code -------------------------------------------------------------


def simulated(asked: Asked, seed: int, failures_h: float | None, *, digest: bool) -> dict[str, Any]:
    """Processor seconds of a simulation and, instead of a time that means something, a digest."""
    run = partial(same_decisions.simulate_once, asked.policy, asked.trace, asked.jobs, seed, failures_h)
    if digest:
        return {"digest": same_decisions.digest_of(run)}
    return {"cpu_s": run().cpu_s}


# --- Around it -----------------------------------------------------------------------------------------


@contextmanager
def states(before: str) -> Iterator[tuple[Path, Path]]:
    """Folders to import from: the commit as it was, and the working tree as it is."""
    with tempfile.TemporaryDirectory() as folder:
        one, other = Path(folder, "before"), Path(folder, "after")
        archive = subprocess.run(["git", "archive", before], cwd=ROOT, capture_output=True, check=False)
        if archive.returncode:
            raise SystemExit(archive.stderr.decode().strip())
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
            tar.extractall(one / "cotenant", filter="data")
        other.mkdir()
        (other / "cotenant").symlink_to(ROOT)
        yield one, other


def program_of(path: Path, name: str, *words: str) -> list[str]:
    """A state runs its own program, which knows where its modules are; one that lacks it runs ours."""
    own = path / "cotenant" / "bench" / name
    return [sys.executable, str(own if own.exists() else ROOT / "bench" / name), *words]


def environment_of(path: Path) -> dict[str, str]:
    """What imports `cotenant`, and `tests` beside it, from that state."""
    return {**os.environ, "PYTHONPATH": f"{path}:{path / 'cotenant'}", "PYTHONHASHSEED": "0"}


def asked_of(path: Path, asked: Asked, *more: str) -> dict[str, Any]:
    command = program_of(path, "side_by_side.py", "--child", f"{asked[0]}:{asked[1]}:{asked[2]}", *more)
    done = subprocess.run(command, env=environment_of(path), stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def compared(asked: Asked, paths: tuple[Path, Path], rounds: int, seeds: int) -> Pair:
    equal = True
    for seed in range(seeds):
        for failures in ((), ("--failures", "200")):
            digests = {
                asked_of(p, asked, "--digest", "--seed", str(seed), *failures)["digest"] for p in paths
            }
            equal = equal and len(digests) == 1
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            times[which].append(asked_of(paths[which], asked)["cpu_s"])
    return Pair(asked, *times, equal)


def compare_all(paths: tuple[Path, Path], program: str, *words: str) -> bool:
    """Whether both states decide the same everywhere; prints each run that differs."""
    children = [
        subprocess.Popen(
            program_of(path, program, *words),
            env=environment_of(path),
            stdout=subprocess.PIPE,
            text=True,
        )
        for path in paths
    ]
    runs = different = 0
    for lines in zip_longest(*(child.stdout or () for child in children), fillvalue="nothing\tended early"):
        (before, what), (after, _) = (line.rstrip("\n").split("\t", 1) for line in lines)
        runs += 1
        if before != after:
            different += 1
            print(f"DIFFERENT: {what}", flush=True)
        elif runs % 20 == 0:
            print(f"{runs} runs, {different} different", file=sys.stderr, flush=True)
    failed = [child.wait() for child in children]
    print(
        f"{runs} runs: {different} decided differently" if different else f"{runs} runs: decisions the same"
    )
    return not different and not any(failed) and runs > 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--before", default="HEAD", help="a commit; what it is compared with is the working tree"
    )
    parser.add_argument("--runs", default=DEFAULT, help="POLICY:TRACE:JOBS, with commas between them")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of timed runs")
    parser.add_argument("--seeds", type=int, default=1, help="seeds whose decisions are compared")
    parser.add_argument("--all", action="store_true", help="decisions of every policy, without timing")
    parser.add_argument("--twelve", action="store_true", help="all that policies tell, on twelve workloads")
    parser.add_argument("--names", default="", help="with --twelve: only these, with semicolons between them")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--digest", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--failures", type=float, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.child:
        found = simulated(Asked.read(flags.child), flags.seed, flags.failures, digest=flags.digest)
        print(json.dumps(found))
        return 0
    if flags.all:
        with states(flags.before) as paths:
            return 0 if compare_all(paths, "same_decisions.py") else 1
    if flags.twelve:
        with states(flags.before) as paths:
            return 0 if compare_all(paths, "twelve_workloads.py", "--names", flags.names) else 1
    print("| whole simulator | before, jobs/CPU s | after, jobs/CPU s | before / after | decisions |")
    print("| --- | --- | --- | --- | --- |", flush=True)
    all_equal = True
    with states(flags.before) as paths:
        for text in flags.runs.split(","):
            pair = compared(Asked.read(text), paths, flags.rounds, flags.seeds)
            all_equal = all_equal and pair.equal
            print(pair.row(), flush=True)
    print(f"\nMedians of {flags.rounds} turns each, in brackets the range of ratios. Decisions: digests of")
    print(f"{2 * flags.seeds} runs of each row, half of them with failing hosts. Before: {flags.before}.")
    print(f"Command: `python bench/side_by_side.py {' '.join(sys.argv[1:])}`")
    print(machine.sentences())
    return 0 if all_equal else 1


if __name__ == "__main__":
    sys.exit(main())
