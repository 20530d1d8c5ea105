"""When jobs end: what one set of roll-outs costs, with so many jobs queued on 64 devices.

    python bench/eta.py [--jobs 1000] [--policies fifo,srtf,tiresias,castor] [--write PAGE]

The engine is the real one, with a full record of lengths and arrivals behind it. Seconds are processor
seconds of the process that rolls out, as the controller counts them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from random import Random
from typing import Any

import machine
import msgspec

from cotenant.controller.domain import (
    Device,
    DeviceId,
    HostId,
    HostReport,
    JobId,
    JobSpec,
    PolicySettings,
    StartAttempt,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine, EngineConfig
from cotenant.controller.history import EtaBook, question_of
from cotenant.controller.models.eta import KnownLength
from cotenant.controller.policies import registry
from cotenant.controller.sim.eta import answer

HOSTS = 8
DEVICES = 8
GAP_S = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--policies", default="fifo,srtf,tiresias,castor")
    parser.add_argument("--write", type=Path, default=None, help="a page for experiments/results")
    options = parser.parse_args()
    page = report([measured(name, options.jobs) for name in options.policies.split(",")], options)
    print(page)
    if options.write:
        options.write.write_text(page)


def measured(policy: str, jobs: int) -> tuple[str, int, int, float]:
    """Policy, jobs with an interval, bytes of the question, processor seconds."""
    engine, book = cluster(policy, jobs)
    question = question_of(engine, book, seed=0)
    found = answer(question, registry.make)
    known = sum(eta.finish is not None for eta in found.etas)
    return policy, known, len(msgspec.msgpack.encode(question)), found.cpu_s


def cluster(policy: str, jobs: int) -> tuple[Engine, EtaBook]:
    """Devices all busy, and so many jobs behind them."""
    random, book, now_s = Random(0), EtaBook(), 0.0
    engine = Engine(registry.make, EngineConfig(policy=PolicySettings(name=policy)))

    def tell(event: Any) -> list[Any]:
        commands = engine.handle(event, now_s)
        book.observe(engine, event)
        return commands

    for number in range(HOSTS):
        tell(ev.HostJoined(report=host(number)))
    for _ in range(1_000):
        told_s = random.lognormvariate(8.0, 1.5)
        book.pools.add_length(KnownLength("user", told_s, told_s * random.lognormvariate(0.0, 0.7)))
    for number in range(jobs + HOSTS * DEVICES):
        now_s += GAP_S
        spec = JobSpec(
            job_id=JobId(str(number)),
            gpus_min=(gpus := random.choice((1, 1, 1, 2, 4))),
            gpus_max=gpus,
            expected_s=random.lognormvariate(8.0, 1.5),
            resumable=True,
        )
        for command in tell(ev.JobArrived(spec=spec)):
            if isinstance(command, StartAttempt):
                tell(
                    ev.FirstStepDone(
                        job_id=command.job_id, attempt=command.attempt, host_id=command.host_id, step=1
                    )
                )
    return engine, book


def host(number: int) -> HostReport:
    host_id = HostId(f"h{number}")
    devices = tuple(
        Device(
            device_id=DeviceId(f"{host_id}/{at}"),
            host_id=host_id,
            kind="cuda",
            type="gpu",
            local=str(at),
            memory_mib=80_000,
        )
        for at in range(DEVICES)
    )
    return HostReport(host_id=host_id, devices=devices, address="10.0.0.1", checkpoint_domain="shared")


def report(rows: list[tuple[str, int, int, float]], options: Any) -> str:
    slowest = max(seconds for *_, seconds in rows)
    verdict = "below" if slowest < 10.0 else "ABOVE"
    first = (
        f"With {options.jobs:,} jobs queued on {HOSTS * DEVICES} devices one set of 12 roll-outs takes at "
        f"most {slowest:.1f} processor seconds: {verdict} the 10 s that are wanted."
    )
    lines = [
        "# What it costs to know when jobs end",
        "",
        first,
        "",
        "| policy | jobs with an interval | question | processor time |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| `{name}` | {known:,} | {size / 1e6:.1f} MB | {seconds:.1f} s |"
        for name, known, size, seconds in rows
    ]
    lines += ["", f"`python bench/eta.py --jobs {options.jobs}`. {machine.sentences()}", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
