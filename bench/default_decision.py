"""What an event costs the engine under the default policy while 5,000 jobs wait, on 64 and on 4,096 devices
(the aims: a 99th percentile of at most 3 and 20 ms).

    python bench/default_decision.py [--events 4000]

Jobs are those of the public Philly trace, on hosts of 8: more than 5,000 arrive as the clock starts,
the others at a load of 2. Nobody says a length: 80 % of the jobs tell theirs a minute after their first step;
all can resume; pairs slow each other down as Gavel measured on V100. Late jobs take their turns. Processor
time of `Engine.handle`, of the events after the first moment after which at least 5,000 jobs wait.

Writes `experiments/results/bench-default.md`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import machine
import numpy as np

from cotenant.controller.domain import AnyCommand
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine
from cotenant.controller.sim import Cluster, Knowledge, Scenario, World, pair_data, scenario, simulate

PAGE: Final = Path(__file__).resolve().parents[1] / "experiments" / "results" / "bench-default.md"
WAITING: Final = 5_000
LOAD: Final = 2.0
AIMS_MS: Final = {64: 3.0, 4096: 20.0}
KNOWLEDGE: Final = Knowledge(known="progress", tells=0.8)


class Enough(Exception):
    """So many events have been timed."""


class Clock:
    """Times the engine between an event and its answer."""

    def __init__(self, events: int) -> None:
        self.spent_ns: list[int] = []
        self._events, self._began_ns, self._answered_ns = events, 0, 0

    def world(self, *given: Any) -> World:
        clock = self

        class Timed(World):
            def next_event(self, alarm_s: float | None) -> ev.AnyEvent | None:
                event = super().next_event(alarm_s)
                clock._began_ns, clock._answered_ns = time.thread_time_ns(), 0
                return event

            def obey(self, commands: Sequence[AnyCommand]) -> None:
                clock._answered_ns = time.thread_time_ns()
                super().obey(commands)

        return Timed(*given)

    def look(self, engine: Engine, event: ev.AnyEvent, commands: Sequence[AnyCommand]) -> None:
        spent_ns = (self._answered_ns or time.thread_time_ns()) - self._began_ns
        if engine.now_s > 0.0 and len(engine.ledger.queue) >= WAITING:
            self.spent_ns.append(spent_ns)
        if len(self.spent_ns) >= self._events:
            raise Enough


def measured_ms(devices: int, events: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Shape (events,)."""
    cluster = Cluster(hosts=devices // 8, gpus_per_host=8)
    asked = Scenario(trace="philly", knowledge=KNOWLEDGE, hosts=cluster.hosts, launch="warm")
    trace, table = scenario.open_trace("philly"), pair_data(asked.pairs)
    workload = scenario.workload_of(asked, trace, table, 0)
    at_once = WAITING + 2 * devices
    mean_s = float(np.dot(workload.duration_s, workload.gpus)) / len(workload) / devices / LOAD
    after_s = mean_s * np.arange(1, len(workload) - at_once + 1)
    workload = replace(workload, submit_s=np.concatenate([np.zeros(at_once), after_s]))
    clock = Clock(events)
    with suppress(Enough):
        simulate(workload, cluster, "cotenant", make_world=clock.world, look=clock.look)
    return np.array(clock.spent_ns) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--events", type=int, default=4000)
    events = parser.parse_args().events
    rows = []
    for devices, aim_ms in AIMS_MS.items():
        spent_ms = measured_ms(devices, events)
        p99_ms = float(np.percentile(spent_ms, 99))
        verdict = "met" if p99_ms <= aim_ms else "NOT met"
        rows.append(
            f"| {devices:,} | {len(spent_ms):,} | {spent_ms.mean():.2f} | {np.median(spent_ms):.2f} "
            f"| {p99_ms:.2f} | {spent_ms.max():.1f} | {aim_ms:g}: {verdict} |"
        )
    lines = [
        "# What a decision of the default costs",
        "",
        f"Milliseconds of an event after the first moment, while at least {WAITING:,} jobs wait.",
        "Thousands of jobs arrive at an empty cluster at that moment. Those arrivals are not counted.",
        "They cost more, since each looks at every device that it could share.",
        "",
        "| devices | events | mean | median | p99 | longest | aim of p99 |",
        "| --: | --: | --: | --: | --: | --: | --- |",
        *rows,
        "",
        f"Made by `python bench/default_decision.py --events {events}`; its top says what is measured.",
    ]
    PAGE.write_text("\n".join([*lines, machine.sentences(numpy=np.__version__), ""]))
    print(PAGE.read_text())


if __name__ == "__main__":
    main()
