"""Submission to the first optimizer step: `python` and torchrun, cold and warm, side by side; and preemption.

    python bench/start.py [--rounds 20] [--write PAGE]

Each way takes its turn in each round, so that the machine's mood hits all. One and two ranks of a small
model under DDP (gloo) on CPU slots of one core; controller, agent and supervisor are in the number. Warm
ones come after a cold run of their kind, once its server is ready. A rank says when its first step was done,
how much memory of its own it had by then (`Private_*` of /proc/self/smaps_rollup), and what it has used of a
processor.

A preemption's round trip: under srtf a short job of two ranks takes both slots from a long one. From the
command to stop the long one, which saves and leaves, to the first step of the short one; both start cold, or
both warm.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import machine

from cotenant.controller.cli.demo.cluster import PrivateCluster
from cotenant.controller.client import Client
from cotenant.controller.domain import ENDED, JobId, JobSpec, Launch, Phase
from cotenant.controller.wire import ChangeJobs, ListNodes, SetPolicy, ShowJob, Shown, Submit, WaitJobs

PATIENCE_S = 180.0
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


LONG = """
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
LONG_S, SHORT_S = 9000.0, 1.0
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
    parser.add_argument("--write", type=Path, default=None, help="a page for docs/results")
    parser.add_argument("--note", default="", help="a line about the circumstances, for the page")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cotenant-bench-")))
        cluster = stack.enter_context(PrivateCluster(folder, "cpu:2", 2048))
        client = stack.enter_context(Client(cluster.endpoint, timeout_s=PATIENCE_S))
        (folder / "train.py").write_text(SCRIPT)
        (folder / "long.py").write_text(LONG)
        client.ask(SetPolicy(name="srtf"))
        await_servers(client, folder)
        taken: dict[Way, list[dict[str, float]]] = {way: [] for way in WAYS}
        trips: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(options.rounds):
            for way in WAYS:
                taken[way].append(one(client, folder, way))
            for warm, found in trips.items():
                found.append(round_trip(client, folder, warm=warm))
    text = page(taken, trips, options)
    print(text)
    if options.write is not None:
        options.write.write_text(text)


def one(client: Client, folder: Path, way: Way, *, wants: bool = True) -> dict[str, float]:
    """One job of that kind, to its end. `wants`: that it starts warm if it should."""
    out = Path(tempfile.mkdtemp(dir=folder))
    before_s = time.time()
    job_id = submit(client, folder, way, "train.py", str(out))
    client.ask(WaitJobs(job_ids=(job_id,), timeout_s=PATIENCE_S))
    shown = client.ask(ShowJob(job_id=job_id))
    (attempt,) = shown.attempts
    if wants:
        check_start(way, shown)
    said = [json.loads(each.read_text()) for each in out.iterdir()]
    return {
        "submitted_s": max(each["done"] for each in said) - before_s,
        "launched_s": max(each["done"] for each in said) - attempt.launched_s,
        "private_mib": max(each["private_mib"] for each in said),
        "cpu_s": max(each["cpu_s"] for each in said),
    }


def round_trip(client: Client, folder: Path, *, warm: bool) -> float:
    """From the command to stop a long job to the first step of the short one for which it leaves."""
    way = Way("python", 2, warm)
    long = submit(client, folder, way, "long.py", expected_s=LONG_S)
    until(client, long, lambda shown: shown.job.phase is Phase.RUNNING and shown.job.resumable)
    out = Path(tempfile.mkdtemp(dir=folder))
    short = submit(client, folder, way, "train.py", str(out), expected_s=SHORT_S)
    client.ask(WaitJobs(job_ids=(short,), timeout_s=PATIENCE_S))
    for job_id in (long, short):
        check_start(way, client.ask(ShowJob(job_id=job_id)))
    asked_s = client.ask(ShowJob(job_id=long)).attempts[0].stop_requested_s
    if asked_s is None:
        raise SystemExit("the long job was not preempted")
    client.ask(ChangeJobs(verb="cancel", job_ids=(long,)))
    client.ask(WaitJobs(job_ids=(long,), timeout_s=PATIENCE_S))
    done_s: float = max(json.loads(each.read_text())["done"] for each in out.iterdir())
    return done_s - asked_s


