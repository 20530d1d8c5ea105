"""Slurm's programs as they are run: bounded, unfiltered, and what is wrong in one line. Stand-ins on PATH."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cotenant.controller.slurm.steer.slurm import NoAccounting, Slurm, SlurmConfig, SlurmProblem

CONFIG = SlurmConfig(
    cluster="test", version="22.05.8", priority_type="priority/basic", slurm_user="slurm", slurm_uid=64030
)


def program(folder: Path, name: str, script: str) -> Slurm:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return Slurm({"PATH": f"{folder}:/usr/bin:/bin", "SQUEUE_PARTITION": "one", "SLURM_TIME_FORMAT": "x"})


def test_an_answer_with_an_error_in_it_is_no_answer(tmp_path: Path) -> None:
    """squeue leaves out a column that it does not know, and ends with 0."""
    slurm = program(tmp_path, "squeue", "echo 'squeue: error: Invalid job format specification: X' >&2")
    with pytest.raises(SlurmProblem, match="Invalid job format"):
        slurm.marks()


def test_what_the_caller_filters_by_is_not_ours(tmp_path: Path) -> None:
    slurm = program(tmp_path, "squeue", 'env >"$0.env"')
    assert slurm.marks() == []
    seen = (tmp_path / "squeue.env").read_text()
    assert "SQUEUE_PARTITION" not in seen and "SLURM_TIME_FORMAT=%s" in seen


def test_a_cluster_without_accounts_is_told_apart(tmp_path: Path) -> None:
    slurm = program(tmp_path, "sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    with pytest.raises(NoAccounting):
        slurm.past_runs(0.0, 100.0)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SlurmProblem, match="squeue is not on PATH"):
        Slurm({"PATH": str(tmp_path)}).marks()


def test_a_job_that_has_gone_is_no_refusal(tmp_path: Path) -> None:
    script = (
        "cat >\"$0.said\"; echo 'Invalid job id specified for job 9' >&2; echo 'Access denied' >&2; exit 1"
    )
    slurm = program(tmp_path, "scontrol", script)
    assert slurm.set_priorities({9: 2_000_000_000}) == ["Access denied"]
    assert (tmp_path / "scontrol.said").read_text() == "update jobid=9 priority=2000000000\n"


@pytest.mark.parametrize(
    ("level", "may"), [("Operator", True), ("Administrator", True), ("None", False), ("", False)]
)
def test_only_an_operator_may_steer(tmp_path: Path, level: str, may: bool) -> None:
    """Asked as another user than root, in a process of its own."""
    if os.geteuid():
        pytest.skip("only root can become another user")
    slurm = program(tmp_path, "sacctmgr", f"echo {level}")
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and "pytest" in str(folder):
            folder.chmod(0o755)
    pid = os.fork()
    if not pid:
        try:
            os.setuid(65_534)
            os._exit(0 if slurm.may_operate(CONFIG) else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == (0 if may else 1)
    assert slurm.may_operate(CONFIG), "root may"
