"""What a decision of an order costs with a long queue: bench/order_decision.py [--runs 200] [policy ...]

256 and 1,000 jobs of 1, 2, 4 and 8 GPUs wait on 64 hosts of 8; what is timed is `decide` alone, in processor
time, where one device is free (the hard case: all is looked at and little is found) and where a host is.
"""

from __future__ import annotations

import argparse
import random
import time
from statistics import median

import machine

from cotenant.controller.domain import Device, DeviceId, HostId, HostReport, JobId, JobSpec, PolicySettings
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine, EngineConfig
from cotenant.controller.policies import registry
from cotenant.controller.sim import policies_named

POLICIES = (
    "fifo", "fifo:backfill=easy", "sjf", "f1", "wfp3", "wfp3:backfill=easy", "unicep:backfill=any", "qssf",
    "slurm-multifactor",
)  # fmt: skip
HOSTS, GPUS = 64, 8


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("policies", nargs="*", default=POLICIES)
    parser.add_argument("--runs", type=int, default=200)
    options = parser.parse_args()
    print(
        f"{'policy':36} {'256, one free':>14} {'256, a host':>14} {'1000, one free':>14} {'1000, a host':>14}"
    )
    for text in options.policies:
        cells = [spent_ms(text, jobs, free, options.runs) for jobs in (256, 1000) for free in (1, GPUS)]
        print(f"{text:36} " + " ".join(f"{cell:11.3f} ms" for cell in cells))
    print(machine.sentences())


def spent_ms(text: str, jobs: int, free: int, runs: int) -> float:
    """Median of one decision."""
    (choice,) = policies_named(text)
    engine = Engine(registry.make, EngineConfig(policy=PolicySettings(name="fifo", ageing_s=0.0)))
    for number in range(HOSTS):
        engine.handle(joined(number), 0.0)
    chance = random.Random(0)
    held = HOSTS * GPUS - free
    for number in range(1, held + 1):
        engine.handle(arrived(number, 1, chance), 0.0)
    for number in range(held + 1, held + 1 + jobs):  # The first is too wide, so that fifo starts none.
        gpus = 512 if number == held + 1 else chance.choice((1, 2, 4, 8))
        engine.handle(arrived(number, gpus, chance), float(number))
    policy = registry.make(choice.name, choice.parameters)
    engine.ledger.queue.reorder(policy.queue_key)
    engine.ledger.begin(1e5)
    view, event, times = engine.ledger, ev.AlarmRang(), []
    for _ in range(runs):
        began_ns = time.thread_time_ns()
        policy.decide(view, event)
        times.append((time.thread_time_ns() - began_ns) / 1e6)
    return median(times)


def joined(number: int) -> ev.AnyEvent:
    host_id = HostId(f"h{number:02}")
    devices = tuple(
        Device(
            device_id=DeviceId(f"{host_id}/{at}"), host_id=host_id, kind="cuda", type="gpu", local=str(at),
            memory_mib=80_000,
        )
        for at in range(GPUS)
    )  # fmt: skip
    return ev.HostJoined(report=HostReport(host_id=host_id, devices=devices, address="10.0.0.1"))


def arrived(number: int, gpus: int, chance: random.Random) -> ev.JobArrived:
    expected_s = 10 ** chance.uniform(1.5, 5.0)
    return ev.JobArrived(
        spec=JobSpec(
            job_id=JobId(str(number)), gpus_min=gpus, gpus_max=gpus, expected_s=expected_s, load_s=30.0
        )
    )


if __name__ == "__main__":
    main()
