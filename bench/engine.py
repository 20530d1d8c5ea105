"""What an event costs the engine, and how many calls a simulated job takes.

    python bench/engine.py [--queued 1000,100000] [--rounds 300] [--policies fifo,sjf,srtf,castor]
                           [--parts events,calls]

**events**: the same cluster with 1,000 and with 100,000 queued jobs, the same first thousand and 99,000 more
behind them: decisions are the same (which is checked), so the ratio shows what the backlog alone costs. Both
are measured in turns, in processor time, so that it does not depend on the machine's mood. A round is what a
busy cluster sees: a job ends and others start in its place, jobs arrive, one is cancelled in the queue,
running jobs report progress and a checkpoint.

**calls**: all calls that `cProfile` counts in the whole simulator, those of C functions too, per job of one
VC of Philly on 8 hosts of 8. It is the slope between 300 and 2,300 jobs: what a run costs once is not in it,
nor is anything that depends on the machine. `castor` (minutes) also at two loads: what it asks should not
grow with the queue.

Prints tables and writes `engine.json` beside itself, with the part that was not run as it was; the table of
calls also goes into its section of `experiments/results/bench-engine.md`.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import math
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from cotenant.controller.domain import (
    Capabilities,
    Device,
    DeviceId,
    ExitVerdict,
    HostId,
    HostReport,
    JobId,
    JobSpec,
    Launch,
    Phase,
    PolicySettings,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine, EngineConfig
from cotenant.controller.performance import Profile, ProfilePoint
from cotenant.controller.policies import registry
from cotenant.controller.sim import Cluster, TraceProblem, prepare, read, simulate

HOSTS, DEVICES = 16, 8
MEMORY_MIB = 80_000
FRONT = 1000
RESULT = Path(__file__).with_suffix(".json")
PAGE = RESULT.parents[1] / "experiments" / "results" / "bench-engine.md"
SECTION = "## Calls per simulated job"
TRACE, FEW, MANY = "philly/0e4a51", 300, 2_300
SIMULATED = Cluster(hosts=8, gpus_per_host=8)
CALLS: tuple[tuple[str, float | None], ...] = (
    ("fifo", None), ("srtf", None), ("castor", None), ("castor", 0.7), ("castor", 1.5),
)  # fmt: skip
"""Policy, and offered load; None: as the trace has it."""


class Busy:
    """An engine whose devices are all taken and whose queue is kept at one length."""

    def __init__(self, policy: str, queued: int, seed: int) -> None:
        self.chance = random.Random(seed)
        config = EngineConfig(policy=PolicySettings(name=policy), keep_ended=1000)
        self.engine = Engine(registry.make, config)
        self.queued = queued
        self.now_s = 0.0
        self.count = 0
        self.decisions = 0
        self.spent_s: dict[str, list[float]] = defaultdict(list)
        for number in range(HOSTS):
            self.tell(ev.HostJoined(report=host(f"h{number:02}")))
        while len(self.engine.ledger.queue) < FRONT:
            self.arrive()
        self.start_all()
        behind = random.Random(seed + 1)
        self.spent_s.clear()
        for number in range(queued - FRONT):
            self.tell(ev.JobArrived(spec=some_job(f"b{number}", behind, longest_s=(1e6, 1e8))), 0.0)
        filling = self.spent_s["JobArrived"]
        self.filling_us = 1e6 * statistics.fmean(filling) if filling else None
        self.spent_s.clear()

    def tell(self, event: ev.AnyEvent, passed_s: float = 0.01) -> None:
        self.now_s += passed_s
        began_s = time.thread_time()
        commands = self.engine.handle(event, self.now_s)
        self.spent_s[type(event).__name__].append(time.thread_time() - began_s)
        for command in commands:
            self.decisions = hash((self.decisions, repr(getattr(command, "gang", command))))

    def arrive(self) -> None:
        self.count += 1
        self.tell(ev.JobArrived(spec=some_job(f"f{self.count}", self.chance)))

    def start_all(self) -> None:
        """Everything that loads has its first step; everything that leaves is gone."""
        for job in list(self.engine.ledger.running.jobs_by_end()):
            for host_id in job.attempt.hosts_left:
                of: dict[str, Any] = {"job_id": job.job_id, "attempt": job.attempt.number, "host_id": host_id}
                if job.phase is Phase.LOADING:
                    self.tell(
                        ev.CapabilitiesSeen(
                            **of,
                            resumable=True,
                            capabilities=Capabilities(accumulates=True),
                            step=job.progress.step,
                        )
                    )
                    self.tell(ev.FirstStepDone(**of, step=job.progress.step + 1))
                elif job.phase in (Phase.CHECKPOINTING, Phase.STOPPING):
                    self.tell(
                        ev.AttemptEnded(**of, verdict=ExitVerdict(outcome="stopped"), step=job.progress.step)
                    )

    def round(self) -> None:
        running = [job for job in self.engine.ledger.running.jobs_by_end() if job.phase is Phase.RUNNING]
        ending, reporting = self.chance.choice(running), self.chance.choice(running)
        of: dict[str, Any] = {"job_id": reporting.job_id, "attempt": reporting.attempt.number}
        self.tell(ev.ProgressSeen(**of, step=reporting.progress.step + 10, step_s=1.0))
        self.tell(
            ev.CheckpointDurable(**of, host_id=reporting.attempt.hosts_left[0], step=reporting.progress.step)
        )
        for host_id in ending.attempt.hosts_left:
            self.tell(
                ev.AttemptEnded(
                    job_id=ending.job_id,
                    attempt=ending.attempt.number,
                    host_id=host_id,
                    verdict=ExitVerdict(outcome="finished", exit_code=0),
                )
            )
        job = self.engine.jobs.get(JobId(f"f{self.chance.randrange(1, self.count + 1)}"))
        if job is not None and job.phase is Phase.QUEUED:
            self.tell(ev.CancelRequested(job_id=job.job_id, by="ann"))
        self.start_all()
        while len(self.engine.ledger.queue) < self.queued:
            self.arrive()


def host(name: str) -> HostReport:
    host_id = HostId(name)
    devices = tuple(
        Device(
            device_id=DeviceId(f"{name}/{n}"),
            host_id=host_id,
            kind="cuda",
            type="NVIDIA-A100" if int(name[1:]) % 2 else "NVIDIA-H100",
            local=f"GPU-{name}-{n}",
            memory_mib=MEMORY_MIB,
        )
        for n in range(DEVICES)
    )
    return HostReport(host_id=host_id, devices=devices, address="10.0.0.1", checkpoint_domain="nfs")


def some_job(name: str, chance: random.Random, longest_s: tuple[float, float] = (30.0, 1e5)) -> JobSpec:
    """Widths, types and memory as a lab's users ask for them: 48 shapes."""
    gpus = chance.choices((1, 2, 4, 8), (60, 20, 10, 10))[0]
    memory_mib = chance.choice((10_000, 20_000, 30_000, 70_000))
    duty = chance.choice((0.3, 0.6, 0.95))
    points = tuple(
        ProfilePoint(
            sub_batch=32 // s, accumulation_steps=s, step_s=1.0 + 0.05 * s, memory_mib=memory_mib / s
        )
        for s in (1, 2, 32)
    )
    return JobSpec(
        job_id=JobId(name),
        user=f"user{chance.randrange(20)}",
        gpus_min=gpus,
        gpus_max=gpus,
        gpu_type=chance.choice(("", "NVIDIA-A100", "NVIDIA-H100")),
        memory_mib=memory_mib,
        batch_size=32,
        expected_s=math.exp(chance.uniform(math.log(longest_s[0]), math.log(longest_s[1]))),
        profile=Profile(points=points, duty_cycle=duty),
        launch=Launch(argv=("python", f"train{chance.randrange(50)}.py")),
    )


