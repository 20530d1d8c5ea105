"""Hosts that are asked of Slurm: who may ask, what is refused, and that it is all in the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant.controller.domain import AllocationTerms, HostShape
from cotenant.controller.wire import clients
from tests.controller.station import ALICE, Station, job


@pytest.fixture
def stations(tmp_path: Path) -> Iterator[Callable[..., Station]]:
    made: list[Station] = []

    def make(**more: Any) -> Station:
        made.append(Station(tmp_path, **{"endpoint": "tcp://0.0.0.0:7", **more}))
        return made[-1]

    yield make
    made[-1].close()


def add(**more: Any) -> clients.AddAllocations:
    plain: dict[str, Any] = {"name": "s", "max_hosts": 2, "time_limit_s": 600.0, "folder": "/shared", **more}
    return clients.AddAllocations(terms=AllocationTerms(shape=HostShape(devices=4), **plain))


def test_a_queue_is_added_changed_and_told_of_over_a_restart(stations: Callable[..., Station]) -> None:
    station = stations()
    assert "up to 2 hosts" in station.ask(add()).lines[0]
    assert station.ask(add()).code == "refused", "the name is taken"
    for verb in ("pause", "resume", "pause"):
        assert station.ask(clients.ChangeAllocations(verb=verb, name="s")).lines
    station.close()
    station = stations()
    (queue,) = station.ask(clients.ListAllocations(), ALICE).queues
    assert (queue.name, queue.is_paused, queue.added_by, queue.decided) == ("s", True, "root", False)
    lines = station.ask(clients.GetAllocationLog(name="s"), ALICE).lines
    assert [line.text for line in lines] == [
        "added by root",
        "paused by root",
        "resumed by root",
        "paused by root",
    ]
    assert station.ask(clients.ChangeAllocations(verb="remove", name="s")).lines
    assert station.ask(clients.ChangeAllocations(verb="resume", name="s")).code == "refused"


def test_what_is_refused(stations: Callable[..., Station]) -> None:
    station = stations(endpoint="ipc:///x")
    assert station.ask(add(), ALICE).code == "not-allowed"
    refused = station.ask(add())
    assert (refused.code, "cannot reach ipc" in refused.message) == ("refused", True)
    assert station.ask(clients.ChangeAllocations(verb="pause", name="s")).code == "not-found"
    assert station.ask(clients.GetAllocationLog(name="s")).code == "not-found"


def test_a_job_that_only_such_a_host_could_run_may_be_submitted(stations: Callable[..., Station]) -> None:
    station = stations()
    station.join("h1", devices=1)
    wide = clients.Submit(specs=(job(gpus_min=4, gpus_max=4, nodes=1),))
    assert station.ask(wide, ALICE).code == "never-fits"
    station.ask(add())
    assert isinstance(station.ask(wide, ALICE), clients.Submitted)
    wider = clients.Submit(specs=(job(gpus_min=8, gpus_max=8, nodes=1),))
    assert station.ask(wider, ALICE).code == "never-fits"
