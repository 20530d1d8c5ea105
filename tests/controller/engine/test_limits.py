"""Limits of users and organisations: what is over one waits outside the queue."""

from __future__ import annotations

from typing import Any

import pytest

from cotenant.controller.domain import JobSpec, LimitSettings, OrganisationSettings
from tests.controller.building import Desk, report, spec
from tests.controller.engine.test_bookings import book


def limited(policy: str, devices: int, **limits: Any) -> Desk:
    return Desk(policy, report("a", devices), limits=LimitSettings(**limits))


def test_a_job_beyond_the_limit_waits_and_says_for_what() -> None:
    desk = limited("fifo", 8, user_devices=4)
    for number, gpus in ((1, 2), (2, 2), (3, 1)):
        desk.submit(number, gpus=gpus)
    assert [desk.phase(number) for number in (1, 2, 3)] == ["loading", "loading", "blocked"]
    why = "user ann may hold 4 devices at once, 4 are taken or next in the queue, and this needs 1"
    assert desk.why(3) == why
    desk.submit(4, user="bob", gpus=4)
    assert desk.phase(4) == "loading", "others are not kept waiting"


def test_it_starts_when_its_owner_is_within_the_limit_again() -> None:
    desk = limited("fifo", 8, user_jobs=1)
    for number in (1, 2, 3):
        desk.submit(number)
    desk.end(1)
    assert [desk.phase(number) for number in (1, 2, 3)] == ["done", "loading", "blocked"]


def test_the_first_in_the_policys_order_waits_in_the_queue() -> None:
    desk = limited("sjf", 1, user_jobs=1)
    desk.submit("1", user="bob")
    desk.submit("2", expected_s=100.0)
    desk.submit("3", expected_s=10.0)
    assert (desk.phase(2), desk.phase(3)) == ("blocked", "queued")
    desk.end(1)
    assert desk.phase(3) == "loading"


def test_an_organisation_is_limited_as_a_whole() -> None:
    desk = limited("fifo", 8, organisation_devices=2, exceptions=("organisation speech devices=0",))
    desk.submit(1, organisation="vision", gpus=2)
    desk.submit(2, organisation="vision", user="bob")
    desk.submit(3, organisation="speech", gpus=3)
    assert [desk.phase(number) for number in (1, 2, 3)] == ["loading", "blocked", "loading"]


def test_nobody_is_preempted_for_who_may_not_run() -> None:
    desk = limited("srtf", 2, user_jobs=1)
    desk.submit(1, user="bob", expected_s=1000.0, resumable=True)
    desk.submit(2, user="ann", expected_s=500.0, resumable=True)
    for number in (1, 2):
        desk.begin(number)
    desk.submit(3, user="ann", expected_s=1.0)
    assert desk.phase(1) == "running" and desk.phase(3) == "blocked"


@pytest.mark.parametrize("policy", ["cotenant", "fifo", "srtf"])
def test_what_cannot_start_before_a_reservation_keeps_no_other_job_of_its_user(policy: str) -> None:
    desk = limited(policy, 2, user_devices=2)
    book(desk, gpus=2, from_s=1000.0, until_s=2000.0, user="zoe")
    for number in (1, 2, 3):
        desk.submit(number, resumable=False)
    assert [desk.phase(number) for number in (1, 2, 3)] == ["queued", "queued", "blocked"]
    for number in (4, 5, 6):
        desk.submit(number, resumable=False, time_limit_s=100.0)
    assert [desk.phase(number) for number in (4, 5, 6)] == ["loading", "loading", "blocked"]
    now = str(desk.engine.explaining(desk.now_s).reason_now(desk.job(6)))
    assert now == "user ann may hold 2 devices at once, 2 are taken or next in the queue, and this needs 1"
    desk.end(4)
    assert desk.phase(6) == "loading", "nor does it keep the next one"
    for number in (5, 6):
        desk.end(number)
    desk.wait(2001.0 - desk.now_s)
    assert [desk.phase(number) for number in (1, 2, 3)] == ["loading", "loading", "blocked"]


