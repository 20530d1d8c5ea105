"""What one decision of a policy that shares costs (Castor section 5.2.4: below 20 ms on 16 GPUs).

    python bench/castor_decision.py [--repeats 200]

A cluster of 16, 128 or 1,024 devices in hosts of 8 is full: on each device trains one job, each of another
kind (so that nothing one tenant teaches serves for the next); every third has been observed beside another.
One job of one device, or a gang of 8, waits, and an alarm rings: timed is the whole of `Policy.decide`, in
processor time. Three cases: sharing pays (it is decided and reasoned), it pays nowhere (every tenant was
looked at in vain), and 64 such jobs wait (as many as are tried per event). The gang's tenants hold one device
each: it needs eight partners. Prints a table, writes `castor_decision.json` beside itself and
`experiments/results/bench-castor.md`.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from pathlib import Path
from typing import Any, Final

import machine
import numpy as np

from cotenant.controller.domain import (
    Device,
    DeviceId,
    HostId,
    HostReport,
    JobId,
    JobSpec,
    Launch,
    PolicySettings,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine, EngineConfig
from cotenant.controller.performance import Profile, ProfilePoint
from cotenant.controller.planning import View
from cotenant.controller.policies import registry
from cotenant.controller.policies.base import Policy
from cotenant.controller.policies.ordered import Ordered
from cotenant.controller.policies.toolkit import PassingParameters

POLICIES: Final = ("castor", "castor-cost", "sjf-ffs", "lucid")
SIZES: Final = (16, 128, 1024)
WAITING: Final = ((1, 1), (8, 1), (1, 64))
"""Devices of each job that waits, and how many wait."""
PER_HOST: Final = 8
LIMITS_MS: Final = {16: 1.0, 1024: 20.0}
RESULT: Final = Path(__file__).with_suffix(".json")
PAGE: Final = Path(__file__).resolve().parents[1] / "experiments" / "results" / "bench-castor.md"
BATCH: Final = 32
Row = dict[str, Any]


def profile(seed: int, duty: float) -> Profile:
    """Six sub-batches, so that Algorithm 2 has all of B = 32 to choose from."""
    points = tuple(
        ProfilePoint(
            sub_batch=BATCH // s,
            accumulation_steps=s,
            step_s=1.0 + 0.03 * (s - 1) + 0.001 * (seed % 7),
            memory_mib=(350.0 if seed % 2 else 550.0) / s + 100.0 + seed % 13,
        )
        for s in (1, 2, 4, 8, 16, 32)
    )
    return Profile(points=points, duty_cycle=duty, source="bench")


def spec(number: int, *, gpus: int, expected_s: float, duty: float) -> JobSpec:
    return JobSpec(
        job_id=JobId(str(number)),
        user="ann",
        gpus_min=gpus,
        gpus_max=gpus,
        batch_size=BATCH,
        expected_s=expected_s,
        profile=profile(number, duty),
        launch=Launch(argv=("python", f"train-{number}.py")),
    )


class Filler(Ordered):
    """Fills free devices and does nothing else; jobs wait in the order of the policy that is measured."""

    def __init__(self, measured: Policy) -> None:
        super().__init__("filler", measured.queue_key, PassingParameters())


def cluster(measured: Policy, devices: int) -> Engine:
    """Full, with one job on each device."""
    config = EngineConfig(policy=PolicySettings(name="filler", ageing_s=0.0))
    engine = Engine(lambda name, parameters: Filler(measured), config)
    for host in range(devices // PER_HOST):
        host_id = HostId(f"h{host:03}")
        each = tuple(
            Device(
                device_id=DeviceId(f"{host_id}/{local}"),
                host_id=host_id,
                kind="cuda",
                type="T4",
                local=str(local),
                memory_mib=1000,
            )
            for local in range(PER_HOST)
        )
        report = HostReport(host_id=host_id, devices=each, address="10.0.0.1")
        engine.handle(ev.HostJoined(report=report), 0.0)
    for number in range(1, devices + 1):
        duty = 0.65 + 0.1 * (number % 4)
        one = spec(number, gpus=1, expected_s=2000.0 + 37.0 * (number % 101), duty=duty)
        engine.handle(ev.JobArrived(spec=one), 0.0)
        job = engine.jobs[one.job_id]
        begun = ev.FirstStepDone(
            job_id=job.job_id, attempt=job.attempt.number, host_id=job.attempt.hosts_left[0], step=1
        )
        engine.handle(begun, 0.0)
        if number > 1 and number % 3 == 0:
            pair = ev.PairObserved(
                first=one.job_id, second=JobId(str(number - 1)), first_xi=1.7, second_xi=1.8
            )
            engine.handle(pair, 0.0)
    return engine


CASES: Final[dict[str, dict[str, Any]]] = {
    "pays": {"expected_s": 60.0, "duty": 0.3},
    "pays nowhere": {"expected_s": 1e6, "duty": 1.0},
}


def measured(name: str, devices: int, gpus: int, case: str, waiting: int, repeats: int) -> Row:
    policy = registry.make(name, {})
    engine = cluster(policy, devices)
    for number in range(devices + 1, devices + 1 + waiting):
        engine.handle(ev.JobArrived(spec=spec(number, gpus=gpus, **CASES[case])), 5.0)
    gc.collect()
    gc.freeze()  # As the controller does with the state it starts with.
    row = {"policy": name, "devices": devices, "gpus": gpus, "case": case, "waiting": waiting}
    try:
        return {**row, **timed(policy, engine.ledger, repeats)}
    finally:
        gc.unfreeze()


def timed(policy: Policy, view: View, repeats: int) -> Row:
    """The decision alone, which changes nothing: it can be asked for again and again."""
    event = ev.AlarmRang()
    actions = len(policy.decide(view, event).actions)
    spent_ms = []
    for _ in range(repeats):
        began_ns = time.process_time_ns()
        policy.decide(view, event)
        spent_ms.append((time.process_time_ns() - began_ns) / 1e6)
    return {
        "actions": actions,
        "decisions": repeats,
        "mean_ms": statistics.fmean(spent_ms),
        "p50_ms": float(np.percentile(spent_ms, 50)),
        "p99_ms": float(np.percentile(spent_ms, 99)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=200)
    asked = parser.parse_args()
    rows = []
    for devices in SIZES:
        for policy in POLICIES:
            for gpus, waiting in WAITING:
                for case in CASES:
                    repeats = max(20, asked.repeats // (1 + devices // 128) // (1 if waiting == 1 else 4))
                    rows.append(measured(policy, devices, gpus, case, waiting, repeats))
                    print(line(rows[-1]))
    limits_ms = {str(devices): limit for devices, limit in LIMITS_MS.items()}
    result = {"rows": rows, "limits_ms": limits_ms, "machine": machine.facts(numpy=np.__version__)}
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    PAGE.write_text(page(rows))
    print("\n".join(verdicts(rows)))


def verdicts(rows: list[Row]) -> list[str]:
    """The slowest of all policies and cases, one job waiting, against the aim."""
    told = []
    for devices, limit_ms in LIMITS_MS.items():
        slowest = max((r for r in rows if r["devices"] == devices and r["waiting"] == 1), key=_mean_ms)
        told.append(
            f"One job on {devices:,} devices: at most {slowest['mean_ms']:.2f} ms on average "
            f"({slowest['policy']}, {slowest['gpus']} GPUs, {slowest['case']}); the aim is {limit_ms:.0f} ms."
        )
    return told


def _mean_ms(row: Row) -> float:
    return float(row["mean_ms"])


def page(rows: list[Row]) -> str:
    lines = [
        "# What a decision of a policy that shares costs",
        "",
        *verdicts(rows),
        "The dearer of two cases is shown, sharing pays or pays nowhere (`castor_decision.json` has both):",
        "mean (p99) in ms of processor time.",
        "",
        f"| policy | devices | {' | '.join(f'{waiting} x {gpus} GPU' for gpus, waiting in WAITING)} |",
        "| --- | --: |" + " --: |" * len(WAITING),
    ]
    dearer = [max(pair, key=_mean_ms) for pair in zip(rows[::2], rows[1::2], strict=True)]
    for devices in (SIZES[0], SIZES[-1]):
        for policy in POLICIES:
            own = [r for r in dearer if (r["policy"], r["devices"]) == (policy, devices)]
            cells = " | ".join(f"{r['mean_ms']:.2f} ({r['p99_ms']:.2f})" for r in own)
            lines.append(f"| {policy} | {devices:,} | {cells} |")
    made = "`python bench/castor_decision.py` makes this page."
    return "\n".join([*lines, "", made, machine.sentences(numpy=np.__version__), ""])


def line(row: Row) -> str:
    return (
        f"{row['policy']:<12} {row['devices']:>5} devices, {row['waiting']:>2} x {row['gpus']} GPU, "
        f"{row['case']:<12} {row['mean_ms']:8.3f} ms mean {row['p99_ms']:8.3f} p99, {row['actions']} actions"
    )


if __name__ == "__main__":
    main()
