"""Measure pairs through the product: each job is profiled alone, then two share the device under `sjf-ffs`.

Rule: the same commands and device in every run; only the co-tenant and how the agent shares the device
differ. A step time is what `cotenant show` says of a job: the median over its last reports.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from unittest.mock import patch

from cotenant.controller.cli.demo.cluster import QueueWatcher
from cotenant.controller.cli.demo.measuring import NotMeasured, measure_profiles
from cotenant.controller.client.connection import Client
from cotenant.controller.domain import JobId, Phase
from cotenant.controller.engine import LAG_REPORTS, LAG_S
from cotenant.controller.performance import CHOICES_MAX, Indicators
from cotenant.controller.wire import clients as wire
from hwtests import clusters
from hwtests.device import Device
from hwtests.jobs import Job
from hwtests.pair_table import Mode, Seen, Sharing, Solo, TooFew, together

DEADLINE_S: Final = 150.0


@contextmanager
def agents(mode: Mode) -> Iterator[None]:
    """How agents that start meanwhile share a GPU; their MPS daemons live in a folder of their own, short for
    its sockets."""
    with tempfile.TemporaryDirectory(prefix="hw-c-", dir="/tmp", ignore_cleanup_errors=True) as name:
        how = "auto" if mode == "mps" else "off"
        with patch.dict(os.environ, {"COTENANT_MPS__RUNTIME_DIR": name, "COTENANT_MPS__MODE": how}):
            yield


def alone(job: Job, device: Device, folder: Path, seconds: float) -> Solo:
    """What the profiler in place says of it. Raises TooFew."""
    try:
        with (
            agents("time-slicing"),
            clusters.cluster(folder, device, profile_s=CHOICES_MAX * seconds) as private,
        ):
            profile = measure_profiles(private, [job.spec()])[job.name]
    except NotMeasured as problem:
        raise TooFew(f"{problem}; give it more --seconds") from None
    point = profile.point_at(1)
    assert point is not None and profile.load_s is not None
    return Solo(
        job=job,
        profile=profile,
        step_s=point.step_s,
        load_s=profile.load_s,
        memory_mib=point.memory_mib,
        indicators=profile.indicators or Indicators(),
    )


def shared(first: Solo, second: Solo, device: Device, folder: Path, mode: Mode, seconds: float) -> Sharing:
    """Both together once: `second` comes when `first` trains.

    Raises:
        AssertionError: the agent does not share this device in that mode.
        TooFew: no step time that is all from the two together.
        TooSlow: one of them did not get on.
    """
    with agents(mode), clusters.cluster(folder, device) as private, Client(private.endpoint) as client:
        _check(client, mode)
        client.ask(wire.SetPolicy(name="sjf-ffs", parameters={"part": False}))
        watcher = QueueWatcher(client, print, {})
        ids: list[JobId] = []

        def all_run(now: Mapping[JobId, wire.JobView]) -> bool:
            return all(now[job_id].phase is Phase.RUNNING for job_id in ids)

        for solo in (first, second):
            ids += client.ask(wire.Submit(specs=(solo.job.spec(solo.profile),))).job_ids
            watcher.wait_until(all_run, DEADLINE_S)
        _let_settle(watcher, client, ids, seconds)
        one, two = (_seen(client, job_id) for job_id in ids)
        now_s = client.ask(wire.GetStatus()).wall_s  # As attempts have it.
        client.ask(wire.ChangeJobs(verb="cancel", job_ids=tuple(reversed(ids))))
        client.ask(wire.WaitJobs(job_ids=tuple(ids), timeout_s=DEADLINE_S))
    return together(one, two, now_s, (first, second), mode)


def _check(client: Client, mode: Mode) -> None:
    """Else a pair would time-slice unnoticed."""
    (device,) = (each for node in client.ask(wire.ListNodes()).nodes for each in node.devices)
    assert device.sharing == mode, f"the agent shares by {device.sharing}: {device.sharing_note}"


def _let_settle(watcher: QueueWatcher, client: Client, ids: list[JobId], seconds: float) -> None:
    """Until each one's step time, a median over its last reports, is all from the time together."""
    since_s = client.ask(wire.GetStatus()).now_s

    def settled(step_s: float | None) -> bool:
        lag_s = float("inf") if step_s is None else max(LAG_S, LAG_REPORTS * step_s)
        return client.ask(wire.GetStatus()).now_s - since_s >= lag_s + seconds

    watcher.wait_until(lambda now: all(settled(now[job_id].step_s) for job_id in ids), DEADLINE_S)


def _seen(client: Client, job_id: JobId) -> Seen:
    shown = client.ask(wire.ShowJob(job_id=job_id))
    if shown.job.step_s is None:
        raise TooFew(f"{shown.job.name}: it told no step time; give it more --seconds")
    return Seen(
        name=shown.job.name,
        launched_s=shown.attempts[-1].launched_s,
        step=shown.job.step,
        step_s=shown.job.step_s,
    )
