"""A job that the engine has forgotten is still known by its number: the journal has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cotenant.controller.domain import JobId, Phase
from cotenant.controller.wire import clients
from tests.controller.station import ALICE, BOB, Station, job, run_one


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Station]:
    station = with_ended_jobs(tmp_path)
    yield station
    station.close()


def with_ended_jobs(folder: Path) -> Station:
    """Two ended jobs are kept in memory. 1 ran and is done; of the array 2_0 to 2_4 all are cancelled."""
    station = Station(folder, keep_ended=2)
    address = station.join()
    station.submit(BOB, name="first")
    run_one(station, address, JobId("1"))
    tasks = tuple(job("sweep", job_id=JobId(f"new-{at}"), hold=True) for at in range(5))
    station.ask(clients.Submit(specs=tasks, array_indices=(0, 1, 2, 3, 4)), ALICE)
    station.ask(clients.ChangeJobs(verb="cancel", job_ids=(JobId("2"),)), ALICE)
    return station


def test_what_is_pushed_out_of_memory_is_answered_from_the_journal(small: Station) -> None:
    assert list(small.core.state.engine.jobs) == ["1", "2_4"]
    shown = small.ask(clients.ShowJob(job_id=JobId("2_1"))).job
    assert (shown.phase, shown.name, shown.spec.launch.argv) == ("cancelled", "sweep", ("python", "train.py"))
    why = small.ask(clients.Explain(job_id=JobId("2_1"))).explanation
    assert why.reason == shown.reason == "cancelled by alice"
    assert [each.job_id for each in small.ask(clients.ListJobs(job_ids=(JobId("2"),))).jobs] == [
        f"2_{at}" for at in range(5)
    ]
    assert len(small.ask(clients.ListPastJobs(job_ids=(JobId("2"),))).jobs) == 5


def test_a_job_that_ran_is_forgotten_with_its_attempts_and_its_notes(small: Station) -> None:
    before = small.ask(clients.ShowJob(job_id=JobId("1"))).job
    why = small.ask(clients.Explain(job_id=JobId("1"))).explanation.lines
    for at in range(3):
        job_id = small.submit(BOB, name=f"later-{at}")
        run_one(small, b"agent-h1", job_id)
    assert "1" not in small.core.state.engine.jobs
    assert before.verbs == ("requeue",)
    # The controller cannot queue it again any more, and does not offer to.
    assert small.ask(clients.ShowJob(job_id=JobId("1"))).job == msgspec.structs.replace(before, verbs=())
    assert small.ask(clients.Explain(job_id=JobId("1"))).explanation.lines == why
    (past,) = small.ask(clients.ListPastJobs(job_ids=(JobId("1"),))).jobs
    assert past.attempts == 1


def test_an_array_counts_tasks_that_only_the_journal_knows(small: Station) -> None:
    (row,) = small.ask(clients.ListJobs(job_ids=(JobId("2"),), fold=True)).jobs
    assert row.array == clients.ArrayView(number="2", first=0, last=4, tasks=5, by_state={Phase.CANCELLED: 5})


def test_an_array_that_only_the_journal_knows_is_an_array(small: Station) -> None:
    for at in range(2):
        run_one(small, b"agent-h1", small.submit(ALICE, name=f"later-{at}"))
    assert not [each for each in small.core.state.engine.jobs if each.startswith("2_")]
    (row,) = small.ask(clients.ListJobs(job_ids=(JobId("2"),), fold=True)).jobs
    assert row.array == clients.ArrayView(number="2", first=0, last=4, tasks=5, by_state={Phase.CANCELLED: 5})


def test_forgetting_survives_a_restart(tmp_path: Path) -> None:
    with_ended_jobs(tmp_path).close()
    again = Station(tmp_path, keep_ended=1)
    again.submit(ALICE, hold=True)
    again.ask(clients.ChangeJobs(verb="cancel", job_ids=(JobId("7"),)), ALICE)
    assert list(again.core.state.engine.jobs) == ["1"]
    shown = [again.ask(clients.ShowJob(job_id=JobId(each))) for each in ("1", "2_0", "2_4", "7")]
    assert [each.job.phase for each in shown] == ["done", "cancelled", "cancelled", "cancelled"]
    again.close()


def test_who_waits_hears_of_jobs_that_were_forgotten_as_they_ended(small: Station) -> None:
    tasks = tuple(job("more", job_id=JobId(f"new-{at}"), hold=True) for at in range(5))
    (array, *_) = small.ask(clients.Submit(specs=tasks, array_indices=(0, 1, 2, 3, 4)), ALICE).job_ids
    waits = small.post(clients.WaitJobs(job_ids=(JobId(array.partition("_")[0]),), timeout_s=30.0), ALICE)
    small.ask(clients.ChangeJobs(verb="cancel", job_ids=(JobId(array.partition("_")[0]),)), ALICE)
    (answer,) = small.answers(waits)
    assert [each.phase for each in answer.jobs] == ["cancelled"] * 5


def test_nothing_can_be_changed_of_a_forgotten_job(small: Station) -> None:
    forgotten = (JobId("2_0"),)
    refused = small.ask(clients.ChangeJobs(verb="requeue", job_ids=forgotten), ALICE)
    assert isinstance(refused, clients.Failure)
    assert "submit it again" in refused.message
    refused = small.ask(clients.ChangeJobs(verb="cancel", job_ids=forgotten), ALICE)
    assert isinstance(refused, clients.Failure)
    assert "has already ended" in refused.message


def test_the_log_of_a_forgotten_job_is_its_owners(small: Station) -> None:
    refused = small.ask(clients.ReadJobLog(job_id=JobId("2_0")), BOB)
    assert isinstance(refused, clients.Failure)
    assert "it belongs to alice" in refused.message
    part = small.ask(clients.ReadJobLog(job_id=JobId("2_0")), ALICE)
    assert (part.missing, part.closed) == ("it never started", True)


def test_a_number_that_nobody_ever_had_is_not_found(small: Station) -> None:
    for unknown in ("99", "2_5", "99_[0-3]", "2_[5-9]"):
        refused = small.ask(clients.ShowJob(job_id=JobId(unknown)))
        assert isinstance(refused, clients.Failure)
        assert (refused.code, refused.message) == ("not-found", f"no job {unknown}")
    for unreadable in ("", "2_", "x", "2_[3-1]", "2,x"):
        refused = small.ask(clients.ShowJob(job_id=JobId(unreadable)))
        assert isinstance(refused, clients.Failure)
        assert refused.code == "usage" and "names no job: write 7, 38_2, 38_[0-3,7]" in refused.message
