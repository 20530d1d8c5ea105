"""Questions about streams: whose they are, and that each has one answer, whatever becomes of its host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cotenant.controller.api.streams import OPEN_PER_USER
from cotenant.controller.domain import JobId, Launch
from cotenant.controller.wire import AskStream, StreamAsk, StreamReply, StreamTold, clients
from tests.controller.station import ADMIN, ALICE, BOB, Station

SHELL = Launch(argv=("bash",), workdir="/tmp", terminal=True)


@pytest.fixture
def station(tmp_path: Path) -> Any:
    made = Station(tmp_path)
    yield made
    made.close()


def use(job_id: JobId, attempt: int = 1, **ask: Any) -> clients.UseStream:
    return clients.UseStream(job_id=job_id, attempt=attempt, ask=StreamAsk(session="s", **ask))


def test_a_question_goes_to_the_host_and_its_answer_back(station: Station) -> None:
    address = station.join("h1")
    job_id = station.submit(ALICE, launch=SHELL)
    client = station.post(use(job_id, data=b"ls\n", wait_s=1.0), ALICE)
    (asked,) = station.told(address, AskStream)
    assert (asked.job_id, asked.attempt, asked.ask.data) == (job_id, 1, b"ls\n")
    station.agent_says(station.join("h2"), StreamReply(request=asked.request, told=StreamTold(data=b"no")))
    assert station.answers(client) == []
    station.agent_says(address, StreamReply(request=asked.request, told=StreamTold(data=b"files", taken=3)))
    assert station.answers(client)[0].told == StreamTold(data=b"files", taken=3)


def test_a_terminal_is_its_owners_alone(station: Station) -> None:
    station.join("h1")
    job_id = station.submit(ALICE, launch=SHELL)
    for who in (BOB, ADMIN):
        answer = station.ask(use(job_id, data=b"rm"), who)
        assert (answer.code, answer.message) == ("not-allowed", "only alice can connect to job 1")
    assert station.told(b"agent-h1", AskStream) == []


def test_a_job_without_a_terminal_or_at_its_end_has_no_stream(station: Station) -> None:
    station.join("h1", devices=2)
    plain, waiting = station.submit(ALICE), station.submit(ALICE, launch=SHELL, gpus_min=1, hold=True)
    assert station.ask(use(plain), ALICE).message == "job 1 has no terminal"
    assert station.ask(use(waiting), ALICE).told.state == "ended"
    assert station.ask(use(JobId("9")), ALICE).code == "not-found"
    assert station.ask(use(plain, wait_s=1e9), ALICE).code == "usage"


def test_a_host_that_comes_back_is_asked_again(station: Station) -> None:
    address = station.join("h1")
    job_id = station.submit(ALICE, launch=SHELL)
    client = station.post(use(job_id, limit=10, wait_s=5.0), ALICE)
    station.join("h1", devices=1)
    first, again = station.told(address, AskStream)
    assert first == again
    station.agent_says(address, StreamReply(request=again.request, told=StreamTold(data=b"x")))
    assert [answer.told.data for answer in station.answers(client)] == [b"x"]


def test_a_host_that_is_silent_is_away(station: Station) -> None:
    station.join("h1")
    job_id = station.submit(ALICE, launch=SHELL)
    client = station.post(use(job_id, limit=10), ALICE)
    for _ in range(6):
        station.tick(2.0)
    (answer,) = station.answers(client)
    assert (answer.told.state, answer.told.why) == ("away", "host h1 does not answer")
    station.gone.add(b"agent-h1")
    assert station.ask(use(job_id, limit=10), ALICE).told.why == "host h1 is not connected"


def test_one_user_keeps_a_bounded_number_of_questions_open(station: Station) -> None:
    address = station.join("h1")
    job_id = station.submit(ALICE, launch=SHELL)
    asked = [station.post(use(job_id, limit=1, wait_s=9.0), ALICE) for _ in range(OPEN_PER_USER + 1)]
    (refused,) = station.answers(asked[-1])
    assert refused.code == "refused" and len(station.told(address, AskStream)) == OPEN_PER_USER
    for each in station.told(address, AskStream):
        station.agent_says(address, StreamReply(request=each.request, told=StreamTold()))
    assert [len(station.answers(each)) for each in asked] == [1] * len(asked)
