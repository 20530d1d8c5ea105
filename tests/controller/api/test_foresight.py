"""What would happen to a job if it came now, asked of a real desk, which stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from cotenant.controller.history import EtaAnswer, EtaQuestion
from cotenant.controller.policies import registry
from cotenant.controller.sim.eta import answer_arrival
from cotenant.controller.wire import clients
from tests.controller.station import ALICE, BOB, Station, job, run_one


class Later:
    """Rolls out when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Sequence[EtaQuestion], Callable[[Sequence[EtaAnswer]], None]]] = []

    def __call__(
        self,
        questions: Sequence[EtaQuestion],
        told: Callable[[Sequence[EtaAnswer]], None],
        within_s: float,
    ) -> bool:
        self.waiting.append((questions, told))
        return True

    def work(self, error: str = "") -> None:
        questions, told = self.waiting.pop(0)
        told([EtaAnswer(error=error) if error else answer_arrival(each, registry.make) for each in questions])


@pytest.fixture
def later() -> Later:
    return Later()


@pytest.fixture
def station(stations: Callable[..., Station], later: Later) -> Station:
    """Alice's long job trains, and her short one waits."""
    made = stations(policy="sjf", foresee=later)
    known: dict[str, Any] = {"load_s": 5.0, "pause_s": 2.0}
    run_one(made, made.join(), made.submit(expected_s=1000.0, name="long", **known), until="step")
    made.submit(expected_s=100.0, name="short", **known)
    return made


def asked(**fields: Any) -> clients.ForeseeArrival:
    spec = job(load_s=5.0, pause_s=2.0, **fields)
    return clients.ForeseeArrival(submission=clients.Submit(specs=(spec,)))


def answer(station: Station, address: bytes) -> Any:
    station.settle()
    (found,) = station.answers(address)
    return found


def test_it_says_when_whom_it_waits_for_and_whom_it_delays(station: Station, later: Later) -> None:
    before, entries = station.core.state.save(), station.journal.last_seq
    address = station.post(asked(expected_s=10.0, name="mine"), BOB)
    assert station.answers(address) == [], "nobody waits for it"
    later.work()
    view = answer(station, address).arrival
    assert (view.policy, view.at_once, view.ahead, view.waits_for) == ("sjf", False, (), ("1",))
    (eta,) = view.etas
    assert (eta.job_id, eta.name, eta.start is not None) == ("3", "mine", True)
    (delay,) = view.delays
    assert (delay.job_id, delay.name, delay.user, round(delay.p50_s)) == ("2", "short", "alice", 15)
    assert view.delayed == 1
    assert (station.core.state.save(), station.journal.last_seq) == (before, entries)


def test_the_same_question_again_is_answered_once_and_another_waits(station: Station, later: Later) -> None:
    question = asked(expected_s=10.0)
    address = station.post(question, ALICE)
    number = station._requests
    station.desk.ask(address, ALICE, clients.Request(request_id=number, body=question))
    assert len(later.waiting) == 1
    assert answer(station, station.post(question, ALICE)).code == "refused"
    later.work("a policy failed")
    failed = answer(station, address)
    assert (failed.code, "a policy failed" in failed.message) == ("refused", True)
    station.post(question, ALICE)
    assert len(later.waiting) == 1, "she may ask again"


def test_what_would_be_refused_is_refused(station: Station, later: Later) -> None:
    assert answer(station, station.post(asked(gpus_min=9, gpus_max=9), ALICE)).code == "never-fits"
    assert answer(station, station.post(asked(priority=5), ALICE)).code == "not-allowed"
    assert later.waiting == []
