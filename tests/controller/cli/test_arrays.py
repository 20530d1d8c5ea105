"""An array's number works in every verb that takes a job, and `queue` has one row for an array."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec
import pytest

from cotenant.controller.cli.verbs import BY_NAME
from cotenant.controller.domain import JobId
from cotenant.controller.flags import Declared
from cotenant.controller.wire import clients
from tests.building.stand_in import StandIn
from tests.controller.cli.conftest import Cotenant
from tests.controller.station import ADMIN, Station, job, run_one


@pytest.fixture
def station(tmp_path: Path) -> Iterator[Station]:
    """Of the array 1, task 0 runs, 1 and 2 wait, 3 and 4 are cancelled; only the journal knows 3."""
    station = Station(tmp_path / "state", keep_ended=1)
    address = station.join()
    tasks = tuple(job("sweep", job_id=JobId(f"new-{at}"), resumable=True) for at in range(5))
    station.ask(clients.Submit(specs=tasks, array_indices=(0, 1, 2, 3, 4)))
    run_one(station, address, JobId("1_0"), until="step")
    for task in ("1_3", "1_4"):
        station.ask(clients.ChangeJobs(verb="cancel", job_ids=(JobId(task),)))
    assert "1_3" not in station.core.state.engine.jobs
    yield station
    station.close()


@pytest.fixture
def array(controller: StandIn, station: Station) -> StandIn:
    """The command line's controller is that station; logs are invented, and nobody waits."""
    for kind in get_args(clients.AnyRequest):
        controller.says(kind, lambda body: station.ask(body, ADMIN))
    controller.says(clients.WaitJobs, lambda body: station.ask(msgspec.structs.replace(body, timeout_s=0.0)))
    controller.says(clients.ReadJobLog, read)
    return controller


def read(asked: clients.ReadJobLog) -> clients.LogPart:
    whole = b"first\nlast of %s\n" % asked.job_id.encode()
    data = whole[asked.offset :]
    return clients.LogPart(
        request_id=0, job_id=asked.job_id, attempt=1, rank=0, data=data, next_offset=len(whole), at_end=True,
        closed=True, attempts=(1,), ranks=1,
    )  # fmt: skip


ALL = ("1_0", "1_1", "1_2", "1_3", "1_4")
VERBS: dict[str, tuple[list[str], int, tuple[str, ...]]] = {
    "queue": (["1"], 0, ALL),
    "show": (["1"], 0, ("array 1  sweep  1 run, 2 wait, 2 ended", *ALL)),
    "eta": (["1"], 0, ("1_0", "1_1", "1_2")),
    "explain": (["1"], 0, ("array 1: 1 run, 2 wait, 2 ended", "job 1_1 (sweep): queued")),
    "logs": (["1"], 0, ("1_0| first\n1_0| last of 1_0\n", "array 1: 1 run, 2 wait, 2 ended")),
    "wait": (
        ["1", "--timeout", "1s"],
        1,
        ("job 1_4 (sweep) cancelled", "not ended within 1s: 1_0, 1_1, 1_2"),
    ),
    "cancel": (["1"], 0, ("job 1_1 is cancelled", "job 1_3 has already ended")),
    "hold": (["1"], 0, ("job 1_1 is held", "job 1_0 is running: only waiting jobs can be held")),
    "release": (["1"], 1, ("job 1_1 is queued: only held jobs can be released",)),
    "preempt": (["1"], 0, ("job 1_0 saves its state and makes room", "job 1_2 is queued")),
    "requeue": (
        ["1"],
        0,
        ("job 1_0 leaves its devices", "job 1_4 (cancelled) queues again", "submit it again"),
    ),
    "set": (["1", "priority=5"], 0, ("job 1_1: priority 0 -> 5", "job 1_2: priority 0 -> 5")),
    "history": (["1"], 0, ("1_3", "1_4")),
    "attach": (["1"], 3, ("it is an array",)),
    "checkpoint": (["1"], 0, ("job 1_0 saves its state and goes on",)),
}


def takes_jobs(verb: str) -> bool:
    function = getattr(import_module(BY_NAME[verb].full_module), verb, None)
    if not inspect.isfunction(function):
        return False
    hints = get_type_hints(function, include_extras=True).values()
    declared = [each for hint in hints for each in get_args(hint) if isinstance(each, Declared)]
    return any(not each.flags and "JOB" in (each.metavar or "") for each in declared)


