"""Promise 13 from end to end: what ends the agent's whole cgroup leaves its jobs alone.

`systemctl restart` of a unit with KillMode=control-group sends SIGKILL to every process in the unit's
group and in the groups below it. Here the agent gets a group of its own, and the test does the same.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cotenant.agent.host.cgroups import mounts_in
from cotenant.controller.domain import Phase
from tests.live.cluster import (
    PATIENCE_S,
    Cluster,
    References,
    Training,
    all_done,
    is_past,
    wait_for_exit,
)

DIGITS = Training(name="digits", script="compute_bound", workers=2, steps=60, batch_size=4, gate_at=40)


@pytest.fixture
def unit() -> Iterator[Path]:
    """An empty group of the kind that systemd would use on this machine."""
    mounts = mounts_in(Path("/proc/self/mountinfo").read_text())
    mount = mounts.get("v2") or mounts.get("name=systemd") or mounts.get("pids")
    if mount is None:
        pytest.skip("no cgroups are mounted here")
    group = Path(mount.point) / f"cotenant-unit-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"cannot make a cgroup for the agent: {error} (root can)")
    yield group
    for pid in members(group):
        wait_for_exit(pid, PATIENCE_S)
    for folder in (*sorted(below(group), reverse=True), group):
        folder.rmdir()


def below(group: Path) -> list[Path]:
    return [Path(folder) for folder, _, _ in os.walk(group) if folder != str(group)]


def members(group: Path) -> list[int]:
    """Processes in the group and in all groups below it."""
    texts = [(folder / "cgroup.procs").read_text() for folder in (group, *below(group))]
    return [int(line) for text in texts for line in text.split()]


def kill_all(group: Path) -> set[int]:
    """As systemd does it: again and again, until nobody is left, since a member may start another one."""
    ended: set[int] = set()
    until_s = time.monotonic() + PATIENCE_S
    while pids := members(group):
        assert time.monotonic() < until_s, f"{pids} do not go"
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            wait_for_exit(pid, PATIENCE_S)
        ended |= set(pids)
    return ended


@pytest.mark.root
def test_jobs_outlive_a_kill_of_the_agents_whole_group(
    unit: Path, cluster: Cluster, references: References
) -> None:
    cluster.add_controller().start()
    # The shell goes into the group and becomes the agent, as systemd's child does.
    into = ("/bin/sh", "-c", f'echo $$ > {unit}/cgroup.procs && exec "$@"', "sh")
    agent = cluster.add_agent("h1", "agent.devices=cpu:2", "agent.heartbeat_s=0.5", before=into)
    agent.start()
    assert agent.pid in members(unit)
    job = cluster.submit(DIGITS)
    cluster.until(lambda jobs: is_past(jobs[job], 5))
    ranks = [pid for ran in cluster.starts(job).values() for _, pid in ran]
    supervisor = cluster.supervisor("h1", job, 1)

    ended = kill_all(unit)
    assert agent.pid in ended
    agent.stop()  # It is gone; the next start is the service manager's.
    assert supervisor not in ended
    assert not set(ranks) & ended
    agent.start()

    jobs = cluster.until(lambda jobs: is_past(jobs[job], 5))
    assert jobs[job].phase is Phase.RUNNING, "the new agent knows of its progress"
    cluster.open_gate(job)
    cluster.until(lambda jobs: all_done(jobs, [job]))
    assert len(cluster.check_history(job).attempts) == 1
    assert cluster.supervisor("h1", job, 1) == supervisor
    assert [pid for ran in cluster.starts(job).values() for _, pid in ran] == ranks
    assert cluster.sha256(job) == references.sha256(DIGITS)
    cluster.await_no_process()
