"""The timeline that users are shown: attempts in the window, those who wait, and policies since when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from cotenant.controller.domain import AttemptNo, HostId
from cotenant.controller.domain import events as ev
from cotenant.controller.timeline import timeline_of_view
from cotenant.controller.wire import Report, clients
from tests.controller.station import ALICE, BOB, Station, run_one


@pytest.fixture
def busy(stations: Callable[..., Station]) -> Station:
    """Job 1 ran from 10 to 60 s, 2 runs since 100, 3 waits since 110; a policy was set at 70 s."""
    station = stations()
    agent = station.join("h1")
    station.tick(10.0)
    first = station.submit(ALICE)
    station.tick(50.0)
    run_one(station, agent, first)
    station.tick(10.0)
    station.ask(clients.SetPolicy(name="srtf"))
    station.tick(30.0)
    second = station.submit(BOB)
    run_one(station, agent, second, until="step")
    station.tick(10.0)
    station.submit(ALICE)
    station.tick(10.0)
    return station


def test_a_window_has_those_who_held_devices_in_it_and_those_who_waited(busy: Station) -> None:
    def jobs(since_s: float, until_s: float = 0.0) -> list[tuple[str, int]]:
        asked = clients.GetTimeline(since_s=since_s, until_s=until_s)
        view = busy.ask(asked, ALICE).timeline
        return [(job.job_id, len(job.attempts)) for job in view.jobs]

    assert jobs(1000.0) == [("1", 1), ("2", 1), ("3", 0)]
    assert jobs(30.0) == [("2", 1), ("3", 0)]
    assert jobs(1000.0, 30.0) == [("1", 1)]


def test_the_newest_come_first_and_the_rest_is_counted(busy: Station) -> None:
    view = busy.ask(clients.GetTimeline(since_s=1000.0, limit=1), BOB).timeline
    assert ([job.job_id for job in view.jobs], view.more) == (["2"], 2)


def test_policies_since_when_also_after_a_restart(busy: Station, stations: Callable[..., Station]) -> None:
    def told(station: Station) -> list[str]:
        view = station.ask(clients.GetTimeline(since_s=1000.0)).timeline
        return [change.policy for change in timeline_of_view(view, local_utc_offset_s=0.0).policies]

    assert told(busy) == ["fifo", "srtf"]
    busy.ask(clients.SetPolicy(name="srtf"))
    assert told(busy) == ["fifo", "srtf"], "the same once more is no change"
    assert told(stations()) == ["fifo", "srtf"]


def test_it_can_be_drawn(busy: Station) -> None:
    view = busy.ask(clients.GetTimeline(since_s=200.0)).timeline
    drawn = timeline_of_view(view, local_utc_offset_s=0.0)
    assert drawn.end_s == pytest.approx(200.0)
    assert {(s.job, s.phase) for s in drawn.segments} >= {("1", "loading"), ("2", "running")}
    assert [wait.job for wait in drawn.waits] == ["3"]


def test_a_script_that_tells_no_steps_has_run_all_the_same(stations: Callable[..., Station]) -> None:
    station = stations()
    agent = station.join("h1")
    job_id = station.submit(ALICE)
    station.tick(30.0)
    run_one(station, agent, job_id)
    view = station.ask(clients.GetTimeline(since_s=100.0)).timeline
    plain = view.jobs[0].attempts[0]
    unseen = msgspec.structs.replace(plain, first_step_at=None, first_step=None)
    jobs = (msgspec.structs.replace(view.jobs[0], attempts=(unseen,)),)
    drawn = timeline_of_view(msgspec.structs.replace(view, jobs=jobs), local_utc_offset_s=0.0)
    assert {segment.phase for segment in drawn.segments} == {"running"}


def test_a_script_that_tells_no_steps_has_run_since_its_launch(
    stations: Callable[..., Station],
) -> None:
    station = stations()
    agent = station.join("h1")
    job_id = station.submit(ALICE)
    of: dict[str, Any] = {"job_id": job_id, "attempt": AttemptNo(1), "host_id": HostId("h1")}
    station.tick(10.0)
    assumed = ev.FirstStepDone(**of, step=0, assumed=True)
    station.agent_says(agent, Report(sequence=1, event=assumed))
    station.tick(5.0)
    drawn = timeline_of_view(station.ask(clients.GetTimeline(since_s=100.0)).timeline, local_utc_offset_s=0.0)
    lasted = {each.phase: each.end_s - each.start_s for each in drawn.segments}
    assert lasted == {"running": pytest.approx(15.0)}
