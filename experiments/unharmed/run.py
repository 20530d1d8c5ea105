"""What sharing costs a job with a bound, on real jobs: each pair free and under bounds, on slots of one core.

    python experiments/unharmed/run.py [--pairs loader:compute,...] [--bounds 0,1.1,1.05] [--repeats 1]
                                       [--seconds 60] [--page-only]

A run: the protected job alone, then a guest beside it, measured after `SETTLE_S` of training together. Step
times are what the jobs themselves wrote; nothing of them comes from the agent. Runs are kept in `runs.jsonl`
beside this file: one that is there is not made again. Prints the table, and writes it to
experiments/results/unharmed.md.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

sys.path.extend(str(Path(__file__).resolve().parents[2] / name) for name in ("", "bench"))

import machine

from experiments.unharmed import page

HERE: Final = Path(__file__).resolve().parent
RUNS: Final = HERE / "runs.jsonl"
PAIRS: Final = (
    "loader:compute", "loader:loader", "loader:memory", "loader:accumulating",
    "bursty:compute", "bursty:memory", "accumulating:loader", "accumulating:compute",
    "memory:loader", "compute:loader", "compute:compute", "gang:loader",
)  # fmt: skip
ALONE_S: Final = 12.0
SETTLE_S: Final = 10.0
"""A new guest loads, and its pace is found."""
FREE: Final = 10.0
"""A bound that holds nobody back: the pair is as free as without one."""
MINUTE_S: Final = 60.0


class Step(NamedTuple):
    ended_s: float
    busy_s: float
    """Processor time of the job by then."""


class Cotenant:
    """A controller and an agent in a folder of their own, with one CPU slot, or one per core for gangs."""

    def __init__(self, folder: Path, gangs: bool) -> None:
        self.folder = folder
        state = {name: str(folder) for name in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME")}
        self.env = os.environ | state
        self.env |= {"COTENANT_POLICY__NAME": "sjf-ffs", "COTENANT_PROFILER__SECONDS": "0"}
        self.env["COTENANT_LAUNCH__WARM"] = "false"
        # Nothing is known of these jobs: let every pair be tried.
        self.env["COTENANT_SHARING__GUEST_MIN"] = "0.05"
        core = str(max(os.sched_getaffinity(0)))
        prefix = () if gangs else ("taskset", "-c", core)
        slots = len(os.sched_getaffinity(0)) if gangs else 1
        self.up = self._start((*prefix, *self._argv(("up", "--devices", f"cpu:{slots}"))))
        while "error" in self.ask("queue", "-o", "json")[:200] or not self._is_up():
            time.sleep(0.2)

    def _start(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        with open(self.folder / "up.log", "ab") as log:
            return subprocess.Popen(argv, env=self.env, stdout=log, stderr=log)

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
        gpus = str(len(os.sched_getaffinity(0)) if kind == "gang" else 1)
        return self.ask("submit", "-g", gpus, "--share", share, *needs, "--", *training).strip()

    def log(self, seed: int) -> Path:
        return self.folder / f"steps-{seed}"

    def close(self) -> None:
        """Ends the jobs, then the processes: what is left would hold the slot against the next run."""
        for job in json.loads(self.ask("queue", "-o", "json"))["jobs"]:
            self.ask("cancel", job["job"])
        while json.loads(self.ask("queue", "-o", "json"))["jobs"]:
            time.sleep(0.2)
        self.up.send_signal(signal.SIGTERM)
        self.up.wait()


def steps(path: Path) -> list[Step]:
    if not path.exists():
        return []
    return [
        Step(*map(float, line.split())) for line in path.read_text().splitlines(keepends=True) if "\n" in line
    ]


def between(of: Sequence[Step], since_s: float, until_s: float) -> list[Step]:
    return [step for step in of if since_s <= step.ended_s <= until_s]


def step_times(of: Sequence[Step]) -> list[float]:
    return [after.ended_s - before.ended_s for before, after in pairwise(of)]


def run(pair: str, bound: float, seconds: float) -> dict[str, Any]:
    """One run of a pair; step times in seconds, one entry per minute of sharing."""
    kind, guest_kind = pair.split(":")
    with tempfile.TemporaryDirectory(prefix="ct-") as name:
        cluster = Cotenant(Path(name), gangs="gang" in (kind, guest_kind))
        try:
            first = cluster.submit(kind, 1, f"max={bound or FREE:g}")
            await_steps(cluster.log(1), 10)
            alone_since_s = time.monotonic()
            time.sleep(ALONE_S)
            alone_until_s = time.monotonic()
            cluster.submit(guest_kind, 2, "max=none")
            await_steps(cluster.log(2), 1)
            time.sleep(SETTLE_S)
            began_s = time.monotonic()
            time.sleep(seconds)
            ended_s = time.monotonic()
            shown = json.loads(cluster.ask("queue", "-o", "json", first))["jobs"][0]
            mine, theirs = steps(cluster.log(1)), steps(cluster.log(2))
        finally:
            cluster.close()
    alone = between(mine, alone_since_s, alone_until_s)
    guest = between(theirs, began_s, ended_s)
    minutes = []
    for minute in range(max(1, round(seconds / MINUTE_S))):
        since_s = began_s + minute * MINUTE_S
        times = sorted(step_times(between(mine, since_s, min(ended_s, since_s + MINUTE_S))))
        minutes.append(
            {
                "p50_s": median(times),
                "p99_s": times[int(0.99 * len(times))],
                "mean_s": sum(times) / len(times),
            }
        )
    alone_s = sorted(step_times(alone))
    return {
        "pair": pair,
        "bound": bound,
        "alone_p50_s": median(alone_s),
        "alone_p99_s": alone_s[int(0.99 * len(alone_s))],
        "alone_mean_s": sum(alone_s) / len(alone_s),
        "busy": (alone[-1].busy_s - alone[0].busy_s) / (alone[-1].ended_s - alone[0].ended_s),
        "minutes": minutes,
        "guest_steps_per_s": len(guest) / (ended_s - began_s),
        "told_p50": (shown.get("bound") or {}).get("ratio_p50"),
    }


def await_steps(log: Path, count: int) -> None:
    deadline_s = time.monotonic() + 90.0
    while len(steps(log)) < count:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{log}: no step within 90 s")
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", default=",".join(PAIRS))
    parser.add_argument("--bounds", default="0,1.1,1.05", help="0: none")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=MINUTE_S)
    parser.add_argument("--page-only", action="store_true", help="run nothing: only what was measured before")
    asked = parser.parse_args()
    runs = [json.loads(line) for line in RUNS.read_text().splitlines()] if RUNS.exists() else []
    for repeat in range(0 if asked.page_only else asked.repeats):
        for pair in asked.pairs.split(","):
            for bound in map(float, asked.bounds.split(",")):
                if sum((each["pair"], each["bound"]) == (pair, bound) for each in runs) > repeat:
                    continue
                try:
                    runs.append(run(pair, bound, asked.seconds))
                except TimeoutError as error:
                    print(f"{pair} under {bound:g}: {error}", file=sys.stderr)
                    continue
                with RUNS.open("a") as file:
                    file.write(json.dumps(runs[-1]) + "\n")
                print(runs[-1], flush=True)
    print(page.table(runs))
    page.write(runs, machine.facts())


if __name__ == "__main__":
    main()
