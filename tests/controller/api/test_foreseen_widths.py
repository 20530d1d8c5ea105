"""When a job would end that nobody has submitted: on so many devices, now or later, under which policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from cotenant.controller.api.foresight import quietest_s, resize_spec, variants_of
from cotenant.controller.api.moment import Now
from cotenant.controller.domain import AttemptNo, DeviceId, HostId
from cotenant.controller.history import (
    AttemptRecord,
    EtaAnswer,
    EtaBook,
    EtaQuestion,
    SavedEtas,
    SupposedJob,
    question_of,
)
from cotenant.controller.models.eta import KnownLength, Pools
from cotenant.controller.policies import registry
from cotenant.controller.sim import eta as sim_eta
from cotenant.controller.wire import clients, wall_s
from tests.controller.building import Desk, report, spec
from tests.controller.station import Station, job

HOUR_S = 3600.0


def record(launched_s: float, ended_s: float, devices: int = 1) -> AttemptRecord:
    return AttemptRecord(
        attempt=AttemptNo(1),
        hosts=(HostId("a"),),
        accumulation_steps=1,
        sub_batch=None,
        start_step=0,
        devices=tuple(DeviceId(f"a/{number}") for number in range(devices)),
        launched_s=launched_s,
        ended_s=ended_s,
    )


def test_the_quietest_hour_is_that_in_which_the_fewest_devices_were_held() -> None:
    """Two days from midnight on; busy but between three and four, and least so then on one device."""
    records = [record(day * 24 * HOUR_S, (day * 24 + 3) * HOUR_S, 2) for day in range(2)]
    records += [record((day * 24 + 4) * HOUR_S, (day * 24 + 24) * HOUR_S, 2) for day in range(2)]
    now = Now(48 * HOUR_S, 480 * HOUR_S)
    assert quietest_s(records, now) == 3 * HOUR_S


def test_before_a_day_is_recorded_it_is_unknown() -> None:
    assert quietest_s([record(0.0, 10.0)], Now(23 * HOUR_S, 1e6)) is None


def test_the_same_work_on_other_numbers_of_devices() -> None:
    desk = Desk("fifo", report(devices=4))
    asked = spec("9", gpus=2, expected_s=100.0)
    found = variants_of(desk.engine, asked, HOUR_S)
    assert [(each.spec.gpus, each.spec.expected_s, each.after_s) for each in found] == [
        (2, 100.0, 0.0),
        (1, 200.0, 0.0),
        (4, 50.0, 0.0),
        (2, 100.0, HOUR_S),
        (1, 200.0, HOUR_S),
        (4, 50.0, HOUR_S),
    ]
    assert found[0].note == ""
    assert "in proportion" in found[1].note
    assert resize_spec(spec("9", gpus=2, iterations=10), 4)[0].iterations == 5


def at_once(
    questions: Sequence[EtaQuestion], then: Callable[[Sequence[EtaAnswer]], None], within_s: float
) -> bool:
    """In this process; the last question is never reached."""
    then([sim_eta.answer_supposed(each, registry.make) for each in questions[:-1]])
    return True


@pytest.mark.parametrize(("policy", "start_s"), [("", 100.0), ("srtf", 1.0)])
def test_a_job_that_is_not_there_is_rolled_out_and_nothing_is_changed(policy: str, start_s: float) -> None:
    desk = Desk("fifo", report(devices=2))
    desk.run(1, expected_s=100.0, resumable=True, pause_s=1.0)
    before = desk.engine.snapshot().ledger.next_number
    found = supposed(desk, policy=policy)
    assert found.policy == (policy or "fifo")
    (eta,) = found.etas
    assert eta.start is not None
    assert eta.finish is not None
    assert (eta.start.told.p50_s, eta.finish.told.p50_s) == pytest.approx((start_s, start_s + 65.0))
    assert desk.engine.ledger.next_number == before
    assert list(desk.engine.jobs) == ["1"]


def test_it_may_come_later() -> None:
    desk = Desk("fifo", report(devices=2))
    desk.run(1, expected_s=100.0)
    (eta,) = supposed(desk, after_s=500.0).etas
    assert eta.finish is not None
    assert eta.finish.told.p50_s == pytest.approx(565.0)


def one(**more: Any) -> clients.Submit:
    return clients.Submit(specs=(job(**{"expected_s": 100.0, "load_s": 5.0, **more}),))


def supposed(desk: Desk, policy: str = "", after_s: float = 0.0) -> EtaAnswer:
    asked = spec("9", gpus=2, expected_s=60.0, load_s=5.0)
    question = question_of(desk.engine, EtaBook(), seed=1, count=2, is_exact=True)
    about = SupposedJob(spec=asked, policy=policy, after_s=after_s)
    return sim_eta.answer_supposed(msgspec.structs.replace(question, supposed=about), registry.make)


def test_a_request_is_answered_when_it_is_found_out(stations: Callable[..., Station]) -> None:
    station = stations(foresee=at_once)
    station.join(devices=2)
    asked = clients.ForeseeWidths(submission=one(), gpus=(1, 2))
    reply = station.ask(asked)
    assert (reply.quietest_at, reply.policy) == (None, "fifo")
    assert [row.gpus for row in reply.rows] == [1, 2]
    assert wall_s(reply.rows[0].finish.p50_at) - station.core.clock.wall() == pytest.approx(105.0, rel=0.2)
    assert reply.rows[1].basis == "not found out in time"
    assert not station.ask(clients.ListJobs()).jobs


def test_where_nothing_is_rolled_out_it_is_refused(station: Station) -> None:
    station.join()
    refused = station.ask(clients.ForeseeWidths(submission=one()))
    assert refused.code == "refused"
    refused = station.ask(clients.ForeseeWidths(submission=one(), policy="os:system"))
    assert refused.code == "usage"


def test_it_is_checked_as_a_submission_is(stations: Callable[..., Station]) -> None:
    station = stations(foresee=at_once)
    station.join(devices=2)
    assert station.ask(clients.ForeseeWidths(submission=one(gpus_min=9, gpus_max=9))).code == "never-fits"
    two = clients.Submit(specs=one().specs * 2)
    assert station.ask(clients.ForeseeWidths(submission=two)).code == "usage"


@pytest.mark.parametrize("length", [{"expected_s": 60.0}, {}])
@pytest.mark.parametrize("busy", [0, 2, 4])
def test_both_questions_about_a_job_that_comes_now_have_one_answer(
    length: dict[str, float], busy: int
) -> None:
    desk = Desk("srtf", report(devices=4))
    for number in range(busy):
        desk.run(number + 1, expected_s=100.0)
    asked = spec(9, gpus=2, load_s=5.0, **length)
    pools = Pools(lengths=[KnownLength("user", 60.0, true_s) for true_s in (30.0, 60.0, 240.0)])
    question = question_of(desk.engine, EtaBook(SavedEtas(pools=pools)), seed=1, count=8)
    alone = msgspec.structs.replace(question, supposed=SupposedJob(spec=asked))
    among = msgspec.structs.replace(question, arriving=(asked,))
    found = [sim_eta.answer_supposed(alone, registry.make), sim_eta.answer_arrival(among, registry.make)]
    assert found[0].etas == found[1].etas
