"""What sharing costs a job with a bound, on real jobs: each pair free and under bounds, on one CPU slot.

    python experiments/unharmed/run.py [--pairs compute:loader,...] [--bounds 0,1.1,1.05] [--repeats 1]
                                       [--seconds 45]

A run: the protected job alone, then a guest beside it (measured after `SETTLE_S` of training together), then
the guest alone. Step times are what the jobs themselves wrote; nothing of them comes from the agent. Runs are
kept in `runs.jsonl` beside this file: one that is there is not made again. Prints the table, and writes it to
experiments/results/unharmed.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
RUNS: Final = HERE / "runs.jsonl"
PAGE: Final = HERE.parent / "results" / "unharmed.md"
PAIRS: Final = "compute:loader,compute:compute,loader:compute,bursty:compute"
ALONE_S: Final = 12.0
SETTLE_S: Final = 10.0
"""A new guest loads, and its pace is found."""
FREE: Final = 10.0
"""A bound that holds nobody back: the pair is as free as without one."""


class Cotenant:
    """A controller and an agent with one CPU slot, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        state = {name: str(folder) for name in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME")}
        self.env = os.environ | state
        self.env |= {"COTENANT_POLICY__NAME": "sjf-ffs", "COTENANT_PROFILER__SECONDS": "0"}
        self.env["COTENANT_LAUNCH__WARM"] = "false"
        # Nothing is known of these jobs: let every pair be tried.
        self.env["COTENANT_SHARING__GUEST_MIN"] = "0.05"
        self.up = self._start("up", "--devices", "cpu:1")
        while "error" in self.ask("queue", "-o", "json")[:200] or not self._is_up():
            time.sleep(0.2)

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        with open(self.folder / "up.log", "ab") as log:
            return subprocess.Popen(self._argv(words), env=self.env, stdout=log, stderr=log)

    def _argv(self, words: Sequence[str]) -> list[str]:
        return [str(Path(sys.executable).with_name("cotenant")), *words]

    def _is_up(self) -> bool:
        return "agent ready" in (self.folder / "up.log").read_text()

    def ask(self, *words: str) -> str:
        done = subprocess.run(self._argv(words), env=self.env, capture_output=True, text=True, check=False)
        return done.stdout

    def submit(self, kind: str, seed: int, share: str) -> str:
        training = (sys.executable, str(HERE / "training.py"), kind, str(seed), str(self.log(seed)))
        needs = ("--mem", "100M", "--expect", "1h", "--iterations", "1000000")
        return self.ask("submit", "--share", share, *needs, "--", *training).strip()

    def log(self, seed: int) -> Path:
        return self.folder / f"steps-{seed}"

    def close(self) -> None:
        """Ends the jobs, then the processes: what is left would hold the slot against the next run."""
        for job in json.loads(self.ask("queue", "-o", "json"))["jobs"]:
            self.ask("cancel", job["job"])
        while json.loads(self.ask("queue", "-o", "json"))["jobs"]:
            time.sleep(0.2)
        self.up.send_signal(signal.SIGINT)
        self.up.wait()


def steps(path: Path) -> list[float]:
    return [float(line) for line in path.read_text().split()] if path.exists() else []


def step_times(ends: Sequence[float], since_s: float, until_s: float) -> list[float]:
    inside = [end for end in ends if since_s <= end <= until_s]
    return [after - before for before, after in pairwise(inside)]


def run(pair: str, bound: float, seconds: float) -> dict[str, Any]:
    """One run of a pair; step times in seconds."""
    kind, guest_kind = pair.split(":")
    with tempfile.TemporaryDirectory(prefix="ct-") as name:
        cluster = Cotenant(Path(name))
        try:
            first = cluster.submit(kind, 1, f"max={bound or FREE:g}")
            await_steps(cluster.log(1), 1)
            time.sleep(ALONE_S)
            alone_until_s = time.monotonic()
            cluster.submit(guest_kind, 2, "max=none")
            await_steps(cluster.log(2), 1)
            time.sleep(SETTLE_S)
            began_s = time.monotonic()
            time.sleep(seconds)
            ended_s = time.monotonic()
            shown = json.loads(cluster.ask("queue", "-o", "json", first))["jobs"][0]
            cluster.ask("cancel", first)
            time.sleep(2.0)
            guest_since_s = time.monotonic()
            time.sleep(ALONE_S)
            mine, theirs = steps(cluster.log(1)), steps(cluster.log(2))
        finally:
            cluster.close()
    alone = step_times(mine, alone_until_s - ALONE_S, alone_until_s)
    shared = sorted(step_times(mine, began_s, ended_s))
    guest, guest_alone = step_times(theirs, began_s, ended_s), step_times(theirs, guest_since_s, float("inf"))
    base_s = median(alone)
    p99_alone = sorted(alone)[int(0.99 * len(alone))]
    return {
        "pair": pair,
        "bound": bound,
        "alone_s": base_s,
        "mean": (sum(shared) / len(shared)) / (sum(alone) / len(alone)),
        "p50": median(shared) / base_s,
        "p99": shared[int(0.99 * len(shared))] / p99_alone,
        "guest": (len(guest) / (ended_s - began_s)) / (len(guest_alone) / ALONE_S) if guest_alone else None,
        "told_p50": (shown.get("bound") or {}).get("ratio_p50"),
    }


def await_steps(log: Path, count: int) -> None:
    deadline_s = time.monotonic() + 60.0
    while len(steps(log)) < count:
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{log}: no step within a minute")
        time.sleep(0.1)


def table(runs: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| protected : guest | bound | mean | p50 | p99 | guest's speed | both, against turns | runs |",
        "| --- | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for pair, bound in sorted({(each["pair"], each["bound"]) for each in runs}, key=lambda k: (k[0], -k[1])):
        of = [each for each in runs if (each["pair"], each["bound"]) == (pair, bound)]
        mean, p50, p99, guest = (median(each[key] for each in of) for key in ("mean", "p50", "p99", "guest"))
        said = f"{bound:g}" if bound else "none"
        lines.append(
            f"| {pair} | {said} | {mean:.2f} | {p50:.2f} | {p99:.2f} | {guest:.2f} | {1 / mean + guest:.2f} "
            f"| {len(of)} |"
        )
    return "\n".join(lines)


def write_page(runs: Sequence[dict[str, Any]], words: str) -> None:
    commit = subprocess.run(
        ("git", "rev-parse", "--short=8", "HEAD"), cwd=ROOT, capture_output=True, text=True
    )
    PAGE.write_text(
        f"""# Unharmed: what sharing costs a job with a bound

Real jobs on one CPU slot of two cores; no weights and no quotas: the kernel shares the cores among four
threads as it does. Ratios are to the job's own step time alone in the same run; the p99 is against the p99
alone. "Both" adds the speeds of the two: 1 is what taking turns gives. The first {SETTLE_S:.0f} s of training
together are left out: a guest's loading cannot be held back, and its pace is found then.

`{words}` at {commit.stdout.strip()}, {platform.machine()}, {os.cpu_count()} cores.

{table(runs)}

Where we lose: with two threads of each job on two cores the p99 of single steps is far above twice the
excess, since the kernel gives a core away in slices longer than a step; and two jobs that compute all
the time do less together than in turns, with a bound or without. A guest's speed above 1 is noise: it is
measured alone for 12 s just after the other has ended.

What this does not show: GPUs, gangs, and as many pairs and repetitions as a claim about minutes would need.
"""
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", default=PAIRS)
    parser.add_argument("--bounds", default="0,1.1,1.05")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=45.0)
    asked = parser.parse_args()
    runs = [json.loads(line) for line in RUNS.read_text().splitlines()] if RUNS.exists() else []
    for repeat in range(asked.repeats):
        for pair in asked.pairs.split(","):
            for bound in map(float, asked.bounds.split(",")):
                done = sum((each["pair"], each["bound"]) == (pair, bound) for each in runs)
                if done > repeat:
                    continue
                runs.append(run(pair, bound, asked.seconds))
                with RUNS.open("a") as file:
                    file.write(json.dumps(runs[-1]) + "\n")
                print(runs[-1], flush=True)
    print(table(runs))
    write_page(runs, "python experiments/unharmed/run.py " + " ".join(sys.argv[1:]))


if __name__ == "__main__":
    main()
