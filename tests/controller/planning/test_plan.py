"""A what-if shows what it changed and nothing else, and leaves the view alone."""

from __future__ import annotations

from cotenant.controller.domain import HostId, Phase, because
from cotenant.controller.planning.plan import Plan
from cotenant.controller.planning.view import scheduling_class_of
from tests.controller.building import Desk, report

WHY = because("finished")


def desk_of(*hosts: int) -> Desk:
    desk = Desk("fifo", *(report(name, count) for name, count in zip("abcdef", hosts, strict=False)))
    return desk


def test_each_placement_is_seen_by_the_next_and_the_view_stays_as_it_was() -> None:
    desk = desk_of(3)
    desk.submit(9, gpus=64, hold=True)
    one = desk.submit(1, gpus=64)
    job, view = desk.job(one), desk.engine.ledger
    plan = Plan(view)
    plan.place(job, ("a/cpu0", "a/cpu1"), WHY)  # type: ignore[arg-type]
    assert list(plan.free_devices("a", "cpu")) == ["a/cpu2"]  # type: ignore[arg-type]
    assert plan.free_count(scheduling_class_of(job)) == 1
    assert plan.staying("a/cpu0") == ["1"]  # type: ignore[arg-type]
    assert plan.is_placed(one)
    assert list(view.free.devices[HostId("a"), "cpu"]) == ["a/cpu0", "a/cpu1", "a/cpu2"]


def test_what_a_job_leaves_that_has_no_devices_yet_is_not_seen_at_once() -> None:
    desk = Desk("srtf", report("a", 1))
    desk.run(1, expected_s=900.0)
    desk.submit(2, expected_s=100.0)
    desk.submit(3, expected_s=5.0)
    assert desk.job(2).phase is Phase.RESERVED
    plan = Plan(desk.engine.ledger)
    assert plan.left_by(desk.job(2), desk.job(3)) is None


def test_a_fork_goes_its_own_way() -> None:
    desk = desk_of(2)
    job = desk.job(desk.submit(1, gpus=64))
    plan = Plan(desk.engine.ledger)
    trial = plan.fork()
    trial.place(job, ("a/cpu0",), WHY)  # type: ignore[arg-type]
    assert plan.actions == []
    assert not plan.is_placed(job.job_id)
    assert list(plan.free_devices("a", "cpu")) == ["a/cpu0", "a/cpu1"]  # type: ignore[arg-type]


def test_supposing_that_a_job_left_frees_what_nobody_else_holds() -> None:
    desk = Desk("castor")
    desk.run(1, memory_mib=100, expected_s=100.0)
    desk.run(2, memory_mib=100, expected_s=1.0)
    plan = Plan(desk.engine.ledger)
    plan.suppose_left(desk.job(1))
    assert not plan.any_free()
    plan.suppose_left(desk.job(2))
    assert plan.any_free()
    assert plan.find_free(desk.job(desk.submit(3, hold=True))) == ("a/cpu0",)


def test_the_tightest_host_is_found_whatever_the_overlay_has_touched() -> None:
    desk = desk_of(4, 2, 3)
    first, second = (desk.job(desk.submit(n, gpus=2, hold=True)) for n in (1, 2))
    plan = Plan(desk.engine.ledger)
    assert plan.find_free(first) == ("b/cpu0", "b/cpu1")
    plan.place(first, ("b/cpu0", "b/cpu1"), WHY)  # type: ignore[arg-type]
    assert plan.find_free(second) == ("c/cpu0", "c/cpu1")
    plan.place(second, ("c/cpu0", "c/cpu1"), WHY)  # type: ignore[arg-type]
    assert plan.find_free(second) == ("a/cpu0", "a/cpu1")


def test_of_equally_tight_hosts_one_that_the_plan_left_alone_comes_first() -> None:
    desk = desk_of(3, 2, 2)
    one, other = (desk.job(desk.submit(n, gpus=1, hold=True)) for n in (1, 2))
    plan = Plan(desk.engine.ledger)
    plan.place(one, ("a/cpu0",), WHY)  # type: ignore[arg-type]
    wide = desk.job(desk.submit(3, gpus=2, hold=True))
    assert plan.find_free(wide) == ("b/cpu0", "b/cpu1")
    plan.place(other, ("b/cpu0", "b/cpu1"), WHY)  # type: ignore[arg-type]
    assert plan.find_free(wide) == ("c/cpu0", "c/cpu1")
    plan.place(other, ("c/cpu0", "c/cpu1"), WHY)  # type: ignore[arg-type]
    assert plan.find_free(wide) == ("a/cpu1", "a/cpu2")


def test_hosts_of_the_last_failures_come_last_but_come() -> None:
    desk = desk_of(1, 1)
    job = desk.job(desk.submit(1, hold=True))
    plan = Plan(desk.engine.ledger)
    job.avoid = ("a",)
    assert plan.find_free(job) == ("b/cpu0",)
    plan.place(desk.job(desk.submit(2, hold=True)), ("b/cpu0",), WHY)  # type: ignore[arg-type]
    assert plan.find_free(job) == ("a/cpu0",)
