"""What submitit's words become here: parameters, states, and the place of a task in its job."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import submitit

from cotenant.controller.domain import ENDED, Phase
from cotenant.controller.integrations.submitit_executor import (
    CotenantJobEnvironment,
    CotenantWatcher,
    job_options,
    state_of,
)
from cotenant.controller.python.errors import BadCall

PARAMETERS = {
    "nothing asked": ({}, {"nodes": 1, "gpus": 1, "launch": "process"}),
    "a task for each GPU": (
        {"nodes": 2, "tasks_per_node": 4, "gpus_per_node": 4},
        {"nodes": 2, "gpus": 8, "launch": "worker"},
    ),
    "one task with all GPUs of a node": (
        {"nodes": 2, "gpus_per_node": 8},
        {"nodes": 2, "gpus": 16, "launch": "host"},
    ),
    "tasks without GPUs have a device each": ({"tasks_per_node": 3}, {"gpus": 3, "launch": "worker"}),
    "time and memory": ({"timeout_min": 90, "mem_gb": 1.5}, {"time": "90m", "host_mem": "1536M"}),
    "cores are those of a host": (
        {"tasks_per_node": 2, "gpus_per_node": 2, "cpus_per_task": 8, "name": "x"},
        {"cpus": 16, "name": "x"},
    ),
    "our own names win": (
        {"timeout_min": 90, "time": "4h", "share": "never"},
        {"time": "4h", "share": "never"},
    ),
}


@pytest.mark.parametrize(("parameters", "wanted"), PARAMETERS.values(), ids=PARAMETERS.keys())
def test_parameters_become_options(parameters: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    found = job_options(parameters)
    assert {name: found.get(name) for name in wanted} == wanted
    assert not found.keys() & {"array_parallelism", "timeout_min", "mem_gb", "stderr_to_stdout"}


def test_variables_of_the_user_stay_beside_those_of_the_place() -> None:
    found = job_options({"env": {"A": "1"}, "nodes": 2, "tasks_per_node": 2})["env"]
    assert found["A"] == "1"
    assert (found["SUBMITIT_EXECUTOR"], found["SUBMITIT_COTENANT_TASKS"]) == ("cotenant", 4)


def test_what_cannot_be_is_refused_when_it_is_said() -> None:
    executor = submitit.AutoExecutor(folder="logs", cluster="cotenant")
    with pytest.raises(ValueError, match="one task, or one for each GPU"):
        executor.update_parameters(tasks_per_node=2, gpus_per_node=8)
    with pytest.raises(BadCall, match="share"):
        executor.update_parameters(cotenant_share="perhaps")
    with pytest.raises(NameError, match="cotenant_tiem"):
        executor.update_parameters(cotenant_tiem="4h")
    executor.update_parameters(slurm_partition="a", slurm_array_parallelism=3)  # Another cluster's.


def test_code_that_asks_for_no_cluster_goes_where_it_went_before() -> None:
    assert submitit.AutoExecutor.which() != "cotenant"


def test_submitit_waits_for_a_job_until_it_has_ended() -> None:
    watcher = CotenantWatcher()
    for phase in Phase:
        job: Any = SimpleNamespace(phase=phase, is_given_up=False, reason_code="", preemptions=0)
        watcher._info_dict["1"] = {"State": state_of(job)}
        assert watcher.is_done("1", mode="cache") == (phase in ENDED), phase


OTHER_STATES: dict[str, dict[str, Any]] = {
    "NODE_FAIL": {"phase": Phase.HELD, "is_given_up": True},
    "TIMEOUT": {"phase": Phase.FAILED, "reason_code": "time-limit"},
    "PREEMPTED": {"phase": Phase.QUEUED, "preemptions": 1},
}


@pytest.mark.parametrize("state", OTHER_STATES)
def test_states_that_say_more(state: str) -> None:
    usual = {"is_given_up": False, "reason_code": "", "preemptions": 0}
    job: Any = SimpleNamespace(**{**usual, **OTHER_STATES[state]})
    assert state_of(job) == state


def test_a_task_knows_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    place = {"COTENANT_JOB": "7_1", "GROUP_RANK": "1", "RANK": "5", "LOCAL_RANK": "1"}
    for name, text in {**place, "SUBMITIT_COTENANT_TASKS": "8", "SUBMITIT_COTENANT_NODES": "2"}.items():
        monkeypatch.setenv(name, text)
    found = CotenantJobEnvironment()
    assert (found.job_id, found.num_tasks, found.num_nodes) == ("7_1", 8, 2)
    assert (found.node, found.global_rank, found.local_rank) == (1, 5, 1)
    monkeypatch.delenv("RANK")  # One task for each host.
    assert found.global_rank == 1
