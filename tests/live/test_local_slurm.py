"""The private Slurm that other tests stand on: it runs jobs, knows them after a restart, leaves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.building.slurm import LocalSlurm, local_slurm


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[LocalSlurm]:
    with local_slurm(tmp_path, nodes=2, cpus=2) as running:
        yield running


def test_jobs_run_on_two_nodes_and_outlive_a_restart(slurm: LocalSlurm) -> None:
    wide = slurm.submit("--nodes=2", "--exclusive", "--time=5")
    slurm.await_said("squeue", "-h", "-o", "%i %T", wanted=f"{wide} RUNNING")
    waiting = slurm.submit("--nodes=1", "--time=5", command="true")
    slurm.stop_controller()
    slurm.start_controller()
    slurm.await_said("squeue", "-h", "-S", "i", "-o", "%i %T", wanted=f"{wide} RUNNING\n{waiting} PENDING")
    slurm.run("scancel", str(wide))
    slurm.await_said("squeue", "-h", "-o", "%i", wanted="")
