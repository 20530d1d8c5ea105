"""`cotenant run` to the first optimizer step: `python` and torchrun, cold and warm, and a preemption.

    python bench/start.py [--rounds 20] [--write PAGE]

Each way takes its turn in each round, so that the machine's mood hits all. One and two ranks of a small
model under DDP (gloo) on CPU slots of one core; controller, agent and supervisor are in the number. Warm
ones come after a cold run of their kind, once its server is ready. A rank says when its first step was done,
how much memory of its own it had by then (`Private_*` of /proc/self/smaps_rollup), and what it has used of a
processor.

A preemption: under srtf a short job of two ranks takes both slots from a long one. From the
command to stop the long one, which saves and leaves, to the first step of the short one; both start cold, or
both warm.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import machine

from cotenant.controller.cli.demo.cluster import PrivateCluster
from cotenant.controller.client.connection import Client
from cotenant.controller.domain import ENDED, JobId, Phase
from cotenant.controller.wire import clients as wire

PATIENCE_S = 180.0
COTENANT = (sys.executable, "-m", "cotenant.controller.cli.main")
LOOK_S = 0.1
SCRIPT = """
import json, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.ones(4, 8)).sum().backward()
optimizer.step()
done = time.time()
lines = [line.split() for line in open("/proc/self/smaps_rollup") if line.startswith("Private_")]
said = {"done": done, "private_mib": sum(int(each[1]) for each in lines) / 1024, "cpu_s": time.process_time()}
with open(os.path.join(sys.argv[1], os.environ["RANK"]), "w") as file:
    json.dump(said, file)
dist.barrier()
dist.destroy_process_group()
"""


LONG_SCRIPT = """
import time
import torch, torch.distributed as dist
from cotenant import checkpoint
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
state = checkpoint.Session(model, optimizer)
while True:
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    state.step_done()
    time.sleep(0.01)
