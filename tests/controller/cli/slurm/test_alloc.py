"""`alloc`: what is asked of the controller, and what a person and a script see."""

from __future__ import annotations

import json
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from cotenant.controller.domain import AllocationTerms, HostId, HostShape
from cotenant.controller.present.problem import Problem
from cotenant.controller.slurm.alloc.verb import host_shape
from cotenant.controller.wire import clients as wire

if TYPE_CHECKING:
    from tests.controller.cli.conftest import Cotenant, StandIn

TERMS = AllocationTerms(
    name="slurm", shape=HostShape(devices=8), max_hosts=4, time_limit_s=14_400.0, folder="/shared"
)
ADD = ("alloc", "add", "slurm", "--max-hosts", "4", "--shape", "gpus=8,cpus=64,mem=500G,type=h100")


def queues(replies: ModuleType, **more: Any) -> wire.AllocationQueues:
    host = wire.AllocationView(
        host=HostId("slurm-1"), state="working", slurm_id="71", node="n1", why="its host has joined from n1",
        asked_at=replies.NOW, leaves_at=replies.NOW, jobs=("7",),
    )  # fmt: skip
    known: dict[str, Any] = {
        "name": "slurm", "is_paused": False, "is_removed": False, "decided": True,
        "why": "nothing is asked for: no job waits", "working": 1, "coming": 0, "terms": TERMS, "failures": 0,
        "added_by": "root", "allocations": (host,),
    }  # fmt: skip
    view = wire.AllocationQueueView(**{**known, **more})
    return wire.AllocationQueues(request_id=0, queues=(view,), now=replies.NOW)


def test_a_queue_is_added_with_what_comes_after_the_dashes(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    controller.says(wire.AddAllocations, wire.Done(request_id=0, lines=("slurm: up to 4 hosts",)))
    controller.says(wire.ListAllocations, queues(replies))
    done = cotenant(*ADD, "--time-limit", "4h", "--idle", "5m", "--", "-p", "gpu", "--qos=low")
    assert done.out == "slurm: up to 4 hosts\nslurm: nothing is asked for: no job waits\n"
    (asked,) = controller.asked_for(wire.AddAllocations)
    assert asked.terms.options == ("-p", "gpu", "--qos=low")
    assert asked.terms.shape == HostShape(devices=8, type="h100", cpus=64, memory_mib=500 * 1024)
    assert (asked.terms.max_hosts, asked.terms.idle_s, asked.terms.time_limit_s) == (4, 300.0, 14_400.0)
    assert asked.terms.folder.endswith("/cotenant/alloc/slurm")


def test_mistakes_are_said_before_anything_is_asked(cotenant: Cotenant) -> None:
    for words, why in {
        ("--time-limit", "1m"): "the grace (120 s) must be shorter than the time limit (60 s)",
        ("--idle", "never"): "--idle must be a duration",
        ("--name", "Not this"): "a queue's name",
    }.items():
        done = cotenant(*ADD, *words)
        assert done.code == 2 and why in done.err, done.err


@pytest.mark.parametrize(
    "text", ["", "8", "gpus=8,slots=2", "cpus=4", "gpus=x", "gpus=8,disk=9", "gpus=8,gpus=9"]
)
def test_shapes_that_are_none(text: str) -> None:
    with pytest.raises(Problem, match="--shape"):
        host_shape(text)
    assert host_shape("slots=2").kind == "cpu"


def test_what_there_is_and_why(controller: StandIn, replies: ModuleType, cotenant: Cotenant) -> None:
    controller.says(wire.ListAllocations, queues(replies))
    out = cotenant("alloc").out
    assert "1+0/4" in out and "no job waits" in out
    wide = cotenant("alloc", "list", "-o", "wide").out
    assert "slurm-1" in wide and "71" in wide and "n1" in wide
    value = json.loads(cotenant("alloc", "list", "-o", "json").out)
    assert value["schema"] == "allocation-queues/1"
    assert value["allocation-queues"][0]["allocations"][0]["slurm_id"] == "71"
    controller.says(wire.ListAllocations, queues(replies, is_paused=True))
    assert "paused" in cotenant("alloc", "list").out


def test_changes_and_the_log(controller: StandIn, replies: ModuleType, cotenant: Cotenant) -> None:
    controller.says(wire.ChangeAllocations, wire.Done(request_id=0, lines=("slurm: done",)))
    for verb in ("pause", "resume", "remove"):
        assert cotenant("alloc", verb, "slurm").out == "slurm: done\n"
    assert [each.verb for each in controller.asked_for(wire.ChangeAllocations)] == [
        "pause",
        "resume",
        "remove",
    ]
    line = wire.AllocationLine(
        at=replies.NOW, queue="slurm", text="slurm-1 (Slurm job 71): over: idle for 300 s"
    )
    controller.says(wire.GetAllocationLog, wire.AllocationLog(request_id=0, lines=(line,), now=replies.NOW))
    assert "idle for 300 s" in cotenant("alloc", "log").out
    value = json.loads(cotenant("alloc", "log", "slurm", "-o", "jsonl").out)
    assert value["schema"] == "allocation-line/1"