def test_what_waits_for_a_busy_type_keeps_no_job_from_another() -> None:
    desk = Desk("cotenant", report("a", 1), report("b", 1, type="T4"), limits=LimitSettings(user_jobs=1))
    desk.submit(1, user="bob", gpu_type="T4")
    desk.submit(2, gpu_type="T4", expected_s=1.0)
    desk.submit(3, expected_s=5.0)
    assert [desk.phase(number) for number in (1, 2, 3)] == ["loading", "queued", "loading"]
    desk.end(1)
    assert desk.phase(2) == "blocked" and desk.why(2) == (
        "user ann may run 1 job at once, and so many run or are next in the queue"
    )
    desk.end(3)
    assert desk.phase(2) == "loading"


def test_what_can_never_be_within_a_limit_is_refused() -> None:
    desk = limited("fifo", 8, user_devices=4)
    refused = desk.engine.never_fits(wide("ann"))
    assert str(refused) == "needs 6 devices, and user ann may hold 4 at once"
    spared = limited("fifo", 8, user_devices=4, exceptions=("user ann devices=8",))
    assert spared.engine.never_fits(wide("ann")) is None


def wide(user: str) -> JobSpec:
    return spec(1, user=user, gpus=6)


@pytest.mark.parametrize(
    ("priorities", "order"), [((0, 5), ["2", "1"]), ((-5, 0), ["2", "1"]), ((0, 0), ["1", "2"])]
)
def test_priority_comes_before_the_policys_order(priorities: tuple[int, int], order: list[str]) -> None:
    desk = Desk("sjf", report("a", 1))
    desk.submit("0")
    for number, (priority, expected_s) in enumerate(zip(priorities, (10.0, 100.0), strict=True), start=1):
        desk.submit(number, priority=priority, expected_s=expected_s)
    assert [job.job_id for job in desk.engine.ledger.queue.jobs_in_order()] == order


@pytest.mark.parametrize("policy", ["srtf", "srtf-full", "srsf", "tiresias", "patient"])
@pytest.mark.parametrize("priority", [0, 5])
def test_nobody_makes_room_for_a_lower_priority(policy: str, priority: int) -> None:
    desk = Desk(policy, report("a", 1))
    desk.submit(1, expected_s=100_000.0, resumable=True, priority=priority)
    desk.run(1)
    desk.wait(50_000.0)
    desk.submit(2, expected_s=10.0)
    assert desk.phase(1) == ("running" if priority else "checkpointing"), "without a priority it would"


@pytest.mark.parametrize(
    "text",
    [
        "user ann",
        "group x devices=1",
        "user ann devices",
        "user ann devices=-1",
        "user ann gpus=3",
        "user ann jobs=²",
    ],
)
def test_a_wrong_exception_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not like `user ann devices=16 jobs=8`"):
        LimitSettings(exceptions=(text,))


def with_quota(policy: str, devices: int, quota: int) -> Desk:
    organisations = {"vision": OrganisationSettings(quota_devices=quota)}
    return Desk(policy, report("a", devices), organisations=organisations)


@pytest.mark.parametrize("policy", ["fifo", "gfs", "gfs-rise"])
def test_spot_jobs_of_an_organisation_stay_within_its_quota_and_its_hp_jobs_do_not_count(policy: str) -> None:
    desk = with_quota(policy, 8, 2)
    desk.submit(1, organisation="vision", gpus=2)
    desk.submit(2, organisation="vision", job_class="hp", gpus=3)
    desk.submit(3, organisation="vision")
    desk.submit(4, organisation="speech", gpus=3)
    desk.wait(1.0)
    assert [desk.phase(number) for number in (1, 2, 3, 4)] == ["loading", "loading", "blocked", "loading"]
    assert desk.why(3) == (
        "class spot of organisation vision may hold 2 devices at once, 2 are taken or next in the queue, and "
        "this needs 1"
    )
    desk.end(1)
    desk.wait(1.0)
    assert desk.phase(3) == "loading"


def test_a_spot_job_wider_than_the_quota_is_refused_at_once() -> None:
    desk = with_quota("fifo", 8, 2)
    reason = desk.engine.never_fits(spec(1, organisation="vision", gpus=3))
    assert reason is not None and "class spot of organisation vision may hold 2" in str(reason)
    assert desk.engine.never_fits(spec(1, organisation="vision", gpus=3, job_class="hp")) is None
