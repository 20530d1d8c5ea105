"""A queue of real jobs on one device: the same arrivals under one policy after the other.

Rule: what arrives is drawn from a seed before anything is measured. Lengths are stretched so that all jobs
one after the other, loads included, take `SERVICE_S`: a slice must end within its limit under every policy. A
queue that is cut off starts again, since half a queue says nothing.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Final

import msgspec

from cotenant.controller.client.connection import Client
from cotenant.controller.domain import JobSpec
from cotenant.controller.wire import clients as wire
from experiments.shared.live.run import JobRow, Play, job_row, no_job_left
from experiments.shared.live.schedule import STEPS_MIN, Arrival, Kind, Pace, draw
from hwtests import clusters
from hwtests.jobs import JOBS
from hwtests.pair_runs import agents
from hwtests.pair_table import Solo
from hwtests.pairs import list_solos, read_solo
from hwtests.slices import Run, Unit, Values

JOBS_IN_QUEUE: Final = 40
SEED: Final = 11
LOAD: Final = 1.5
"""Work that arrives, loads included, over what one device does of it meanwhile."""
SERVICE_S: Final = 360.0
TRAINED_MIN: Final = 0.2
"""Of the service: where loads leave less for training, the queue would measure loads."""
REHEARSED_JOBS: Final = 3
REHEARSED_TRAINED_S: Final = 1.0
"""Training of a rehearsal, however long its jobs load."""


def list_queue(policy: str, run: Run) -> Mapping[str, Unit]:
    return {"run": partial(run_queue, run, policy)}


def run_queue(run: Run, policy: str) -> Values:
    """Every job of the schedule, to its end."""
    solos = {name: read_solo(run, name) for name in list_solos(run)}
    drawn = draw_queue(solos, REHEARSED_JOBS if run.rehearse else JOBS_IN_QUEUE)
    train_s = REHEARSED_TRAINED_S if run.rehearse else find_training_time(drawn, solos)
    schedule = stretch(drawn, train_s, REHEARSED_TRAINED_S if run.rehearse else SERVICE_S)
    shown: list[wire.Shown] = []

    def row_of(one: wire.Shown, arrival: Arrival) -> JobRow:
        shown.append(one)
        pace = pace_of(solos[arrival.kind])
        return job_row(one, pace.expected_s(pace.steps(arrival.length_s)), pace)

    with (
        tempfile.TemporaryDirectory(prefix="gs-", ignore_cleanup_errors=True) as name,
        agents("mps" if run.is_on_gpu else "time-slicing"),
        clusters.cluster(Path(name) / "c", run.device) as cluster,
        Client(cluster.endpoint) as client,
        no_job_left(client),
    ):
        client.ask(wire.SetPolicy(name=policy))
        play = Play(client, Path(name), schedule, lambda one: spec_of(one, solos), row_of, run.say)
        play.play(lambda rows: None)
    return sum_up(policy, play.rows(), shown)


def draw_queue(solos: Mapping[str, Solo], jobs: int) -> list[Arrival]:
    """Which jobs come and how they differ in length; every kind equally often."""
    share = 1.0 / len(solos)
    kinds = {
        job.name: Kind(script=job.script, gpus=1, batch_size=job.batch_size, share=share)
        for job in JOBS
        if job.name in solos
    }
    return draw(SEED, jobs, LOAD, kinds)


def find_training_time(drawn: Sequence[Arrival], solos: Mapping[str, Solo]) -> float:
    """What loading leaves of the service for training, in seconds.

    Raises:
        ValueError: it leaves too little.
    """
    loads_s = sum(solos[arrival.kind].load_s for arrival in drawn)
    if SERVICE_S - loads_s < TRAINED_MIN * SERVICE_S:
        raise ValueError(
            f"loading {len(drawn)} jobs takes {loads_s:.0f} of {SERVICE_S:.0f} s: too little is left to train"
        )
    return SERVICE_S - loads_s


def stretch(drawn: Sequence[Arrival], train_s: float, service_s: float) -> tuple[Arrival, ...]:
    """The same jobs with so much training in all, arriving while one device does its share of the service."""
    longer = train_s / sum(arrival.length_s for arrival in drawn)
    later = service_s / LOAD / max(drawn[-1].at_s, 1e-9)
    return tuple(
        msgspec.structs.replace(
            each, length_s=round(each.length_s * longer, 2), at_s=round(each.at_s * later, 3)
        )
        for each in drawn
    )


def pace_of(solo: Solo) -> Pace:
    return Pace(step_s=solo.step_s, tail_s=0.0, load_s=solo.load_s, pause_s=0.0)


def spec_of(arrival: Arrival, solos: Mapping[str, Solo]) -> JobSpec:
    solo = solos[arrival.kind]
    steps = max(STEPS_MIN, pace_of(solo).steps(arrival.length_s))
    spec = solo.job.spec(solo.profile)
    launch = msgspec.structs.replace(spec.launch, argv=solo.job.argv(steps), uid=os.getuid(), gid=os.getgid())
    return msgspec.structs.replace(spec, name=arrival.name, iterations=steps, launch=launch)


def sum_up(policy: str, rows: Sequence[JobRow], shown: Sequence[wire.Shown]) -> Values:
    began_s = min(row.arrived_s for row in rows)
    return {
        "policy": policy,
        "jobs": len(rows),
        "jct_mean_s": fmean(row.jct_s for row in rows),
        "jct_median_s": median(row.jct_s for row in rows),
        "wait_mean_s": fmean(row.wait_s for row in rows),
        "makespan_s": max(row.arrived_s + row.jct_s for row in rows) - began_s,
        "preemptions": sum(row.preemptions for row in rows),
        "jobs_that_shared": sum(bool(one.job.co_tenants_ever) for one in shown),
        "rows": [[row.name, row.arrived_s - began_s, row.jct_s, row.wait_s, row.load_s] for row in rows],
    }
