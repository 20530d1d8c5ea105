"""A command that is started once has one process: on one host, with as many devices all the time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cotenant.controller.domain import JobId, JobSpec, Launch
from tests.controller.building import Desk, report

ONCE = Launch(argv=("python", "t.py"), mode="process")


def spec(launch: Launch = ONCE, **fields: Any) -> JobSpec:
    return JobSpec(job_id=JobId("7"), launch=launch, **fields)


def test_it_has_one_host_however_its_devices_are_changed() -> None:
    one = spec()
    assert (one.nodes, spec(gpus_min=2, gpus_max=2).nodes) == (0, 1)
    two = msgspec.structs.replace(one, gpus_min=2, gpus_max=2)
    assert two.nodes == msgspec.structs.replace(two, nodes=0).nodes == 1
    assert msgspec.json.decode(msgspec.json.encode(two), type=JobSpec) == two
    assert spec(Launch(mode="host"), gpus_min=2, gpus_max=2).nodes == 0


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"gpus_min": 1, "gpus_max": 2, "batch_size": 8}, "one process keeps its GPUs"),
        (
            {"gpus_min": 4, "gpus_max": 4, "nodes": 2},
            "one process uses the GPUs of one host, and nodes are 2",
        ),
    ],
)
def test_it_is_neither_elastic_nor_on_several_hosts(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        spec(**fields)
    spec(Launch(), **fields)


def test_it_is_never_placed_on_two_hosts() -> None:
    desk = Desk("fifo", report("a", 1), report("b", 1))
    desk.submit(1, gpus=2, mode="process", expected_s=10.0)
    assert desk.engine.never_fits(desk.job(1).spec) is not None
    desk.submit(2, gpus=2, mode="worker", expected_s=10.0)
    assert (desk.devices(1), len(desk.devices(2))) == ((), 2)


@pytest.mark.parametrize(("mode", "is_possible"), [("process", True), ("host", True), ("worker", False)])
def test_a_terminal_is_that_of_one_process(mode: Any, is_possible: bool) -> None:
    launch = Launch(mode=mode, terminal=True)
    if is_possible:
        spec(launch, gpus_min=2, gpus_max=2, nodes=1)
    else:
        with pytest.raises(ValueError, match="has one rank"):
            spec(launch, gpus_min=2, gpus_max=2, nodes=1)
