"""Idle devices with real processes: a job that trains and then waits is told of, lends its slot, and gets it
back when it works again; one that loads slowly is never idle."""

from __future__ import annotations

import sys

from cotenant.controller.domain import JobId, Phase
from cotenant.controller.wire import clients as wire
from tests.live.cluster import SMALL, Cluster, References, Training

RULE = "warn:12s,share:14s"
WAITS = Training(
    name="waits", script=SMALL, steps=90, gate_at=6, pace_s=0.2,
    more={"memory_mib": 400, "share": "never", "idle": RULE},
)  # fmt: skip
BORROWS = Training(
    name="borrows", script=SMALL, steps=90, gate_at=6, pace_s=0.2,
    more={"memory_mib": 400, "resumable": True},
)  # fmt: skip
LOADER = """
import os, sys, time
path, until = sys.argv[1:]
open(path, "wb").write(os.urandom(1 << 20))
while not os.path.exists(until):
    open(path, "rb").read()
    time.sleep(1.0)
"""


def told_of(cluster: Cluster, job_id: JobId) -> list[str]:
    """What was said of a job that is idle, oldest first."""
    lines = cluster.client.ask(wire.Explain(job_id=job_id)).explanation.lines
    return [line for line in reversed(lines) if "idle" in line]


def test_a_slot_is_lent_while_its_job_is_idle_and_slow_loading_is_not_idle(
    cluster: Cluster, references: References
) -> None:
    cluster.add_controller("policy.name=fifo").start()
    cluster.add_agent("a", "agent.devices=cpu:2", "agent.heartbeat_s=0.5").start()
    waits = cluster.submit(WAITS)
    hurry = cluster.folder / "hurry"
    argv = (sys.executable, "-c", LOADER, str(cluster.folder / "data"), str(hurry))
    loads = cluster.send("loads", argv, idle=RULE)
    cluster.until(lambda jobs: cluster.is_at_gate(jobs[waits]) and jobs[loads].phase is Phase.RUNNING)
    borrows = cluster.submit(BORROWS)

    jobs = cluster.until(lambda jobs: cluster.trains_at_gate(jobs[borrows]))
    assert jobs[borrows].devices == jobs[waits].devices and jobs[borrows].co_tenants == (waits,)
    idle = jobs[waits].idle
    assert idle is not None and idle.since_at is not None and idle.stage == "share"

    cluster.open_gate(waits, 1)
    cluster.until(lambda jobs: len(told_of(cluster, waits)) == 3)
    cluster.open_gate(borrows, 1)
    cluster.until(lambda jobs: jobs[borrows].phase is Phase.QUEUED)
    for job_id in (waits, borrows):
        cluster.open_gate(job_id)
    cluster.until(lambda jobs: jobs[waits].phase is Phase.DONE and jobs[borrows].phase is Phase.DONE)
    heard = told_of(cluster, waits)
    assert [
        word in line for word, line in zip(("no kernel", "others may", "works again"), heard, strict=True)
    ]
    (row,) = cluster.client.ask(wire.GetUsage()).rows
    assert 12.0 <= row.idle_device_s <= row.held_device_s
    assert not told_of(cluster, loads)
    hurry.touch()
    for job_id, training in ((waits, WAITS), (borrows, BORROWS)):
        shown = cluster.check_history(job_id)
        assert cluster.sha256(job_id) == references.sha256(training, shown.attempts), "bit for bit"
    cluster.until(lambda jobs: jobs[loads].phase is Phase.DONE)
