"""Commands are sent until seen, less and less often, and not at all once they are pointless."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from cotenant.controller.domain import (
    CommandId,
    ForgetJob,
    HostId,
    JobId,
    SaveAttempt,
    StartAttempt,
    StopAttempt,
)
from cotenant.controller.executors.agents.delivery import Delivery, Overflow
from tests.building import orders

H1 = HostId("h1")


def start(number: int, attempt: int = 1, *, job_id: str = "7", host: str = "h1") -> StartAttempt:
    return orders.start(job_id, attempt, number, host=host, gang=())


def stop(number: int, attempt: int = 1, *, job_id: str = "7", host: str = "h1") -> StopAttempt:
    return orders.stop(job_id, attempt, number, host=host)


def save(number: int, attempt: int = 1) -> SaveAttempt:
    return SaveAttempt(**orders.named("7", attempt, number, "h1"))


def forget(number: int, job_id: str = "7") -> ForgetJob:
    return ForgetJob(command_id=CommandId(number), host_id=H1, job_id=JobId(job_id))


def sent(delivery: Delivery, now_s: float) -> list[int]:
    return [command.command_id for command, _ in delivery.due(now_s, H1)]


def test_a_command_is_repeated_after_1_s_and_at_last_every_5() -> None:
    delivery = Delivery()
    delivery.put(start(1), 0.0)
    times = [t / 10 for t in range(300) if sent(delivery, t / 10)]
    gaps = [round(b - a, 1) for a, b in itertools.pairwise(times)]
    assert times[0] == 0.0 and gaps[0] == 1.0 and gaps[-1] == 5.0 and sorted(gaps) == gaps


def test_repeats_are_told_apart() -> None:
    delivery = Delivery()
    delivery.put(start(1), 0.0)
    assert [again for _, again in delivery.due(0.0, H1)] == [False]
    assert [again for _, again in delivery.due(1.0, H1)] == [True]


def test_a_seen_command_is_not_sent_again() -> None:
    delivery = Delivery()
    delivery.put(start(1), 0.0)
    delivery.note_seen(H1, CommandId(1))
    delivery.note_seen(H1, CommandId(1))
    assert sent(delivery, 0.0) == [] and len(delivery) == 0 and delivery.hosts() == []


def test_another_host_cannot_say_it_has_seen_it() -> None:
    delivery = Delivery()
    delivery.put(start(1), 0.0)
    delivery.note_seen(HostId("h2"), CommandId(1))
    assert sent(delivery, 0.0) == [1]


@pytest.mark.parametrize(
    ("earlier", "later", "left"),
    [
        (start(1), stop(2), [2]),
        (save(1), stop(2), [2]),
        (stop(1), stop(2), [2]),
        (stop(1), start(2, attempt=2), [1, 2]),
        (start(1, attempt=2), stop(2, attempt=1), [1, 2]),
        (start(1, job_id="8"), stop(2), [1, 2]),
        (stop(1), forget(2), [1, 2]),
        (start(1), forget(2), [2]),
        (forget(1, job_id="8"), stop(2), [1, 2]),
        (start(1), save(2), [1, 2]),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_a_later_command_makes_pointless_is_dropped(earlier: Any, later: Any, left: list[int]) -> None:
    delivery = Delivery()
    delivery.put(earlier, 0.0)
    delivery.put(later, 0.0)
    assert sent(delivery, 0.0) == left


def test_a_host_with_too_much_open_has_to_join_again() -> None:
    delivery = Delivery(pending_max=40)
    for number in range(40):
        delivery.put(start(number, job_id=str(number)), 0.0)
    with pytest.raises(Overflow):
        delivery.put(start(40, job_id="last"), 0.0)
    delivery.clear(H1)
    assert len(delivery) == 0
