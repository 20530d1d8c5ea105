"""What placing waiting jobs together costs: bench/placement.py [--clusters 60] [--seed 1]

Ten jobs of 1, 2, 4 and 8 GPUs wait, and an eleventh behind them, on 64 hosts of 8 GPUs on which others hold
any number: first GPUs alone, then with cores and main memory, on hosts of two types. Timed are the solver's
part and the whole decision under sjf, wall time and processor time, each cluster once. `given up`: solutions
that were not found within the solver's limit, where best fit decides; `moved`: decisions unlike best fit's.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from statistics import median, quantiles

import machine

from cotenant.controller.domain import (
    Decision,
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
from cotenant.controller.papers.rltune import placement
from cotenant.controller.policies import registry
from cotenant.controller.policies.base import Parameters, Policy

HOSTS, GPUS, WAITING = 64, 8, 11
NOBODY = "nobody"
"""A policy that starts nothing."""
GIB = 1024


class Timed(placement.Highs):
    """What it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.wall_s: list[float] = []
        self.cpu_s: list[float] = []
        self.given_up = 0

    def solve(self, problem: placement.PlacementProblem) -> placement.PlacementSolution | None:
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        found = super().solve(problem)
        self.wall_s.append(time.perf_counter() - began_s)
        self.cpu_s.append(time.process_time() - began_cpu_s)
        self.given_up += found is None
        return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clusters", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(
        f"{options.clusters} clusters each, seed {options.seed}; "
        f"the solver's limit is {placement.LIMIT_S * 1e3:g} ms"
    )
    print(f"{'':20} {'median':>9} {'p90':>9} {'most':>9} {'given up':>9} {'moved':>9}   (ms)")
    for text, with_hosts in (("GPUs alone", False), ("with cores, memory", True)):
        rng, solver = random.Random(options.seed), Timed()
        _decide(
            busy(rng, with_hosts), placement.PlacedTogether(registry.make("sjf", {}), solver)
        )  # Imports the library.
        solver.wall_s, solver.cpu_s, solver.given_up = [], [], 0
        decisions_s, moved = list[float](), 0
        for _ in range(options.clusters):
            engine = busy(rng, with_hosts)
            began_s = time.perf_counter()
            decision = _decide(engine, placement.PlacedTogether(registry.make("sjf", {}), solver))
            decisions_s.append(time.perf_counter() - began_s)
            moved += any(action.reason.code == "placed-together" for action in decision.actions)
        _show(f"{text}, solver", solver.wall_s, f"{solver.given_up:9}", f"{moved:9}")
        _show("  processor time", solver.cpu_s)
        _show("  decision", decisions_s)
    print(machine.sentences())


def _show(what: str, times_s: Sequence[float], *more: str) -> None:
    p90 = quantiles(times_s, n=10)[-1]
    print(
        f"{what:20} " + " ".join([*(f"{s * 1e3:9.1f}" for s in (median(times_s), p90, max(times_s))), *more])
    )


def _decide(engine: Engine, policy: placement.PlacedTogether) -> Decision:
    return policy.decide(engine.ledger, ev.AlarmRang())


def busy(rng: random.Random, with_hosts: bool) -> Engine:
    """Hosts that others hold in part, and the waiting jobs: nothing was decided about them."""
    engine = Engine(_make, EngineConfig(policy=PolicySettings(name="fifo", ageing_s=0.0)))
    for number in range(HOSTS):
        type = rng.choice(("A100", "H100")) if with_hosts else "A100"
        engine.handle(ev.HostJoined(report=_host(f"h{number:02}", type)), 0.0)
    for number in range(HOSTS):
        if held := rng.randint(0, GPUS):
            asked = (8 * held, rng.choice((16, 64)) * held * GIB) if with_hosts else (0, 0)
            engine.handle(ev.JobArrived(spec=_spec(f"held-{number}", held, *asked, on=f"h{number:02}")), 0.0)
    engine.handle(ev.PolicyChanged(name=NOBODY, parameters={}), 0.0)
    for number in range(WAITING):
        gpus = rng.choice((1, 1, 2, 2, 4, 4, 8))
        asked = (8 * gpus, rng.choice((16, 64, 128)) * gpus * GIB) if with_hosts else (0, 0)
        engine.handle(ev.JobArrived(spec=_spec(f"waits-{number}", gpus, *asked)), 0.0)
    return engine


def _make(name: str, parameters: Parameters) -> Policy:
    return registry.MissingPolicy(name, "") if name == NOBODY else registry.make(name, parameters)


def _host(name: str, type: str) -> HostReport:
    host_id = HostId(name)
    devices = tuple(
        Device(
            device_id=DeviceId(f"{host_id}/{n}"),
            host_id=host_id,
            kind="cuda",
            type=type,
            local=str(n),
            memory_mib=81_920,
        )
        for n in range(GPUS)
    )
    return HostReport(
        features=(name,), host_id=host_id, devices=devices, cpus=96, memory_mib=1024 * GIB, address="10.0.0.1"
    )


def _spec(name: str, gpus: int, cpus: int, host_memory_mib: int, on: str = "") -> JobSpec:
    return JobSpec(
        job_id=JobId(name),
        gpus_min=gpus,
        gpus_max=gpus,
        features=(on,) if on else (),
        cpus=cpus,
        host_memory_mib=host_memory_mib,
        expected_s=100.0,
    )


if __name__ == "__main__":
    main()
