"""Idle jobs in the engine: whom they lend their devices to, until when, and how they are stopped."""

from __future__ import annotations

from typing import Any

import pytest

from cotenant.controller.domain import IdleStage, JobId
from cotenant.controller.domain import events as ev
from cotenant.controller.policies import registry
from tests.controller.building import Desk, report

RESUMES: dict[str, Any] = {"resumable": True, "memory_mib": 200}
MINUTE_S = 60.0


def is_idle(desk: Desk, job_id: int, stage: IdleStage, *, since_s: float = 0.0) -> None:
    job = desk.job(job_id)
    desk.now_s += MINUTE_S
    desk.tell(ev.IdleSeen(job_id=job.job_id, attempt=job.attempt.number, since_s=since_s, stage=stage))


def works_again(desk: Desk, job_id: int) -> None:
    job = desk.job(job_id)
    desk.tell(ev.IdleSeen(job_id=job.job_id, attempt=job.attempt.number, since_s=None))


def held(policy: str = "fifo", *, share: str = "never", resumable: bool = True, **device: Any) -> Desk:
    """One device, which job 1 holds."""
    desk = Desk(policy, report("a", 1, device={"memory_mib": 1000} | device), ageing_s=0.0)
    desk.submit(1, memory_mib=500, share=share)
    desk.wait(601.0)  # Some policies look at the queue every ten minutes.
    desk.start(1, resumable=resumable)
    return desk


@pytest.mark.parametrize("policy", [*registry.ours_available()])
def test_an_idle_job_lends_its_device_until_it_works_again(policy: str) -> None:
    desk = held(policy, resumable=False)  # No policy preempts it.
    desk.submit(2, expected_s=100.0, **RESUMES)
    is_idle(desk, 1, "warn")
    assert desk.phase(2) == "queued", "a warning lends nothing"
    is_idle(desk, 1, "share")
    assert (desk.devices(2), desk.starts()) == (desk.devices(1), ["2"])
    desk.start(2)
    works_again(desk, 1)
    assert desk.stops() == ["2"] and desk.phase(1) == "running"
    desk.end(2, "stopped")
    assert desk.phase(2) == "queued" and desk.job(2).counts.preemptions == 1


@pytest.mark.parametrize(
    "guest",
    [
        {"resumable": None, "memory_mib": 200},
        {"resumable": True, "memory_mib": 200, "job_class": "hp"},
        {"resumable": True, "memory_mib": 600},
        {"resumable": True},
        {"resumable": True, "memory_mib": 200, "share": "never"},
        {"resumable": True, "memory_mib": 200, "gpus": 2},
        {"resumable": True, "memory_mib": 200, "profiling": "only"},
    ],
    ids=[
        "not-known-to-resume",
        "class-hp",
        "too-large",
        "unknown-memory",
        "shares-with-nobody",
        "too-wide",
        "is-measured",
    ],
)
def test_a_job_that_could_not_leave_or_does_not_fit_is_lent_nothing(guest: dict[str, Any]) -> None:
    desk = held()
    desk.submit(2, **guest)
    is_idle(desk, 1, "share")
    assert desk.phase(2) == "queued"


def test_a_job_that_came_later_is_lent_the_device_as_well_and_only_one_is() -> None:
    desk = held()
    is_idle(desk, 1, "share")
    for number in (2, 3):
        desk.submit(number, **RESUMES)
    assert [desk.phase(number) for number in (2, 3)] == ["loading", "queued"]


def test_a_device_for_one_job_is_not_lent() -> None:
    desk = held(max_tenants=1)
    desk.submit(2, **RESUMES)
    is_idle(desk, 1, "share")
    assert desk.phase(2) == "queued"


def test_two_devices_of_an_idle_job_are_lent_to_a_gang() -> None:
    desk = Desk("fifo", report("a", 2, device={"memory_mib": 1000}))
    desk.run(1, gpus=2, memory_mib=500)
    desk.submit(2, gpus=2, **RESUMES)
    is_idle(desk, 1, "share")
    assert desk.devices(2) == desk.devices(1)


def test_who_may_share_under_the_policy_stays() -> None:
    desk = held("sjf-ffs", share="auto")
    is_idle(desk, 1, "share")
    desk.submit(2, **RESUMES)
    assert desk.devices(2) == desk.devices(1)
    desk.start(2)
    works_again(desk, 1)
    assert desk.phase(2) == "running"


def test_a_controller_that_starts_anew_still_asks_for_the_device_back() -> None:
    desk = held()
    is_idle(desk, 1, "share")
    desk.restart()
    desk.submit(2, **RESUMES)
    assert desk.phase(2) == "loading"
    desk.start(2)
    desk.restart()
    works_again(desk, 1)
    assert desk.stops() == ["2"]


def test_an_idle_job_that_can_resume_is_saved_and_held() -> None:
    desk = held()
    desk.durable(1, 50)
    is_idle(desk, 1, "word")
    assert desk.phase(1) == "running" and not desk.stops()
    is_idle(desk, 1, "stop")
    assert desk.phase(1) == "checkpointing"
    desk.end(1, "stopped")
    assert desk.phase(1) == "held" and "`cotenant release 1`" in str(desk.job(1).reason)
    desk.tell(ev.ReleaseRequested(job_id=JobId("1"), by="ann"))
    assert desk.phase(1) == "loading" and desk.job(1).attempt.idle is None


def test_an_idle_job_that_cannot_resume_is_cancelled() -> None:
    desk = Desk("fifo", report("a", 1))
    desk.submit(1)
    desk.start(1, resumable=False)
    is_idle(desk, 1, "stop")
    desk.end(1, "stopped")
    assert (desk.phase(1), desk.job(1).reason.code) == ("cancelled", "idle-stop")


def test_what_is_said_of_an_older_attempt_changes_nothing() -> None:
    desk = held()
    desk.tell(
        ev.IdleSeen(job_id=JobId("1"), attempt=desk.job(1).attempt.number + 1, since_s=0.0, stage="stop")
    )
    assert desk.phase(1) == "running" and desk.job(1).attempt.idle is None


def test_a_pace_beside_an_idle_job_says_nothing_of_the_pair() -> None:
    desk = held()
    desk.submit(2, **RESUMES)
    is_idle(desk, 1, "share")
    desk.start(2)
    for step in range(10, 200, 10):
        desk.now_s += 10.0
        desk.progress(2, step, step_s=1.0)
    assert not desk.engine.ledger.pairs.list_seen() and not desk.job(2).measured.uncompared
