"""The smallest change with which a waiting job would fit: what is told, and that it is so."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.api import change_spec
from cotenant.controller.domain import JobId, Phase, render
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import cheapest_change
from cotenant.controller.submission.settings import setting
from tests.controller.building import Desk, report


def waits(**asks: Any) -> Desk:
    """Two hosts; one device of each is free, and job 9 waits."""
    hosts = report("a", 2, type="T4", memory_mib=1000), report("b", 2, type="V100", memory_mib=4000)
    desk = Desk("fifo", *hosts)
    desk.run(1, gpu_type="T4", expected_s=100.0)
    desk.run(2, gpu_type="V100", expected_s=100.0)
    desk.submit(9, **{"expected_s": 10.0, **asks})
    return desk


def told(desk: Desk) -> str:
    reason = cheapest_change(desk.engine.ledger, desk.job(9))
    return "" if reason is None else render(reason).partition("`")[2].strip("`")


@pytest.mark.parametrize(
    ("asks", "command"),
    [
        ({"gpus": 2, "gpu_type": "T4"}, "cotenant set 9 gpus=1"),
        ({"gpus": 2, "nodes": 1}, "cotenant set 9 gpus=1"),
        ({"gpus": 2, "mode": "process"}, "cotenant set 9 gpus=1"),
        ({"gpus": 2, "nodes": 2, "gpu_type": "T4"}, ""),
    ],
)
def test_the_first_change_that_helps_is_told(asks: dict[str, Any], command: str) -> None:
    assert told(waits(**asks)) == command


def test_a_job_that_fits_or_for_which_nothing_is_free_is_told_nothing() -> None:
    assert told(waits(gpus=2, hold=True)) == ""
    full = Desk("fifo", report("a", 1))
    full.run(1, expected_s=100.0)
    full.submit(9, gpus=1, expected_s=10.0)
    assert told(full) == ""


@given(
    gpus=st.integers(1, 4),
    nodes=st.integers(0, 2),
    gpu_type=st.sampled_from(("", "T4", "V100")),
    memory_mib=st.sampled_from((None, 900, 3000)),
    cpus=st.sampled_from((0, 2, 8)),
    taken=st.integers(0, 3),
)
@settings(max_examples=40)
def test_after_what_is_told_the_job_starts(
    gpus: int, nodes: int, gpu_type: str, memory_mib: int | None, cpus: int, taken: int
) -> None:
    desk = Desk(
        "fifo", report("a", 2, type="T4", memory_mib=1000), report("b", 2, type="V100", memory_mib=4000)
    )
    for number in range(taken):
        desk.run(number + 1, expected_s=100.0, cpus=3)
    asks = {
        "gpus": gpus,
        "nodes": nodes if nodes and gpus % nodes == 0 else 0,
        "gpu_type": gpu_type,
        "memory_mib": memory_mib,
    }
    desk.submit(9, **asks, cpus=cpus, expected_s=10.0)
    command = told(desk)
    if not command:
        return
    assert desk.job(9).phase is Phase.QUEUED
    changes = dict(map(setting, command.split()[3:]))
    spec = change_spec(desk.job(9), changes)
    names = [
        name
        for name in type(spec).__struct_fields__
        if getattr(spec, name) != getattr(desk.job(9).spec, name)
    ]
    changed = ev.SpecChanged(
        job_id=JobId("9"), changes={name: getattr(spec, name) for name in names}, by="ann"
    )
    desk.tell(changed)
    assert desk.job(9).phase is Phase.LOADING, command
