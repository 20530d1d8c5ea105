"""What Slurm's answers mean, and that no job's name can make them mean something else."""

from __future__ import annotations

import pytest

from cotenant.controller.slurm.answers import gpus_in
from cotenant.controller.slurm.steer.core.queue import JOB_FIELDS, jobs_in, nodes_in
from tests.controller.slurm.steer.building import job, node, queue

END = "end-0123"
ROW = {
    "ArrayJobID": "7", "HetJobID": "N/A", "StateCompact": "PD", "PriorityLong": "375",
    "SubmitTime": "1795400000", "TimeLimit": "1-02:03:04", "NumCPUs": "4", "NumNodes": "2", "NumTasks": "4",
    "tres-per-job": "N/A", "tres-per-node": "gres:gpu:2", "tres-per-task": "N/A", "Reason": "Priority",
    "Dependency": "(null)", "Partition": "main", "UserName": "ann", "Name": "train",
}  # fmt: skip


def text(*rows: dict[str, str]) -> str:
    return "".join("|".join((ROW | row)[name] for name in JOB_FIELDS) + END + "\n" for row in rows)


def test_a_row_is_a_job() -> None:
    (found,) = jobs_in(text({}), END)
    assert (found.job_id, found.priority, found.gpus) == (7, 375, 4)
    assert found.limit_s == 86_400 + 2 * 3600 + 3 * 60 + 4 and found.submitted_s == 1795400000.0
    assert not found.aside


@pytest.mark.parametrize(
    "name", ["a|b|c", "a\nb", f"x\n{text({'ArrayJobID': '8'})[: -len(END) - 1]}", "", "|"]
)
def test_a_name_is_a_name_whatever_is_in_it(name: str) -> None:
    found = list(jobs_in(text({"Name": name}, {"ArrayJobID": "9"}), END))
    assert [each.job_id for each in found] == [7, 9]
    assert found[0].name == name


ASIDE = {
    "held": {"PriorityLong": "0"},
    "waits for a job": {"Dependency": "afterok:3(unfulfilled)"},
    "its dependency is known by its reason alone": {"Reason": "DependencyNeverSatisfied"},
    "waits for a time": {"Reason": "BeginTime"},
    "heterogeneous": {"HetJobID": "7"},
}


@pytest.mark.parametrize("row", ASIDE.values(), ids=ASIDE.keys())
def test_left_alone(row: dict[str, str]) -> None:
    (found,) = jobs_in(text(row), END)
    assert found.aside
    assert queue(found).waiting() == []


@pytest.mark.parametrize("row", [{"ArrayJobID": "N/A"}, {"PriorityLong": "-"}, {"SubmitTime": "N/A"}])
def test_a_row_that_makes_no_sense_is_no_job(row: dict[str, str]) -> None:
    assert list(jobs_in(text(row), END)) == []


GPUS = {
    "gres:gpu:2": 2, "gres/gpu:3": 3, "gpu:a100:4(S:0-1)": 4, "gpu:a100:1(IDX:0),gpu:v100:2(IDX:1-2)": 3,
    "gpu": 0, "N/A": 0, "(null)": 0, "gres:nic:2": 0, "gpu=5": 5,
}  # fmt: skip


@pytest.mark.parametrize(("said", "count"), GPUS.items())
def test_gpus(said: str, count: int) -> None:
    assert gpus_in(said) == count


def test_a_node_in_two_partitions_is_one_node() -> None:
    rows = [
        "n1|mix|3/5/0/8|gpu:2|gpu:1|main*", "n1|mix|3/5/0/8|gpu:2|gpu:1|other",
        "n2|down*|0/0/8/8|gpu:2|gpu:0|main*",
    ]  # fmt: skip
    first, second = nodes_in("".join(f"{row}{END}\n" for row in rows), END)
    assert first.partitions == ("main", "other")
    assert (first.free_cpus, first.free_gpus) == (5, 1)
    assert (second.free_cpus, second.free_gpus) == (0, 0)


def test_of_an_array_what_waits_is_steered_once() -> None:
    jobs = (job(4, state="R"), job(4), job(4), job(5, partition="a,b"))
    assert [each.job_id for each in queue(*jobs).waiting()] == [4, 5]
    assert [each.job_id for each in queue(*jobs).waiting(frozenset({"b"}))] == [5]


def test_a_size_is_gpus_where_there_are_any() -> None:
    one = job(1, cpus=16, gpus=2)
    assert queue(one).size(one) == 16
    assert queue(one, nodes=(node(gpus=8),)).size(one) == 2
