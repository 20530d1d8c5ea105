"""What one decision about an hp job costs under GFS (section 3.4.2: below 1 s; ours: below 10 ms on 287
hosts).

    python bench/gfs_decision.py [--repeats 30]

Clusters of 287 and 1,000 hosts of 8 devices, and one like the released trace's: 4,278 hosts of six types,
10,412 devices. All are full: seven of ten devices are hp's, the others hold spot jobs of 1, 2, 4 and 8
devices. One hp job arrives: of one device, of a whole host, or of four hosts, so that spot jobs have to
leave; timed is the whole of `Policy.decide`, in processor time. Prints a table and writes
`experiments/results/bench-gfs.md`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import machine

from cotenant.controller.domain import (
    Device,
    DeviceId,
    HostId,
    HostReport,
    JobId,
    JobSpec,
    PolicySettings,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine, EngineConfig
from cotenant.controller.policies import registry

PAGE: Final = Path(__file__).resolve().parents[1] / "experiments" / "results" / "bench-gfs.md"
POLICIES: Final = ("gfs", "gfs-rise")
RELEASED: Final = (
    ("a100", 432, 8), ("a10", 2494, 1), ("h800", 219, 8), ("series-1", 420, 1), ("series-1", 569, 2),
    ("series-2", 122, 8), ("a800", 22, 8),
)  # fmt: skip
CLUSTERS: Final = {287: (("a100", 287, 8),), 1000: (("a100", 1000, 8),), 4278: RELEASED}
GPUS: Final = (1, 8, 32)
LIMIT_MS: Final = 10.0
SPOT_WIDTHS: Final = (1, 2, 1, 4, 8, 1)


def hosts_of(kinds: Sequence[tuple[str, int, int]]) -> list[HostReport]:
    found: list[HostReport] = []
    for type, count, devices in kinds:
        for _ in range(count):
            host_id = HostId(f"h{len(found):05}")
            found.append(
                HostReport(
                    host_id=host_id,
                    devices=tuple(
                        Device(
                            device_id=DeviceId(f"{host_id}/{n}"), host_id=host_id, kind="cuda", type=type,
                            local=str(n), memory_mib=80_000,
                        )
                        for n in range(devices)
                    ),
                    address="10.0.0.1",
                    checkpoint_domain="shared",
                )
            )  # fmt: skip
    return found


class Filled:
    """A cluster that is full under one policy."""

    def __init__(self, policy: str, kinds: Sequence[tuple[str, int, int]]) -> None:
        config = EngineConfig(policy=PolicySettings(name="sjf", ageing_s=0.0, stop_deadline_s=1e9))
        self.engine = Engine(registry.make, config)
        self._number = 0
        for report in hosts_of(kinds):
            self.engine.handle(ev.HostJoined(report=report), 0.0)
        for type, count, devices in kinds:
            for number in range(count):
                self._fill(type, devices, spot=number % 10 >= 7)
        self.engine.handle(ev.PolicyChanged(name=policy), 100.0)

    def _fill(self, type: str, devices: int, *, spot: bool) -> None:
        left = devices
        while left:
            gpus = min(left, SPOT_WIDTHS[self._number % len(SPOT_WIDTHS)]) if spot else left
            job_id = self.submit(type, gpus, "spot" if spot else "hp", 0.0)
            job = self.engine.jobs[job_id]
            first = ev.FirstStepDone(
                job_id=job_id, attempt=job.attempt.number, host_id=job.attempt.hosts_left[0], step=1
            )
            self.engine.handle(first, self.engine.now_s)
            left -= gpus

    def submit(self, type: str, gpus: int, job_class: str, at_s: float) -> JobId:
        self._number += 1
        job_id = JobId(str(self._number))
        spec = JobSpec(
            job_id=job_id, gpus_min=gpus, gpus_max=gpus, gpu_type=type, resumable=True, expected_s=5000.0,
            job_class="hp" if job_class == "hp" else "spot",
        )  # fmt: skip
        self.engine.handle(ev.JobArrived(spec=spec), max(at_s, self.engine.now_s))
        return job_id


def timed(filled: Filled, gpus: int, repeats: int) -> list[float]:
    """Milliseconds of the policy's answer to an hp job that has just come."""
    engine, found = filled.engine, list[float]()
    policy, asked = engine.current.policy, engine.current.policy.decide

    def decide(view, event):  # type: ignore[no-untyped-def]
        began_ns = time.thread_time_ns()
        decision = asked(view, event)
        found.append((time.thread_time_ns() - began_ns) / 1e6)
        assert decision.actions
        return type(decision)()

    policy.decide = decide  # type: ignore[method-assign]
    for _ in range(repeats):
        job_id = filled.submit("a100", gpus, "hp", engine.now_s + 1.0)
        policy.decide = asked  # type: ignore[method-assign]
        engine.handle(ev.HoldRequested(job_id=job_id, by="bench"), engine.now_s)
        policy.decide = decide  # type: ignore[method-assign]
    policy.decide = asked  # type: ignore[method-assign]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=30)
    repeats = parser.parse_args().repeats
    rows, worst = [], 0.0
    for hosts, kinds in CLUSTERS.items():
        for policy in POLICIES:
            filled = Filled(policy, kinds)
            cells = []
            for gpus in GPUS:
                found = timed(filled, gpus, repeats)
                median, most = statistics.median(found), max(found)
                worst = max(worst, median) if hosts == 287 else worst
                cells.append(f"{median:.2f} ({most:.2f})")
            rows.append(f"| {hosts:,} | `{policy}` | {' | '.join(cells)} |")
            print(rows[-1], flush=True)
    verdict = "below" if worst < LIMIT_MS else "NOT below"
    said = (
        f"**On 287 hosts the slowest median is {worst:.2f} ms: {verdict} the {LIMIT_MS:g} ms that were asked "
        "for (GFS: below 1 s).**"
    )
    how = (
        "The cluster is full, and spot jobs have to leave. The table has the median (longest) "
        "`Policy.decide` in ms of processor time, by the GPUs asked for; 4,278 hosts are those of the "
        "released trace. Made by "
        f"`python bench/gfs_decision.py --repeats {repeats}`."
    )
    titles = [
        f"| hosts | policy | {' | '.join(f'{gpus} GPU' for gpus in GPUS)} |",
        "| --- | --- |" + " --- |" * len(GPUS),
    ]
    page = [
        "# One decision about an hp job",
        "",
        said,
        "",
        how,
        "",
        *titles,
        *rows,
        "",
        machine.sentences(),
        "",
    ]
    PAGE.write_text("\n".join(page))
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
