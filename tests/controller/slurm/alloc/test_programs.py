"""Slurm's commands and answers, and what they say of allocations."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cotenant.controller.domain import Allocation, AllocationQueue, AllocationTerms, Host, HostId, HostShape
from cotenant.controller.slurm.alloc import programs
from cotenant.controller.slurm.alloc.programs import (
    JOINED_WITHIN_S,
    SUBMITTED_WITHIN_S,
    AllocationNews,
    SlurmRow,
    follow,
    orphans,
)
from tests.building.hosts import report


def queue(**more: Any) -> AllocationQueue:
    plain: dict[str, Any] = {
        "name": "slurm",
        "shape": HostShape(devices=8, cpus=64, memory_mib=512_000),
        "max_hosts": 4,
        "time_limit_s": 14_400.0,
        "folder": "/shared/slurm",
    }
    return AllocationQueue(terms=AllocationTerms(**{**plain, **more}), python="/venv/bin/python")


def allocation(state: str = "pending", since_s: float = 0.0, **more: str) -> Allocation:
    plain = {"name": "cotenant-abc-slurm-1", "queue": "slurm", "host_id": "slurm-1", "why": "a test", **more}
    return msgspec.convert({**plain, "state": state, "since_s": since_s, "asked_s": 0.0}, Allocation)


def row(state: str = "PENDING", reason: str = "Priority", name: str = "cotenant-abc-slurm-1") -> SlurmRow:
    return SlurmRow("7", state, "n1" if state == "RUNNING" else "", reason, name)


# --- Calls -----------------------------------------------------------------------------------------


def test_what_sbatch_is_called_with() -> None:
    words = programs.sbatch(queue(options=("-p", "gpu", "--qos=low")), allocation())
    assert words == (
        "sbatch", "--parsable", "--job-name=cotenant-abc-slurm-1", "--nodes=1", "--ntasks=1", "--no-requeue",
        "--time=240", "--output=/shared/slurm/logs/slurm-1-%j.log", "--gres=gpu:8", "--cpus-per-task=64",
        "--mem=512000M", "-p", "gpu", "--qos=low",
    )  # fmt: skip


def test_a_persons_own_way_to_ask_for_gpus_is_the_only_one() -> None:
    for own in (("--gres=gpu:h100:8",), ("-G8",), ("-G", "8"), ("--gpus-per-node", "8"), ("--gpus=8",)):
        words = programs.sbatch(queue(options=own), allocation())
        assert [word for word in words if word.startswith("--gres")] == [w for w in own if "gres" in w], own


def test_the_script_ends_in_the_keeper_and_prepares_first() -> None:
    text = programs.script(queue(before="module load cuda; echo 'x y'"), allocation())
    assert text.splitlines()[:2] == ["#!/bin/bash", "module load cuda; echo 'x y'"]
    assert text.splitlines()[2].startswith(
        "exec /venv/bin/python -m cotenant.agent.slurm.allocation --host slurm-1 "
    )
    assert "--devices cuda" in text
    slots = programs.script(queue(shape=HostShape(devices=2, kind="cpu")), allocation())
    assert "--devices cpu:2" in slots


# --- Answers ---------------------------------------------------------------------------------------


def test_numbers_of_jobs() -> None:
    assert programs.submitted_id("123\n") == "123"
    assert programs.submitted_id("sbatch: a note\n123;cluster\n") == "123"
    for wrong in ("", "Submitted batch job 12", "x"):
        with pytest.raises(ValueError, match="not the number of a job"):
            programs.submitted_id(wrong)


def test_rows_of_squeue() -> None:
    text = "7|PENDING||(Resources)|cotenant-abc-slurm-1\n8|RUNNING|n1|None|other|name\nslurm: nonsense\n"
    assert [each.slurm_id for each in programs.rows(text)] == ["7", "8"]
    assert programs.rows(text)[1].name == "other|name"


NODES = (
    "NodeName=n1 CPUTot=64 RealMemory=515000 Gres=gpu:h100:8(S:0-1) OS=Linux 6.1 SMP Partitions=gpu\n"
    "NodeName=n2 CPUTot=128 RealMemory=257000 Gres=(null) Partitions=cpu,short"
)
PARTITIONS = (
    "PartitionName=gpu Default=YES MaxTime=1-00:00:00 State=UP\n"
    "PartitionName=cpu MaxTime=UNLIMITED\nPartitionName=short MaxTime=30:00"
)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"options": ("-p", "cpu")}, "no node of cpu has 8 GPUs, 64 CPUs, 512000 MiB: they have no GPUs"),
        ({"options": ("--partition=nope",)}, "there is no partition nope; there are gpu, cpu, short"),
        ({"options": ("-pshort",)}, "partition short allows 1800 s, and --time-limit asks for 14400"),
        ({"shape": HostShape(devices=16)}, "no node of gpu has 16 GPUs"),
        ({"shape": HostShape(devices=8, type="h100")}, ""),
        ({"shape": HostShape(devices=8, type="a100")}, "no node of gpu has 8 a100 GPUs"),
        ({"shape": HostShape(devices=8, memory_mib=999_000)}, "no node of gpu has 8 GPUs, 999000 MiB"),
        ({"shape": HostShape(devices=100, kind="cpu"), "options": ("-p", "cpu")}, ""),
        (
            {"shape": HostShape(devices=200, kind="cpu"), "options": ("-p", "cpu")},
            "no node of cpu has 200 slots",
        ),
    ],
)
def test_a_shape_is_checked_before_anything_is_asked_for(changes: dict[str, Any], why: str) -> None:
    found = programs.why_impossible_here(
        queue(**changes), programs.records(PARTITIONS), programs.records(NODES)
    )
    assert found.startswith(why) and bool(found) == bool(why), found


# --- What became of it -----------------------------------------------------------------------------


def host(allocation: str = "7", *, lost: bool = False) -> dict[HostId, Host]:
    made = Host(report=report("slurm-1", allocation=allocation), lost=lost)
    return {made.host_id: made}


def only(
    each: Allocation, rows: list[SlurmRow], hosts: dict[HostId, Host] | None = None, now_s: float = 1.0
) -> AllocationNews | None:
    found = follow([each], rows, hosts or {}, now_s)
    return found[0] if found else None


def test_a_request_is_followed_until_its_host_is_there() -> None:
    waiting = only(allocation(slurm_id="7"), [row()])
    assert waiting is not None and waiting.allocation.why == "Slurm lets it wait (Priority)"
    assert only(waiting.allocation, [row()]) is None, "the same is said once"
    started = only(waiting.allocation, [row("RUNNING")])
    assert started is not None and started.allocation.state == "starting" and started.allocation.node == "n1"
    assert only(started.allocation, [row("RUNNING")], host("6")) is None, "the host of an earlier one"
    joined = only(started.allocation, [row("RUNNING")], host())
    assert joined is not None and joined.allocation.state == "working"
    assert only(joined.allocation, [row("RUNNING")], host()) is None


def test_what_slurm_has_no_more_is_over() -> None:
    for state, is_failure in {"pending": True, "starting": True, "working": False, "ending": False}.items():
        gone = only(allocation(state, slurm_id="7"), [], host())
        assert gone is not None and gone.allocation.state == "over", state
        assert gone.failed == is_failure
        assert gone.lost == "slurm-1", "its host went with it"
    again = only(allocation("working", slurm_id="7"), [], host("8"))
    assert again is not None and again.lost is None, "the host is of another one by now"


def test_a_host_that_never_joins_is_ended_and_counts_as_a_failure() -> None:
    starting = allocation("starting", slurm_id="7")
    assert only(starting, [row("RUNNING")], now_s=JOINED_WITHIN_S - 1) is None
    late = only(starting, [row("RUNNING")], now_s=JOINED_WITHIN_S)
    assert late is not None and late.failed and late.allocation.state == "ending"


def test_what_was_asked_for_when_the_controller_was_killed_is_found_by_its_name() -> None:
    asked = allocation("submitting")
    found = only(asked, [row("RUNNING")])
    assert found is not None and (found.allocation.state, found.allocation.slurm_id) == ("pending", "7")
    assert only(asked, [], now_s=SUBMITTED_WITHIN_S - 1) is None
    never = only(asked, [], now_s=SUBMITTED_WITHIN_S)
    assert never is not None and never.failed and never.allocation.state == "over"


def test_what_nobody_knows_of_is_an_orphan_if_it_has_our_name() -> None:
    rows = [row(), row(name="cotenant-abc-slurm-9"), row(name="cotenant-xyz-slurm-1"), row(name="mine")]
    known = ["cotenant-abc-slurm-1"]
    assert orphans(rows, known, programs.prefix_of("abc")) == ["7"]


def test_a_state_follows_from_the_one_before_or_not_at_all() -> None:
    with pytest.raises(ValueError, match="cannot become pending"):
        allocation("working").move("pending", 1.0, "no")