def submit(
    client: Client, folder: Path, way: Way, script: str, *words: str, expected_s: float | None = None
) -> JobId:
    command = ("torchrun", f"--nproc-per-node={way.ranks}") if way.launcher == "torchrun" else ("python",)
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    launch = Launch(
        argv=(*command, str(folder / script), *words),
        workdir=str(folder),
        env={"PATH": path, "OMP_NUM_THREADS": "1"},
        mode="host" if way.launcher == "torchrun" else "worker",
        warm=way.warm,
        uid=os.getuid(),
        gid=os.getgid(),
    )
    spec = JobSpec(
        job_id=JobId("new-0"), launch=launch, gpus_min=way.ranks, gpus_max=way.ranks, expected_s=expected_s
    )
    return client.ask(Submit(specs=(spec,))).job_ids[0]


def check_start(way: Way, shown: Shown) -> None:
    """That its first attempt started as it should."""
    attempt = shown.attempts[0]
    if attempt.launch != ("warm" if way.warm else "cold"):
        raise SystemExit(f"{way.name}: {attempt.launch}, {attempt.launch_why}: {shown.job.reason}")


def until(client: Client, job_id: JobId, true: Callable[[Shown], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not true(shown := client.ask(ShowJob(job_id=job_id))):
        if shown.job.phase in ENDED or time.monotonic() > deadline_s:
            raise SystemExit(f"{job_id} is {shown.job.phase}: {shown.job.reason}")
        client.ask(WaitJobs(job_ids=(job_id,), timeout_s=LOOK_S))


def await_servers(client: Client, folder: Path) -> None:
    """Cold runs, until the agent has a server for each way."""
    for launcher in ("python", "torchrun"):
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            one(client, folder, Way(launcher, 1, True), wants=False)
            newest = client.ask(ListNodes()).nodes[0].fork_servers
            try:
                one(client, folder, Way(launcher, 1, True))
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
            "| | start | launch to first step, s: p50 | p99 | submission to first step, s: p50 | p99 "
            "| processor s of a rank | private MiB of a rank |"
        ),
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for way, runs in taken.items():
        launched, submitted = ([run[key] for run in runs] for key in ("launched_s", "submitted_s"))
        rows.append(
            f"| {way.name} | {'warm' if way.warm else 'cold'} "
            f"| {statistics.median(launched):.2f} | {quantile(launched, 0.99):.2f} "
            f"| {statistics.median(submitted):.2f} | {quantile(submitted, 0.99):.2f} "
            f"| {statistics.median(run['cpu_s'] for run in runs):.2f} "
            f"| {statistics.median(run['private_mib'] for run in runs):.0f} |"
        )
    return "\n".join([
        "# From command to first step",
        "",
        __doc__.strip().split("\n\n")[2].replace("\n", " ") if __doc__ else "",
        "",
        *([options.note, ""] if options.note else []),
        *rows,
        "",
        "## A preemption's round trip",
        "",
        __doc__.strip().split("\n\n")[3].replace("\n", " ") if __doc__ else "",
        "",
        "| start | command to stop A, to first step of B, s: p50 | p99 |",
        "| --- | --- | --- |",
        *(
            f"| {'warm' if warm else 'cold'} | {statistics.median(found):.2f} | {quantile(found, 0.99):.2f} |"
            for warm, found in trips.items()
        ),
        "",
        f"Command: `python bench/start.py --rounds {options.rounds}`",
        machine.sentences(torch=str(torch.__version__)),
        "",
    ])  # fmt: skip


if __name__ == "__main__":
    main()