def test_every_verb_that_takes_a_job_is_in_the_table() -> None:
    assert {verb for verb in BY_NAME if takes_jobs(verb)} == set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_an_arrays_number_works(verb: str, array: StandIn, cotenant: Cotenant) -> None:
    words, code, texts = VERBS[verb]
    result = cotenant(verb, *words)
    told = result.out + result.err
    assert [text for text in texts if text not in told] == [], told
    assert result.code == code


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("word", ["1_[0-4]", "1_[0,1,2,3-4%2]", "1_0,1_[1-2],1_3,1_4"])
def test_every_verb_takes_what_queue_prints_and_lists(
    verb: str, word: str, array: StandIn, cotenant: Cotenant
) -> None:
    words, code, texts = VERBS[verb]
    result = cotenant(verb, word, *words[1:])
    told = result.out + result.err
    if verb == "attach":
        texts = ("it is several jobs: try 1_",)
    if verb == "logs":
        texts = (texts[0], f"array {word}: 1 run, 2 wait, 2 ended")
    if verb == "set" and word == "1_[0,1,2,3-4%2]":  # A task that is named need not wait.
        texts = ("job 1_0: priority 0 -> 5", *texts)
    if verb == "set" and word.endswith("1_4"):
        code, texts = 1, ("job 1_3 has ended (cancelled)",)
    assert [text for text in texts if text not in told] == [], told
    assert result.code == code


@pytest.mark.parametrize("verb", VERBS)
def test_what_names_no_job_is_refused_by_name(verb: str, array: StandIn, cotenant: Cotenant) -> None:
    for word in ("1_[0-", "train", "1,1_[4-1]"):
        result = cotenant(verb, word, *VERBS[verb][0][1:])
        assert (result.code, f"'{word.rpartition(',')[2]}' names no job" in result.err) == (2, True), result


def test_several_jobs_in_one_word(array: StandIn, station: Station, cotenant: Cotenant) -> None:
    other = station.submit(ADMIN, name="other")
    rows = [line.split()[0] for line in cotenant("show", f"1_[1-2],{other}").out.splitlines()]
    assert rows == ["array", "JOB", "1_1", "1_2", other]
    assert cotenant("logs", f"1_0,{other}").out == "1_0| first\n1_0| last of 1_0\n"
    refused = cotenant("explain", f"1_1,{other}")
    assert (refused.code, f"2 jobs are named (1_1, {other}), and this takes one" in refused.err) == (2, True)


@pytest.mark.parametrize("verb", VERBS)
def test_a_number_that_nothing_has_is_not_found(verb: str, array: StandIn, cotenant: Cotenant) -> None:
    result = cotenant(verb, "77", *VERBS[verb][0][1:])
    assert (result.code, "no job 77" in result.err) == (3, True), result


def test_queue_has_one_row_for_an_array_and_json_a_job_each(array: StandIn, cotenant: Cotenant) -> None:
    (row,) = cotenant("queue").out.splitlines()[1:]
    assert "1_[0-4]" in row
    assert "1 run, 2 wait, 2 ended" in row
    assert cotenant("queue", "-o", "id").out.split() == ["1_0", "1_1", "1_2"]
    assert len(cotenant("queue", "--tasks").out.splitlines()) == 4
    (folded,) = json.loads(cotenant("queue", "--fold", "--json").out)["jobs"]
    assert folded["array"]["by_state"] == {"running": 1, "queued": 2, "cancelled": 2}


def test_queue_of_ended_jobs_has_the_newest_first(array: StandIn, cotenant: Cotenant) -> None:
    cotenant("cancel", "1_2")
    head, *rows = cotenant("queue", "--ended", "--tasks").out.splitlines()
    assert (head.split()[:5], [row.split()[0] for row in rows]) == (
        ["JOB", "NAME", "STATE", "EXIT", "ENDED"], ["1_2"],
    )  # fmt: skip
    told = cotenant("queue", "--ended", "--name", "other").err
    assert told == (
        "no such job has ended\n"
        "2 older jobs in no list (controller.keep_ended): `show` and `logs` answer by number\n"
    )


def test_logs_of_an_array_end_with_the_last_lines_of_each_task(array: StandIn, cotenant: Cotenant) -> None:
    assert cotenant("logs", "1", "--tail", "1").out == "1_0| last of 1_0\n"


def test_following_an_array_ends_when_its_tasks_have(
    array: StandIn, station: Station, cotenant: Cotenant
) -> None:
    cotenant("cancel", "1_2")

    def read_and_go_on(asked: clients.ReadJobLog) -> clients.LogPart:
        """Task 0 ends when it has been read; task 1 starts then, and ends when it has been read."""
        run_one(station, b"agent-h1", asked.job_id)
        return read(asked)

    array.says(clients.ReadJobLog, read_and_go_on)
    assert cotenant("logs", "-f", "1").out.splitlines() == [
        "1_0| first", "1_0| last of 1_0", "1_1| first", "1_1| last of 1_1",
    ]  # fmt: skip
