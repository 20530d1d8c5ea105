"""A job with a bound beside one without: its step times alone and together, as the job itself wrote them.

Rule: nothing that is judged comes from the agent. The job trains alone first, in the same run; a guest's
loading and the time in which its pace is found are left out, since neither is what a bound promises.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Final, NamedTuple
from unittest.mock import patch

from cotenant.controller.client.connection import Client
from cotenant.controller.domain import JobId, JobSpec, Launch
from cotenant.controller.wire import clients as wire
from experiments.gpu_study.parts import Study, Unit, Values
from experiments.shared.live.run import WentWrong, no_job_left
from hwtests import clusters
from hwtests.device import PASSED_ON
from hwtests.pair_runs import agents

PAIRS: Final = ("compute:compute", "compute:loader", "memory:compute", "loader:memory")
"""Protected job : guest."""
REHEARSED: Final = ("compute:loader",)
TRAINING: Final = Path(__file__).with_name("training.py")
SETTINGS: Final = {"COTENANT_SHARING__GUEST_MIN": "0.05"}
"""Nothing is known of these jobs: let every pair be tried."""
MEMORY_MIB: Final = {"cuda": 4096, "cpu": 1024}
STEPS_WITHIN_S: Final = 120.0
LOOK_S: Final = 0.1


class Lengths(NamedTuple):
    """How long each stretch of a run is."""

    alone_s: float
    settle_s: float
    together_s: float


LENGTHS: Final = Lengths(alone_s=12.0, settle_s=10.0, together_s=60.0)
LENGTHS_REHEARSED: Final = Lengths(alone_s=2.0, settle_s=2.0, together_s=3.0)


def list_bounds(bound: float, study: Study) -> Mapping[str, Unit]:
    """`bound` 0: none."""
    pairs = REHEARSED if study.rehearse else PAIRS
    return {pair: partial(measure_bound, study, pair, bound) for pair in pairs}


def measure_bound(study: Study, pair: str, bound: float) -> Values:
    """One run of a pair; ratios are to the protected job's own step times alone."""
    kinds = pair.split(":")
    lengths = LENGTHS_REHEARSED if study.rehearse else LENGTHS
    with (
        tempfile.TemporaryDirectory(prefix="gs-", ignore_cleanup_errors=True) as name,
        patch.dict(os.environ, SETTINGS),
        agents("mps" if study.is_on_gpu else "time-slicing"),
        clusters.cluster(Path(name) / "c", study.device) as cluster,
        Client(cluster.endpoint) as client,
        no_job_left(client),
    ):
        logs = [Path(name) / f"steps-{number}" for number in (1, 2)]
        client.ask(wire.SetPolicy(name="sjf-ffs", parameters={"part": False}))
        shares = (f"max={bound:g}" if bound else "max=none", "max=none")
        specs = [
            spec_of(study, kind, log, share) for kind, log, share in zip(kinds, logs, shares, strict=True)
        ]
        first = client.ask(wire.Submit(specs=(specs[0],))).job_ids[0]
        marks_s = [await_steps(client, first, logs[0], 3), wait_for(lengths.alone_s)]
        second = client.ask(wire.Submit(specs=(specs[1],))).job_ids[0]
        await_steps(client, second, logs[1], 1)
        marks_s += [wait_for(lengths.settle_s), wait_for(lengths.together_s)]
        bounded = client.ask(wire.ShowJob(job_id=first)).job.bound
        (device,) = (each for node in client.ask(wire.ListNodes()).nodes for each in node.devices)
        mine, theirs = (read_ends(log) for log in logs)
        client.ask(wire.ChangeJobs(verb="cancel", job_ids=(second, first)))
        client.ask(wire.WaitJobs(job_ids=(first, second), timeout_s=STEPS_WITHIN_S))
    return {
        "sharing": device.sharing,
        "bound": bound,
        **compare(mine, theirs, marks_s),
        "told_p50": bounded.ratio_p50 if bounded is not None else None,
    }


def spec_of(study: Study, kind: str, log: Path, share: str) -> JobSpec:
    small = () if study.is_on_gpu else ("--small",)
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    launch = Launch(
        argv=(sys.executable, str(TRAINING), kind, log.name[-1], str(log), *small),
        workdir=str(log.parent),
        env=environment,
        zero_code=("progress",),
        warm=False,
        uid=os.getuid(),
        gid=os.getgid(),
    )
    return JobSpec(
        job_id=JobId("new-0"),
        name=f"{kind}-{log.name[-1]}",
        memory_mib=MEMORY_MIB[study.device.kind],
        batch_size=64,
        iterations=1_000_000,
        expected_s=3600.0,
        share=share,
        launch=launch,
    )


def compare(mine: Sequence[float], theirs: Sequence[float], marks_s: Sequence[float]) -> Values:
    """Step times in the stretch alone and in the stretch together, from when steps ended.

    Args:
        marks_s: begin and end of the stretch alone, begin and end of the stretch together.

    Raises:
        ValueError: a stretch has too few steps to say anything.
    """
    alone_s = sorted(times_between(mine, marks_s[0], marks_s[1]))
    shared_s = sorted(times_between(mine, marks_s[2], marks_s[3]))
    if min(len(alone_s), len(shared_s)) < 2:
        raise ValueError(f"too few steps: {len(alone_s)} alone, {len(shared_s)} together")
    steps = len(times_between(theirs, marks_s[2], marks_s[3]))
    return {
        "alone_step_s": median(alone_s),
        "steps": len(shared_s),
        "p50": median(shared_s) / median(alone_s),
        "mean": fmean(shared_s) / fmean(alone_s),
        "p99": quantile(shared_s, 0.99) / quantile(alone_s, 0.99),
        "guest_steps_per_s": steps / (marks_s[3] - marks_s[2]),
    }


def quantile(ordered: Sequence[float], part: float) -> float:
    return ordered[int(part * len(ordered))]


def times_between(ends_s: Sequence[float], since_s: float, until_s: float) -> list[float]:
    inside = [end_s for end_s in ends_s if since_s <= end_s <= until_s]
    return [after_s - before_s for before_s, after_s in pairwise(inside)]


def read_ends(log: Path) -> list[float]:
    """When steps ended; a line that is being written is left out."""
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return [float(line) for line in lines if line.endswith("\n")]


def await_steps(client: Client, job_id: JobId, log: Path, count: int) -> float:
    """When the job has done so many steps, on the clock of its log."""
    deadline_s = time.monotonic() + STEPS_WITHIN_S
    while len(read_ends(log)) < count:
        if time.monotonic() > deadline_s:
            job = client.ask(wire.ShowJob(job_id=job_id)).job
            raise WentWrong(
                f"{job.name}: no {count} steps in {STEPS_WITHIN_S:.0f} s: {job.phase}, {job.reason}"
            )
        time.sleep(LOOK_S)
    return time.monotonic()


def wait_for(length_s: float) -> float:
    """Let a stretch pass; when it ended."""
    time.sleep(length_s)
    return time.monotonic()
