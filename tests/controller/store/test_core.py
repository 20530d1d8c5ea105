"""Between an event and its effects lies one commit; what breaks is put aside or taken back whole."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import msgspec
import pytest

from cotenant.controller.domain import Decision, ExitVerdict, HostId, JobId, Launch
from cotenant.controller.domain import events as ev
from cotenant.controller.planning import View
from cotenant.controller.policies import registry
from cotenant.controller.policies.base import Parameters, Policy
from cotenant.controller.store.committing import Decided, let_follow
from cotenant.controller.store.core import Fatal, Poisoned, Stuck
from cotenant.controller.wire import CommandDelivery, Report, ReportAck, Welcome, clients
from tests.building.journals import connection_of
from tests.controller.station import ALICE, Station, job, report, run_one

Make = Callable[..., Station]


def fill_disk(station: Station) -> Callable[[], None]:
    """From now on nothing can be written; the answer undoes it."""
    database = connection_of(station.journal)
    pages = database.execute("PRAGMA page_count").fetchone()[0]
    database.execute(f"PRAGMA max_page_count={pages}")
    return lambda: void(database.execute("PRAGMA max_page_count=1000000"))


def void(value: object) -> None: ...


def test_nothing_leaves_before_the_commit(station: Station) -> None:
    address = station.join("h1")
    client = station.post(clients.Submit(specs=(job(),)), ALICE)
    assert station.answers(client) == [], "acknowledged before it was durable"
    assert station.told(address, CommandDelivery) == [], "ordered before it was durable"
    station.settle()
    assert station.answers(client)[0].job_ids == ("1",)
    assert len(station.told(address, CommandDelivery)) == 1


def test_even_a_question_waits_for_what_it_would_reveal(station: Station) -> None:
    station.post(clients.Submit(specs=(job(),)), ALICE)
    question = station.post(clients.ListJobs())
    assert station.answers(question) == []
    station.settle()
    assert len(station.answers(question)[0].jobs) == 1


def test_what_follows_is_handed_over_in_order_and_nobody_is_called(station: Station) -> None:
    station.settle()
    said: list[str] = []
    commands = station.core.happen(ev.HostJoined(report=report()))
    station.core.run_after_commit(lambda: said.append("welcome"))
    assert station.core.seal() == [], "nothing of it may follow before its commit"
    station.journal.flush()
    effects = [effect for handed in station.handed for effect in handed]
    (at,) = (at for at, effect in enumerate(effects) if isinstance(effect, Decided))
    decided = effects[at]
    assert isinstance(decided, Decided) and isinstance(decided.event, ev.HostJoined)
    assert (list(decided.commands), said) == (commands, [])
    let_follow(effects[at + 1 :], lambda decided: None)
    assert said == ["welcome"]
    station.handed.clear()


def test_questions_are_answered_at_once_when_nothing_is_open(station: Station) -> None:
    station.settle()
    question = station.post(clients.ListJobs())
    assert station.answers(question)[0].jobs == ()


def big() -> clients.Submit:
    """More than a full disk has left in its last page."""
    launch = Launch(argv=("python", "x" * 50_000), workdir="/tmp")
    return clients.Submit(specs=(job(launch=launch),), idempotency_key="big")


def test_a_full_disk_refuses_new_jobs_and_loses_none(stations: Make) -> None:
    station = stations()
    kept = station.submit()
    empty_disk = fill_disk(station)
    refused = station.ask(big(), ALICE)
    assert isinstance(refused, clients.Failure) and refused.code == "refused"
    assert "could not be written: nothing was changed" in refused.message
    assert list(station.core.state.engine.jobs) == [kept], "what was refused must not be there"
    assert isinstance(station.ask(clients.Submit(specs=(job(),)), ALICE), clients.Failure)
    assert isinstance(station.ask(clients.ListJobs()), clients.Jobs), "questions are still answered"
    with pytest.raises(Stuck):
        station.core.happen(ev.HostJoined(report=report()))
    assert not station.core.try_again()

    empty_disk()
    assert station.core.try_again()
    again = station.ask(big(), ALICE)
    assert again.job_ids == ("2",), "its number was not used up, its key not remembered"
    station = stations()
    assert list(station.core.state.engine.jobs) == [kept, "2"]


def test_a_full_disk_takes_back_all_that_was_on_its_way(station: Station) -> None:
    address = station.join("h1")
    station.submit()
    empty_disk = fill_disk(station)
    clients_waiting = [station.post(big(), ALICE), station.post(clients.Submit(specs=(job(),)), ALICE)]
    station.settle()
    for client in clients_waiting:
        (answer,) = station.answers(client)
        assert isinstance(answer, clients.Failure)
    said = ExitVerdict(outcome="infra-failed", detail="x" * 50_000)
    long = msgspec.structs.replace(end_of(station, JobId("1")), verdict=said)
    ended = Report(sequence=1, event=long)
    station.agent_says(address, ended)
    assert station.told(address, ReportAck) == [], "a report is not confirmed while it cannot be kept"
    empty_disk()
    assert station.core.try_again()
    station.agent_says(address, ended)
    assert station.told(address, ReportAck) == [ReportAck(sequence=1)]


def end_of(station: Station, job_id: JobId) -> ev.AttemptEnded:
    attempt = station.core.state.engine.jobs[job_id].attempt.number
    return ev.AttemptEnded(
        job_id=job_id,
        attempt=attempt,
        host_id=HostId("h1"),
        verdict=ExitVerdict(outcome="finished", exit_code=0),
    )


class Fragile:
    """A policy that a job with a certain name breaks."""

    name = "fifo"

    def __init__(self, real: Policy) -> None:
        self._real, self.traits = real, real.traits
        self.queue_key, self.save, self.load = real.queue_key, real.save, real.load
        self.observe = real.observe
        self.explain = real.explain

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        if isinstance(event, ev.JobArrived) and event.spec.name == "poison":
            raise ZeroDivisionError("a bug in the policy")
        return self._real.decide(view, event)


def fragile(name: str, parameters: Parameters) -> Policy:
    return Fragile(registry.make(name, parameters))


def test_an_event_that_breaks_the_policy_is_put_aside(stations: Make) -> None:
    station = stations(make_policy=fragile)
    address = station.join("h1")
    first = station.submit()
    client = station.post(clients.Submit(specs=(job("fine"), job("poison", job_id=JobId("new-1")))), ALICE)
    station.settle()
    (answer,) = station.answers(client)
    assert isinstance(answer, clients.Failure) and answer.code == "internal"
    assert "a bug in the policy" in answer.message
    assert list(station.core.state.engine.jobs) == [first], "a submission is accepted whole or not at all"
    assert station.submit() == "2"
    run_one(station, address, first)
    database = sqlite3.connect(station.journal.place)
    ((story,),) = database.execute("SELECT story FROM quarantine").fetchall()
    database.close()
    assert "ZeroDivisionError" in story
    station = stations()
    assert sorted(station.core.state.engine.jobs) == [first, "2"]


def test_an_agent_can_join_after_its_hello_was_taken_back(station: Station) -> None:
    empty_disk = fill_disk(station)
    station.ask(big(), ALICE)
    address = station.join("h1")
    assert station.told(address, Welcome) == []
    empty_disk()
    station.core.try_again()
    assert len(station.told(station.join("h1"), Welcome)) == 1


def test_too_many_broken_events_end_the_controller(stations: Make) -> None:
    station = stations(make_policy=fragile)
    station.core.counters["quarantined"] = 100
    with pytest.raises(Fatal, match="100 events broke the engine"):
        station.core.happen(ev.JobArrived(spec=job("poison", job_id=JobId("1"))))


def test_a_state_that_cannot_be_read_back_ends_the_controller(stations: Make) -> None:
    station = stations(make_policy=fragile)
    station.submit()
    database = sqlite3.connect(station.journal.place)
    with database:
        database.execute("UPDATE entries SET event = x'00'")
    database.close()
    with pytest.raises(Fatal, match="entry 1 was changed"):
        station.core.happen(ev.JobArrived(spec=job("poison", job_id=JobId("2"))))


def test_the_story_reaches_whoever_caused_it(stations: Make) -> None:
    station = stations(make_policy=fragile)
    with pytest.raises(Poisoned, match="ZeroDivisionError: a bug in the policy"):
        station.core.happen(ev.JobArrived(spec=job("poison", job_id=JobId("1"))))
