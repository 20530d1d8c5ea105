"""What `queue` and the page list: filters, arrays in one row, pages, and ended jobs with the newest first."""

from __future__ import annotations

from typing import Any

import pytest

from cotenant.controller.domain import JobId, Launch, Phase
from cotenant.controller.present.jobs import COLUMNS, ENDED_COLUMNS
from cotenant.controller.wire import clients
from tests.controller.station import ADMIN, ALICE, BOB, Station, job, run_one

CALL = ("python", "-m", "cotenant.controller.python.inside", "--", "/tmp/f/0", "add")


@pytest.fixture
def array(station: Station) -> Station:
    """One device. Job 1 runs; 2_0 to 2_4 are an array of which 2_0 was cancelled; 7 is bob's."""
    address = station.join()
    station.submit(name="first")
    run_one(station, address, JobId("1"), until="step")
    tasks = tuple(job("sweep", job_id=JobId(f"new-{at}")) for at in range(5))
    station.ask(clients.Submit(specs=tasks, array_indices=(0, 1, 2, 3, 4)), ALICE)
    station.submit(BOB, name="Eval", launch=Launch(argv=("bash", "/home/bob/nightly.sh"), workdir="/tmp"))
    station.ask(clients.ChangeJobs(verb="cancel", job_ids=(JobId("2_0"),)), ALICE)
    return station


def listed(station: Station, **more: Any) -> list[str]:
    return [each.job_id for each in station.ask(clients.ListJobs(**more)).jobs]


def test_an_array_is_one_row_that_counts_all_its_tasks(array: Station) -> None:
    reply = array.ask(clients.ListJobs(fold=True))
    assert [each.job_id for each in reply.jobs] == ["1", "2_1", "7"]
    assert [each.array for each in reply.jobs] == [
        None,
        clients.ArrayView(
            number="2", first=0, last=4, tasks=5, by_state={Phase.QUEUED: 4, Phase.CANCELLED: 1}
        ),
        None,
    ]
    assert reply.by_state == {"running": 1, "queued": 5}, "jobs that match, not rows"


def test_one_task_alone_is_not_folded(array: Station) -> None:
    (row,) = array.ask(clients.ListJobs(fold=True, text="2_3")).jobs
    assert (row.job_id, row.array) == ("2_3", None)


def test_a_folded_array_stays_on_the_page_that_it_was_on(array: Station) -> None:
    first = array.ask(clients.ListJobs(fold=True, page=2))
    array.ask(clients.ChangeJobs(verb="cancel", job_ids=(JobId("2_1"),)), ALICE)
    second = array.ask(clients.ListJobs(fold=True, page=2, after=first.next))
    assert [each.job_id for each in (*first.jobs, *second.jobs)] == ["1", "2_1", "7"]
    assert second.next == 0


def test_tasks_of_an_array_come_in_pages(array: Station) -> None:
    first = array.ask(clients.ListJobs(job_ids=(JobId("2"),), page=3))
    second = array.ask(clients.ListJobs(job_ids=(JobId("2"),), page=3, after=first.next))
    assert [each.job_id for each in (*first.jobs, *second.jobs)] == ["2_0", "2_1", "2_2", "2_3", "2_4"]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"text": "EVAL"}, ["7"]),
        ({"text": "nightly bob"}, ["7"]),
        ({"text": "nightly alice"}, []),
        ({"text": "train.py sweep"}, ["2_1", "2_2", "2_3", "2_4"]),
        ({"name": "fir"}, ["1"]),
        ({"name": "train"}, []),
        ({"kind": "array"}, ["2_1", "2_2", "2_3", "2_4"]),
        ({"kind": "script"}, ["7"]),
        ({"kind": "command"}, ["1"]),
        ({"kind": "function"}, ["8"]),
        ({"user": "bob"}, ["7", "8"]),
    ],
)
def test_a_listing_is_filtered(array: Station, wanted: dict[str, str], found: list[str]) -> None:
    array.submit(BOB, name="add", launch=Launch(argv=CALL, workdir="/tmp"))
    assert listed(array, **wanted) == found


def test_ended_jobs_come_newest_first_and_in_pages(array: Station) -> None:
    for number in ("7", "2_3", "1"):
        array.time_s += 1.0
        array.ask(clients.ChangeJobs(verb="cancel", job_ids=(JobId(number),)), ADMIN)
    assert listed(array, ended=True) == ["2_3", "7", "2_0"], "1 still leaves its device"
    assert listed(array, ended=True, fold=True) == ["2_3", "7"], "an array stands where its newest end is"
    first = array.ask(clients.ListJobs(ended=True, page=2))
    array.ask(clients.ChangeJobs(verb="cancel", job_ids=(JobId("2_4"),)), ALICE)
    second = array.ask(clients.ListJobs(ended=True, page=2, before=first.next_before))
    assert [each.job_id for each in (*first.jobs, *second.jobs)] == ["2_3", "7", "2_0"]
    assert (first.next, second.next_before, first.by_state) == (0, None, {"cancelled": 3})


@pytest.mark.parametrize("count", [True, False])
def test_folded_pages_are_the_folded_listing_in_parts(array: Station, *, count: bool) -> None:
    whole = array.ask(clients.ListJobs(fold=True)).jobs
    pages, after = [], 0
    while True:
        page = array.ask(clients.ListJobs(fold=True, page=1, after=after, count=count))
        assert bool(page.by_state) is count
        pages += page.jobs
        after = page.next
        if not after:
            break
    assert [(each.job_id, each.array) for each in pages] == [(each.job_id, each.array) for each in whole]


def test_a_brief_row_says_all_that_a_table_shows(array: Station) -> None:
    whole, brief = (array.ask(clients.ListJobs(brief=brief)).jobs for brief in (False, True))
    assert all(each.eta is None for each in brief)
    for column in (*COLUMNS, *ENDED_COLUMNS):
        assert [column.text(each) for each in brief] == [column.text(each) for each in whole]


def test_a_row_is_sent_without_its_defaults_and_read_with_them(array: Station) -> None:
    address = array.post(clients.ListJobs(text="nightly"))
    array.settle()
    (frame,) = [frame for to, frame in array.sent if to == address]
    (row,) = array.answers(address)[0].jobs
    assert b"broken_promises" not in frame
    assert (type(row), row.broken_promises, row.speedups) == (clients.JobView, 0, ())