def measure(policy: str, sizes: list[int], rounds: int) -> list[dict[str, Any]]:
    clusters = [Busy(policy, size, seed=7) for size in sizes]
    gc.collect()
    gc.freeze()  # As the controller does after a start: what is old is not looked at again and again.
    for number in range(rounds):
        for cluster in clusters if number % 2 else reversed(clusters):
            cluster.round()
    assert len({cluster.decisions for cluster in clusters}) == 1, f"{policy}: the backlog changed a decision"
    results = []
    for cluster in clusters:
        events = [seconds for of_kind in cluster.spent_s.values() for seconds in of_kind]
        events.sort()
        results.append(
            {
                "policy": policy,
                "queued": cluster.queued,
                "shapes": len(list(cluster.engine.ledger.queue.heads())),
                "events": len(events),
                "mean_us": 1e6 * statistics.fmean(events),
                "p50_us": 1e6 * events[len(events) // 2],
                "p99_us": 1e6 * events[int(len(events) * 0.99)],
                "events_per_s": len(events) / sum(events),
                "arrival_behind_us": cluster.filling_us,
                "mean_us_by_event": {
                    name: 1e6 * statistics.fmean(seconds) for name, seconds in sorted(cluster.spent_s.items())
                },
            }
        )
    gc.unfreeze()
    return results


def calls_per_job(policy: str, load: float | None) -> dict[str, Any]:
    """The slope between two lengths of the same workload."""
    trace = read(TRACE)
    offered = prepare(trace, cluster=SIMULATED, seed=0, jobs=MANY).offered_load(SIMULATED.gpus)
    counted = []
    for jobs in (FEW, MANY):
        scale = 1.0 if load is None else load / offered
        workload = prepare(trace, cluster=SIMULATED, seed=0, jobs=jobs, load_scale=scale)
        profile = cProfile.Profile()
        outcome = profile.runcall(simulate, workload, SIMULATED, policy)
        calls = sum(entry.callcount for entry in profile.getstats())
        counted.append((len(workload), calls, outcome.events))
    (few, *least), (many, *most) = counted
    slopes = [(after - before) / (many - few) for before, after in zip(least, most, strict=True)]
    names = ("calls_per_job", "events_per_job")
    return {"policy": policy, "load": load or offered, **dict(zip(names, slopes, strict=True))}


def count_calls() -> list[dict[str, Any]]:
    rows = []
    print("policy    load  events/job  calls/job")
    for policy, load in CALLS:
        row = calls_per_job(policy, load)
        rows.append(row)
        print(
            f"{policy:<8}{row['load']:>6.2f}{row['events_per_job']:>12.2f}{row['calls_per_job']:>11.0f}",
            flush=True,
        )
    table = ["| policy | offered load | events per job | calls per job |", "| --- | --- | --- | --- |"]
    table += [
        f"| {row['policy']} | {row['load']:.2f} | {row['events_per_job']:.2f} | {row['calls_per_job']:,.0f} |"
        for row in rows
    ]
    page = PAGE.read_text()
    section = re.compile(rf"({SECTION}\n.*?\n)\|.*?\|\n(?!\|)", re.DOTALL)
    PAGE.write_text(section.sub(lambda found: found[1] + "\n".join(table) + "\n", page))
    return rows


def machine() -> dict[str, Any]:
    facts = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in facts if line.startswith("model name")), "?")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
        cwd=RESULT.parent,
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "commit": commit.stdout.strip(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--queued", default="1000,100000")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--policies", default=",".join(registry.ours_available()))
    parser.add_argument("--parts", default="events,calls")
    options = parser.parse_args()
    result = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    if "calls" in options.parts:
        try:
            result["calls"] = {**told(), "rows": count_calls()}
        except TraceProblem as problem:
            print(f"calls per job: skipped, since {problem}")
    if "events" in options.parts:
        sizes = [max(FRONT, int(each)) for each in options.queued.split(",")]
        rows = time_events(sizes, options.rounds, options.policies.split(","))
        result |= {**told(), "rows": rows}
    RESULT.write_text(json.dumps({"schema": "bench-engine/1", **result}, indent=1))
    print(f"\nwritten to {RESULT.name}")
    return 0


def told() -> dict[str, Any]:
    return {"command": " ".join(["python", "bench/engine.py", *sys.argv[1:]]), "machine": machine()}


def time_events(sizes: list[int], rounds: int, policies: list[str]) -> list[dict[str, Any]]:
    rows = []
    print(f"{HOSTS} hosts with {DEVICES} devices each, all taken; {rounds} rounds\n")
    print("policy      queued  shapes   events   mean us    p50 us    p99 us   events/s   ratio of means")
    for policy in policies:
        results = measure(policy, sizes, rounds)
        for row in results:
            row["ratio"] = row["mean_us"] / results[0]["mean_us"]
            print(
                f"{policy:<8}{row['queued']:>10}{row['shapes']:>8}{row['events']:>9}{row['mean_us']:>10.1f}"
                f"{row['p50_us']:>10.1f}{row['p99_us']:>10.1f}{row['events_per_s']:>11.0f}"
                f"{row['ratio']:>12.2f}",
                flush=True,
            )
        rows += results
    return rows


if __name__ == "__main__":
    sys.exit(main())
