"""What the demo says of its jobs on their way, from what a controller tells of them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from cotenant.controller.cli.demo.cluster import QueueWatcher
from cotenant.controller.client.connection import Client
from cotenant.controller.domain import JobId, Phase
from cotenant.controller.wire import clients as wire
from tests.building.stand_in import StandIn


def told(controller: StandIn, replies: ModuleType, *views: dict[str, Any]) -> list[str]:
    """What is said while job 7 looks like each of these in turn."""
    said: list[str] = []
    controller.says(wire.ListJobs, replies.jobs())
    with Client(controller.endpoint) as client:
        watcher = QueueWatcher(client, said.append, {JobId("7"): "sonnets"})
        for view in views:
            controller.says(wire.ListJobs, replies.jobs(replies.job_view(**view)))
            watcher.look()
    return said


def test_a_first_step_is_told_when_it_was_seen_and_after_its_own_load(
    controller: StandIn, replies: ModuleType
) -> None:
    said = told(
        controller,
        replies,
        {"phase": Phase.RUNNING, "load_s": 4.0},
        {"phase": Phase.CHECKPOINTING, "load_s": 4.0},
        {"phase": Phase.LOADING, "attempt": 2, "load_s": 4.5},
        {"phase": Phase.RUNNING, "attempt": 2, "load_s": 7.0},
    )
    steps = [line for line in said if "first step" in line]
    assert steps == [
        "sonnets (7) trains: first step after 4.0 s of loading",
        "sonnets (7) trains: first step after 3.0 s of loading",
    ]


def test_of_an_assumed_start_no_first_step_is_told(controller: StandIn, replies: ModuleType) -> None:
    said = told(
        controller,
        replies,
        {"phase": Phase.RUNNING, "load_s": 10.0, "start_assumed": True},
        {"phase": Phase.RUNNING, "load_s": 14.0},
    )
    assert said == [
        "sonnets (7) counts as running: no steps are seen",
        "sonnets (7) trains: first step after 14.0 s of loading",
    ]
