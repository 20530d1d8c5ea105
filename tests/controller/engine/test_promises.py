"""Promised ends: given only where they can be kept, kept against everybody, remembered with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from cotenant.controller.domain import JobId, Phase, Reason
from cotenant.controller.domain import events as ev
from cotenant.controller.policies import registry
from tests.controller.building import Desk, report, spec

POLICIES = sorted(set(registry.ours_available()) - {"las"})


def offered(desk: Desk, job_id: int, **more: Any) -> float | str:
    """By when a job could be promised to end, from now; or the code of why not."""
    found = desk.engine.promises.offer((spec(job_id, **more),), desk.now_s)
    return found.code if isinstance(found, Reason) else found[0] - desk.now_s


def promised(desk: Desk, job_id: int, **more: Any) -> float:
    """Submit it with the earliest end that can be promised; that end."""
    found = desk.engine.promises.offer((spec(job_id, **more),), desk.now_s)
    assert not isinstance(found, Reason), found
    desk.submit(job_id, promised_s=found[0], **more)
    return found[0]


LONG = {"expected_s": 1000.0, "load_s": 10.0, "pause_s": 5.0, "resumable": True}
SHORT = {"expected_s": 100.0, "load_s": 10.0, "pause_s": 5.0, "resumable": True}


def test_the_earliest_end_is_behind_those_that_the_policy_puts_first() -> None:
    for policy, earliest_s in (("fifo", 1222.0), ("srtf", 127.5)):
        desk = Desk(policy)
        desk.run(1, **LONG)
        found = offered(desk, 2, **SHORT)
        assert isinstance(found, float)
        assert found == pytest.approx(earliest_s, rel=0.1), policy


@pytest.mark.parametrize(
    ("why", "more"),
    [
        ("promise-no-length", {}),
        ("promise-not-now", {"expected_s": 10.0, "hold": True}),
    ],
)
def test_what_cannot_be_known_is_not_promised(why: str, more: dict[str, Any]) -> None:
    assert offered(Desk("fifo"), 1, **more) == why


def test_behind_a_job_with_a_time_limit_an_end_is_promised() -> None:
    desk = Desk("fifo", report("a", 1))
    desk.run(1, time_limit_s=500.0)
    assert isinstance(offered(desk, 2, **SHORT), float)


def test_behind_a_job_of_unknown_length_nothing_is_promised() -> None:
    desk = Desk("fifo")
    desk.run(1)
    assert offered(desk, 2, **SHORT) == "promise-behind-unknown"


def test_an_administrator_may_turn_promises_off() -> None:
    assert offered(Desk("fifo", promises=False), 1, **SHORT) == "promise-off"


def test_a_promised_job_is_not_preempted_and_who_wanted_that_is_told() -> None:
    desk = Desk("srtf")
    promised(desk, 1, **LONG)
    desk.begin(1)
    desk.submit(2, **SHORT)
    assert desk.phase(1) == "running"
    assert desk.phase(2) == "queued"
    assert "promise" in str(desk.job(2).reason)


def test_without_a_promise_it_would_have_been() -> None:
    desk = Desk("srtf")
    desk.run(1, **LONG)
    desk.submit(2, **SHORT)
    assert desk.phase(1) == "checkpointing"


def test_nothing_that_would_outlast_it_is_placed_where_a_promised_job_must_start() -> None:
    desk = Desk("sjf", report(devices=2))
    desk.run(1, expected_s=200.0, load_s=0.0)
    promised(desk, 2, gpus=2, expected_s=300.0, load_s=0.0)
    desk.submit(3, expected_s=250.0, load_s=0.0)
    assert desk.phase(3) == "queued"
    assert desk.job(3).reason.code == "promise-keeps-back"
    desk.submit(4, expected_s=50.0, load_s=0.0)
    assert desk.phase(4) == "loading"


def test_a_promise_is_kept_and_counted() -> None:
    desk = Desk("fifo")
    promised(desk, 1, **SHORT)
    desk.begin(1)
    desk.wait(100.0)
    desk.end(1)
    assert desk.job(1).promise == "kept"
    saved = desk.engine.promises.saved
    assert (saved.kept, saved.broken, saved.open) == (1, 0, {})


def test_a_job_that_takes_longer_than_was_expected_has_broken_its_own_promise() -> None:
    desk = Desk("fifo")
    until_s = promised(desk, 1, **SHORT)
    desk.begin(1)
    desk.wait(until_s + 10.0)
    assert desk.job(1).promise == "broken"
    assert desk.job(1).promise_why.code == "promise-outlived"
    desk.end(1)
    saved = desk.engine.promises.saved
    assert (desk.job(1).promise, saved.broken, saved.open) == ("broken", 1, {})


def test_who_stands_in_the_way_of_a_promise_is_named() -> None:
    desk = Desk("fifo")
    desk.run(1, expected_s=50.0, load_s=0.0)
    until_s = promised(desk, 2, **SHORT)
    desk.wait(until_s + 10.0)
    assert str(desk.job(2).promise_why).startswith("job 1 had not left")


def test_a_lost_host_breaks_a_promise_and_is_named() -> None:
    desk = Desk("fifo")
    until_s = promised(desk, 1, **SHORT)
    desk.begin(1)
    (host_id,) = desk.hosts(1)
    desk.tell(ev.HostLost(host_id=host_id, by="test"))
    desk.wait(until_s + 10.0)
    assert desk.job(1).promise == "broken"
    assert desk.job(1).promise_why.code == "promise-no-devices"


@pytest.mark.parametrize("event", [ev.CancelRequested, ev.HoldRequested])
def test_what_its_owner_does_voids_a_promise(event: Any) -> None:
    desk = Desk("fifo")
    desk.run(1, **LONG)
    promised(desk, 2, **SHORT)
    desk.tell(event(job_id=JobId("2"), by="ann"))
    assert desk.job(2).promise == "void"
    assert desk.phase(2) in (Phase.CANCELLED, Phase.HELD)
    assert (desk.engine.promises.saved.void, desk.engine.promises.saved.open) == (1, {})


def test_orders_that_preempt_say_so() -> None:
    said = {name for name in POLICIES if registry.make(name, {}).traits.preempts}
    assert {"srtf", "srsf", "srtf-full", "tiresias", "interval", "patient", "pcs", "lazer", "gfs"} <= said
    assert not {"fifo", "sjf", "castor", "wfp3"} & said
