"""Where no controller runs, this account's journal answers as its controller has answered."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cotenant.agent.ipc.records import attempt_folder
from cotenant.controller.client.asking import own_journal
from cotenant.controller.domain import JobId
from cotenant.controller.from_journal import JournalAnswers
from cotenant.controller.system.endpoint import SYSTEM_ENDPOINT
from cotenant.controller.system.sections import AgentSettings, ControllerSettings, Settings
from cotenant.controller.wire import clients as wire
from tests.controller.api.test_forgotten import with_ended_jobs
from tests.controller.station import Station

QUESTIONS: tuple[wire.AnyRequest, ...] = (
    wire.ListJobs(include_ended=True),
    wire.ListJobs(ended=True, fold=True),
    wire.ListJobs(job_ids=(JobId("2"),), include_ended=True),
    wire.ShowJob(job_id=JobId("2_4")),
    wire.ShowJob(job_id=JobId("2_1")),
    wire.ShowJob(job_id=JobId("77")),
    wire.Explain(job_id=JobId("1")),
    wire.ListPastJobs(),
    wire.GetUsage(),
    wire.GetReport(),
    wire.ListPairs(),
    wire.GetDecisions(),
)
MOMENTS = ("now", "request_id", "now_s", "wall_s", "verbs", "told", "settable")
"""Not part of what happened: when it was asked, and what may be changed now."""


def settings_of(folder: Path, **more: Any) -> Settings:
    return Settings(
        controller=ControllerSettings(state_dir=str(folder), **more),
        agent=AgentSettings(state_dir=str(folder / "agent")),
    )


def without_moments(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_moments(each) for key, each in value.items() if key not in MOMENTS}
    return [without_moments(each) for each in value] if isinstance(value, list) else value


@pytest.fixture
def station(tmp_path: Path) -> Iterator[Station]:
    made = with_ended_jobs(tmp_path)
    yield made
    made.close()


def test_the_journal_answers_as_the_controller_has(station: Station, tmp_path: Path) -> None:
    said = [station.ask(question) for question in QUESTIONS]
    told: list[float] = []
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name == "journal.sqlite"}
    answers = JournalAnswers(tmp_path, settings_of(tmp_path), told.append)
    assert not told
    for question, expected in zip(QUESTIONS, said, strict=True):
        found = answers.ask(question)
        assert type(found) is type(expected), question
        assert without_moments(msgspec.to_builtins(found)) == without_moments(msgspec.to_builtins(expected))
    answers.close()
    assert told == [station.wall_s + station.time_s]
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_a_controller_goes_on_while_its_journal_is_read(tmp_path: Path) -> None:
    station = with_ended_jobs(tmp_path)
    answers = JournalAnswers(tmp_path, settings_of(tmp_path), lambda wall_s: None)
    asked = wire.ListJobs(include_ended=True)
    before = answers.ask(asked)
    station.submit(name="later")
    assert len(station.ask(asked).jobs) == 3
    assert answers.ask(asked) == before
    station.close()
    Station(tmp_path).close()  # The next controller starts, reader or not.
    answers.close()


def test_a_log_is_read_from_the_files_that_lie_here(station: Station, tmp_path: Path) -> None:
    logs = attempt_folder(tmp_path / "agent" / "attempts", "1", 1) / "logs"
    logs.mkdir(parents=True)
    (logs / "rank-0.log").write_bytes(b"epoch 1 loss 0.5\n")
    answers = JournalAnswers(tmp_path, settings_of(tmp_path), lambda wall_s: None)
    part = answers.ask(wire.ReadJobLog(job_id=JobId("1"), wait_s=60.0))
    assert isinstance(part, wire.LogPart)
    assert (part.data, part.at_end, part.missing) == (b"epoch 1 loss 0.5\n", True, "")
    never = answers.ask(wire.ReadJobLog(job_id=JobId("2_0")))
    assert isinstance(never, wire.LogPart)
    assert never.missing == "it never started"
    answers.close()


def test_what_changes_something_is_not_answered(station: Station, tmp_path: Path) -> None:
    answers = JournalAnswers(tmp_path, settings_of(tmp_path), lambda wall_s: None)
    assert answers.ask(wire.Submit(specs=())) is None
    assert answers.ask(wire.ChangeJobs(verb="cancel", job_ids=(JobId("1"),))) is None
    assert answers.ask(wire.GetStatus()) is None
    answers.close()


def test_only_the_journal_of_the_endpoint_asked_for_answers(station: Station, tmp_path: Path) -> None:
    assert own_journal(settings_of(tmp_path)) == tmp_path
    assert own_journal(settings_of(tmp_path / "nothing")) is None
    for endpoint in ("tcp://far:5555", "tcp://a:5555,tcp://b:5555"):
        assert own_journal(settings_of(tmp_path, endpoint=endpoint)) is None
    no_folder = Settings(controller=ControllerSettings(endpoint=SYSTEM_ENDPOINT))
    assert own_journal(no_folder) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of somebody else")
def test_another_accounts_journal_does_not_answer(station: Station, tmp_path: Path) -> None:
    os.chown(tmp_path / "journal.sqlite", 12345, 12345)
    assert own_journal(settings_of(tmp_path)) is None
