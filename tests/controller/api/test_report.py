"""The report of a controller: asked of a real desk, before and after a restart."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cotenant.controller.domain import JobId
from cotenant.controller.domain import events as ev
from cotenant.controller.wire import clients
from tests.controller.building import profile
from tests.controller.station import Station, run_one

ALONE = profile(8, (1, 0.1, 100.0), duty=0.4)


def shared(station: Station) -> list[JobId]:
    """Two jobs that train together for 60 s, and how far they have come by then."""
    address = station.join()
    jobs = []
    for _ in range(2):
        jobs.append(station.submit(expected_s=900.0, profile=ALONE, batch_size=8, memory_mib=100))
        run_one(station, address, jobs[-1], until="step")
    station.tick(60.0)
    for job_id in jobs:
        station.core.happen(ev.ProgressSeen(job_id=job_id, attempt=1, step=500, step_s=0.12))  # type: ignore[arg-type]
    station.settle()
    return jobs


def test_the_report_is_the_sum_of_what_jobs_and_pairs_say(stations: Callable[..., Station]) -> None:
    station = stations(policy="castor")
    jobs = shared(station)
    report = station.ask(clients.GetReport()).report
    shown = [station.ask(clients.ShowJob(job_id=job_id)).job for job_id in jobs]
    assert [row.beside for job in shown for row in job.shared] == [(jobs[1],), (jobs[0],)]
    assert report.sharing.jobs == 2
    assert report.sharing.won_device_s > 0.0
    assert report.sharing.won_device_s == pytest.approx(sum(job.won_device_s for job in shown))
    assert sum(pair.won_device_s for pair in report.pairs) == pytest.approx(report.sharing.won_device_s)
    (pair,) = (each for each in report.pairs)
    assert pair.first == pair.second == "python train.py, batch 8"
    assert station.ask(clients.GetReport(since_s=0.0)).report.sharing.jobs == 0


def test_a_restart_tells_the_same_story(stations: Callable[..., Station]) -> None:
    station = stations(policy="castor")
    jobs = shared(station)
    before = [station.ask(clients.ShowJob(job_id=job_id)).job for job_id in jobs]
    report = station.ask(clients.GetReport()).report
    station = stations(policy="castor", wall_s=station.wall_s + station.time_s)
    again = [station.ask(clients.ShowJob(job_id=job_id)).job for job_id in jobs]
    assert [job.shared for job in again] == [job.shared for job in before]
    assert station.ask(clients.GetReport()).report.sharing == report.sharing