"""
LONG, SHORT = "9000s", "1s"
"""What the two are expected to take."""


class Way(NamedTuple):
    launcher: str
    ranks: int
    warm: bool

    @property
    def name(self) -> str:
        return f"{self.launcher}, {self.ranks} {'rank' if self.ranks == 1 else 'ranks'}"


WAYS = tuple(Way(*each) for each in (
    ("python", 1, False), ("python", 1, True), ("python", 2, False), ("python", 2, True),
    ("torchrun", 1, False), ("torchrun", 1, True), ("torchrun", 2, False), ("torchrun", 2, True),
))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--write", type=Path, default=None, help="a page for experiments/results")
    parser.add_argument("--note", default="", help="a line about the circumstances, for the page")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cotenant-bench-")))
        cluster = stack.enter_context(PrivateCluster(folder, "cpu:2", 2048))
        client = stack.enter_context(Client(cluster.endpoint, timeout_s=PATIENCE_S))
        bench = Bench(client, cluster.endpoint, folder)
        (folder / "train.py").write_text(SCRIPT)
        (folder / "long.py").write_text(LONG_SCRIPT)
        client.ask(wire.SetPolicy(name="srtf"))
        await_servers(bench)
        taken: dict[Way, list[dict[str, float]]] = {way: [] for way in WAYS}
        trips: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(options.rounds):
            for way in WAYS:
                taken[way].append(one(bench, way))
            for warm, found in trips.items():
                found.append(round_trip(bench, warm=warm))
    text = page(taken, trips, options)
    print(text)
    if options.write is not None:
        options.write.write_text(text)


class Bench(NamedTuple):
    client: Client
    endpoint: str
    folder: Path

    def cotenant(self, verb: str, way: Way, script: str, *words: str, expected: str = "") -> str:
        """`cotenant run` or `submit`, as a process of its own; what it printed."""
        is_torchrun = way.launcher == "torchrun"
        command = ("torchrun", f"--nproc-per-node={way.ranks}") if is_torchrun else ("python",)
        flags = ["--endpoint", self.endpoint, "-g", str(way.ranks), "--env", "OMP_NUM_THREADS=1"]
        flags += ["-q"] if verb == "run" else []
        flags += [] if way.warm else ["--cold"]
        flags += ["--expect", expected] if expected else []
        done = subprocess.run(
            [*COTENANT, verb, *flags, "--", *command, str(self.folder / script), *words],
            env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(self.folder)},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def shown(self, job_id: JobId) -> wire.Shown:
        return self.client.ask(wire.ShowJob(job_id=job_id))

    def wait(self, job_id: JobId, within_s: float = PATIENCE_S) -> None:
        self.client.ask(wire.WaitJobs(job_ids=(job_id,), timeout_s=within_s))


def one(bench: Bench, way: Way, *, wants: bool = True) -> dict[str, float]:
    """One job of that kind, to its end. `wants`: that it starts warm if it should."""
    out = Path(tempfile.mkdtemp(dir=bench.folder))
    before_s = time.time()
    bench.cotenant("run", way, "train.py", str(out))
    newest = max(bench.client.ask(wire.ListJobs(include_ended=True)).jobs, key=lambda job: int(job.job_id))
    shown = bench.shown(newest.job_id)
    (attempt,) = shown.attempts
    if wants:
        check_start(way, shown)
    said = [json.loads(each.read_text()) for each in out.iterdir()]
    return {
        "run_s": max(each["done"] for each in said) - before_s,
        "launched_s": max(each["done"] for each in said) - attempt.launched_s,
        "private_mib": max(each["private_mib"] for each in said),
        "cpu_s": max(each["cpu_s"] for each in said),
    }


def round_trip(bench: Bench, *, warm: bool) -> float:
    """From the command to stop a long job to the first step of the short one for which it leaves."""
    way = Way("python", 2, warm)
    long = JobId(bench.cotenant("submit", way, "long.py", expected=LONG))
    until(bench, long, lambda shown: shown.job.phase is Phase.RUNNING and shown.job.resumable)
    out = Path(tempfile.mkdtemp(dir=bench.folder))
    short = JobId(bench.cotenant("submit", way, "train.py", str(out), expected=SHORT))
    bench.wait(short)
    for job_id in (long, short):
        check_start(way, bench.shown(job_id))
    asked_s = bench.shown(long).attempts[0].stop_requested_s
    if asked_s is None:
        raise SystemExit("the long job was not preempted")
    bench.client.ask(wire.ChangeJobs(verb="cancel", job_ids=(long,)))
    bench.wait(long)
    done_s: float = max(json.loads(each.read_text())["done"] for each in out.iterdir())
    return done_s - asked_s


def check_start(way: Way, shown: wire.Shown) -> None:
    """That its first attempt started as it should."""
    attempt = shown.attempts[0]
    if attempt.launch != ("warm" if way.warm else "cold"):
        raise SystemExit(f"{way.name}: {attempt.launch}, {attempt.launch_why}: {shown.job.reason}")


def until(bench: Bench, job_id: JobId, true: Callable[[wire.Shown], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not true(shown := bench.shown(job_id)):
        if shown.job.phase in ENDED or time.monotonic() > deadline_s:
            raise SystemExit(f"{job_id} is {shown.job.phase}: {shown.job.reason}")
        bench.wait(job_id, LOOK_S)


def await_servers(bench: Bench) -> None:
    """Cold runs, until the agent has a server for each way."""
    for launcher in ("python", "torchrun"):
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            one(bench, Way(launcher, 1, True), wants=False)
            newest = bench.client.ask(wire.ListNodes()).nodes[0].fork_servers
            try:
                one(bench, Way(launcher, 1, True))
            except SystemExit:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(1.0)
                continue
            print(f"{launcher}: {newest}", flush=True)
            break


# --- The page ----------------------------------------------------------------------------------------


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def page(
    taken: dict[Way, list[dict[str, float]]], trips: dict[bool, list[float]], options: argparse.Namespace
) -> str:
    import torch

    rows = [
        (
            "| | start | launch to first step, s: p50 (p99) | `cotenant run` to it | processor s of a rank "
            "| private MiB of a rank |"
        ),
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for way, runs in taken.items():
        launched, asked = ([run[key] for run in runs] for key in ("launched_s", "run_s"))
        rows.append(
            f"| {way.name} | {'warm' if way.warm else 'cold'} "
            f"| {statistics.median(launched):.2f} ({quantile(launched, 0.99):.2f}) "
            f"| {statistics.median(asked):.2f} ({quantile(asked, 0.99):.2f}) "
            f"| {statistics.median(run['cpu_s'] for run in runs):.2f} "
            f"| {statistics.median(run['private_mib'] for run in runs):.0f} |"
        )
    told = {
        warm: f"{statistics.median(found):.2f} ({quantile(found, 0.99):.2f})" for warm, found in trips.items()
    }
    return "\n".join([
        "# From command to first step",
        "",
        *answer(taken, trips),
        "",
        "A small model trains under DDP (gloo) with one or two ranks on CPU slots of one core.",
        "",
        *([options.note, ""] if options.note else []),
        *rows,
        "",
        "## A preemption's round trip",
        "",
        "Under `srtf` a short job of two ranks takes both slots from a long one. From the command to stop",
        "the long job to the first step of the short one it takes (p99 in brackets)",
        f"{told[False]} s cold and {told[True]} s warm.",
        "",
        f"Command: `python bench/start.py --rounds {options.rounds}`",
        machine.sentences(torch=str(torch.__version__)),
        "",
    ])  # fmt: skip


def answer(taken: dict[Way, list[dict[str, float]]], trips: dict[bool, list[float]]) -> list[str]:
    medians_s: dict[bool, list[float]] = {True: [], False: []}
    for way, runs in taken.items():
        medians_s[way.warm].append(statistics.median(run["launched_s"] for run in runs))
    warm, cold = (f"{min(of):.2f} to {max(of):.2f}" for of in (medians_s[True], medians_s[False]))
    trip_s = {warm: statistics.median(found) for warm, found in trips.items()}
    return [
        f"A warm start takes {warm} s from its launch to the first step, where a cold one takes {cold} s.",
        f"The round trip of a preemption takes {trip_s[True]:.1f} s instead of {trip_s[False]:.1f} s.",
    ]


if __name__ == "__main__":
    main()
