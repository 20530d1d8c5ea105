"""Every question about jobs takes the words that lists print, and refuses by name what names no job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from cotenant.controller.domain import Dependency, JobId, Phase
from cotenant.controller.present.jobs import task_range
from cotenant.controller.slurm.aliases.listings import JOB_FIELDS
from cotenant.controller.wire import clients
from tests.controller.station import ALICE, Station, job

INDICES: Final = (0, 2, 4, 7)
OF_SEVERAL: Final[dict[str, Callable[[JobId], Any]]] = {
    "jobs": lambda word: clients.ListJobs(job_ids=(word,), include_ended=True),
    "history": lambda word: clients.ListPastJobs(job_ids=(word,)),
    "etas": lambda word: clients.ListEtas(job_ids=(word,)),
    "set": lambda word: clients.SetJobs(job_ids=(word,), changes={"retries": 1}),
    "hold": lambda word: clients.ChangeJobs(verb="hold", job_ids=(word,)),
    "release": lambda word: clients.ChangeJobs(verb="release", job_ids=(word,)),
    "after": lambda word: clients.Submit(specs=(job("child", after=(Dependency(job_id=word),)),)),
    "wait": lambda word: clients.WaitJobs(job_ids=(word,), timeout_s=0.0),
    "cancel": lambda word: clients.ChangeJobs(verb="cancel", job_ids=(word,)),
}
OF_ONE: Final[dict[str, Callable[[JobId], Any]]] = {
    "show": lambda word: clients.ShowJob(job_id=word),
    "explain": lambda word: clients.Explain(job_id=word),
    "log": lambda word: clients.ReadJobLog(job_id=word),
    "decisions": lambda word: clients.GetDecisions(job_id=word),
}


@pytest.fixture
def station(tmp_path: Path) -> Iterator[Station]:
    """Jobs 1 and 6, and between them the array 2 of four tasks; all wait for a host."""
    made = Station(tmp_path)
    made.submit(ALICE, name="first")
    tasks = tuple(job("sweep", job_id=JobId(f"new-{at}")) for at in range(len(INDICES)))
    made.ask(clients.Submit(specs=tasks, array_indices=INDICES), ALICE)
    made.submit(ALICE, name="last")
    yield made
    made.close()


def named(station: Station, word: str) -> list[str]:
    return [each.job_id for each in station.ask(clients.ListJobs(job_ids=(JobId(word),)), ALICE).jobs]


@pytest.mark.parametrize(
    ("word", "jobs"),
    [
        ("2", "2_0 2_2 2_4 2_7"),
        ("2_[0-4]", "2_0 2_2 2_4"),
        ("2_[0-4,7%2]", "2_0 2_2 2_4 2_7"),
        ("2_[0-7:4]", "2_0 2_4"),
        ("2_2,2_7", "2_2 2_7"),
        ("1,2_4,6", "1 2_4 6"),
        ("1,1", "1"),
    ],
)
def test_a_word_names_its_jobs(station: Station, word: str, jobs: str) -> None:
    assert named(station, word) == jobs.split()


def printed(station: Station) -> set[str]:
    """What `queue` and `squeue` print for a job."""
    (first, array, last) = station.ask(clients.ListJobs(fold=True), ALICE).jobs
    assert array.array is not None
    folded = {first.job_id, last.job_id, task_range(array.array)}
    tasks = station.ask(clients.ListJobs(), ALICE).jobs
    return folded | {JOB_FIELDS[letter].value(each) for letter in "iAF" for each in tasks}


@pytest.mark.parametrize("verb", OF_SEVERAL)
def test_every_verb_takes_what_lists_print(station: Station, verb: str) -> None:
    for word in sorted(printed(station)):
        if verb == "release":
            station.ask(OF_SEVERAL["hold"](JobId(word)), ALICE)
        if verb in ("hold", "cancel"):  # A second time is refused, but not by name.
            word = f"{word},{station.submit(ALICE)}"
        answer = station.ask(OF_SEVERAL[verb](JobId(word)), ALICE)
        assert not isinstance(answer, clients.Failure), (word, answer)


@pytest.mark.parametrize("verb", OF_ONE)
def test_a_question_about_one_job_takes_each_word_for_one(station: Station, verb: str) -> None:
    for word in ("1", "2_4", "2_[4]", "2_[3-5]", "2_4,", "2_4,2_[3-6]"):
        answer = station.ask(OF_ONE[verb](JobId(word)), ALICE)
        assert not isinstance(answer, clients.Failure), (word, answer)
    several = station.ask(OF_ONE[verb](JobId("2_[0-3]")), ALICE)
    assert (several.code, several.hint) == ("not-found", "it is several jobs: try 2_0")


@pytest.mark.parametrize("verb", [*OF_SEVERAL, *OF_ONE])
@pytest.mark.parametrize("word", ["2_[1-", "2_[7-0]", "train", "1,train", "2_"])
def test_what_names_no_job_is_refused_by_name(station: Station, verb: str, word: str) -> None:
    refused = station.ask((OF_SEVERAL | OF_ONE)[verb](JobId(word)), ALICE)
    assert isinstance(refused, clients.Failure) and refused.code == "usage"
    assert word.split(",")[-1] in refused.message
    assert {each.phase for each in station.ask(clients.ListJobs(), ALICE).jobs} == {Phase.QUEUED}


def test_a_row_of_named_tasks_counts_those_alone(station: Station) -> None:
    station.ask(clients.ChangeJobs(verb="cancel", job_ids=(JobId("2_[0-2]"),)), ALICE)
    (row,) = station.ask(clients.ListJobs(job_ids=(JobId("2_[2-4]"),), fold=True, include_ended=True)).jobs
    assert row.array == clients.ArrayView(
        number="2", first=2, last=4, tasks=2, by_state={Phase.CANCELLED: 1, Phase.QUEUED: 1}
    )
    assert row.job_id == "2_4", "one that waits has a reason to"


def test_a_job_waits_for_some_tasks_of_an_array(station: Station) -> None:
    child = station.ask(OF_SEVERAL["after"](JobId("2_[0-4]")), ALICE).job_ids[0]
    waits = station.core.state.engine.jobs[child].spec.after
    assert [each.job_id for each in waits] == ["2_0", "2_2", "2_4"]
    refused = station.ask(OF_SEVERAL["after"](JobId("2_4,99")), ALICE)
    assert isinstance(refused, clients.Failure) and "which is not known" in refused.message
