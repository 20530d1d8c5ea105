"""Devices that get free by themselves: carried on from question to question, they are those of a plan that is
begun anew at each."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.domain import DeviceId, HostReport, Job, JobId
from cotenant.controller.planning import Plan, View
from cotenant.controller.policies.sharing.expected_releases import ExpectedReleases, Together
from tests.controller.building import Desk, report

Promises = list[tuple[Job, tuple[DeviceId, ...]]]
RUNNING = st.lists(st.tuples(st.integers(1, 3), st.integers(5, 40)), min_size=1, max_size=8)
"""Devices and seconds of the jobs that run."""
ASKED = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 50)), min_size=1, max_size=12)
"""Devices of the jobs that wait, and the time until which each of them would."""


def desk_with(running: list[tuple[int, int]], *hosts: HostReport) -> Desk:
    desk = Desk("fifo", *(hosts or (report("a", 4), report("b", 4), report("c", 3))))
    for number, (gpus, lasts_s) in enumerate(running, 1):
        desk.submit(number, gpus=gpus, expected_s=float(lasts_s))
        if desk.phase(number) == "loading":
            desk.start(number)
    return desk


def anew(view: View, until_s: float, promises: Promises) -> Plan:
    """The plan at that time, thought through from the beginning."""
    plan = Plan(view)
    for job, devices in promises:
        plan.suppose_placed(job, devices)
    for job in view.running.training:
        if view.now_s < job.estimate.end_s <= until_s:
            plan.suppose_left(job)
    return plan


def ask(desk: Desk, asked: list[tuple[int, int]]) -> None:
    view = desk.engine.ledger
    soon, plan, promises = ExpectedReleases(view), Plan(view), Promises()
    before_s = float("inf")
    for number, (gpus, wait_s) in enumerate(asked, 100):
        job, until_s = desk.job(desk.submit(number, gpus=gpus, hold=True)), view.now_s + wait_s
        found, wanted = soon.find(plan, job, until_s), anew(view, until_s, promises)
        if until_s < before_s:  # Otherwise a tie may be broken by what was looked at in between.
            assert found == wanted.find_free(job)
        assert (found is None) == (wanted.find_free(job) is None)
        before_s = until_s
        if found is not None:
            free = {d for host in desk.engine.hosts for d in wanted.free_devices(host, "cpu")}
            assert free.issuperset(found) and len(set(found)) == gpus
            soon.promise(job, found)
            promises.append((job, found))


@given(running=RUNNING, asked=ASKED)
@settings(max_examples=int(settings().max_examples * 0.5))
def test_in_whatever_order_times_are_asked_for_the_devices_are_those_of_a_plan_begun_anew(
    running: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    ask(desk_with(running), asked)


def test_of_equal_hosts_an_earlier_time_finds_the_one_that_was_promised_first() -> None:
    desk = desk_with([(2, 10), (1, 20), (2, 25)], report("a", 3), report("b", 2))
    view = desk.engine.ledger
    soon, plan = ExpectedReleases(view), Plan(view)
    job = desk.job(desk.submit(9, hold=True))
    found = soon.find(plan, job, view.now_s + 22)
    assert found == ("a/cpu0",)  # The one device there, and two on b.
    soon.promise(job, found)
    assert soon.find(plan, job, view.now_s + 27) == ("b/cpu0",)  # Two each, and b was free first.
    promises: Promises = [(job, found)]
    wanted = anew(view, view.now_s + 26, promises).find_free(job)
    assert soon.find(plan, job, view.now_s + 26) == wanted == ("a/cpu1",)


def test_what_was_promised_is_found_by_nobody_else() -> None:
    desk = desk_with([(4, 10), (4, 10), (2, 20), (1, 90)])
    view = desk.engine.ledger
    soon, plan = ExpectedReleases(view), Plan(view)
    first, second = (desk.job(desk.submit(n, gpus=4, hold=True)) for n in (8, 9))
    found = soon.find(plan, first, view.now_s + 15)
    assert found is not None
    soon.promise(first, found)
    other = soon.find(plan, second, view.now_s + 30)
    assert other is not None and set(other).isdisjoint(found)
    soon.promise(second, other)
    assert soon.find(plan, desk.job(desk.submit(10, gpus=4, hold=True)), view.now_s + 15) is None


def test_it_serves_another_pass_only_while_no_promise_counts() -> None:
    desk = desk_with([(4, 10), (4, 10), (3, 10)])
    view = desk.engine.ledger
    soon, plan = ExpectedReleases(view), Plan(view)
    assert not soon.is_unpromised()  # Nothing was looked at: there is nothing to pass on.
    job = desk.job(desk.submit(9, gpus=1, hold=True))
    devices = soon.find(plan, job, view.now_s + 15)
    assert devices is not None
    soon.promise(job, devices)
    assert soon.is_unpromised()
    assert soon.find(plan, job, view.now_s + 15) == devices
    soon.promise(job, devices)
    assert soon.find(plan, job, view.now_s + 15) != devices
    assert not soon.is_unpromised()


def test_the_most_devices_on_one_host_are_counted_as_the_list_grows() -> None:
    desk = desk_with([(4, 10), (2, 20), (2, 30), (3, 40)])
    jobs = [desk.job(JobId(str(n))) for n in (1, 2, 3, 4)]
    together = Together(desk.engine.ledger)
    assert [together.most(jobs[:1], 1), together.most(jobs, 0)] == [4, 0]
    assert [together.most(jobs, count) for count in (4, 2, 3)] == [4, 4, 4]
    assert (
        Together(desk.engine.ledger).most(jobs[1:3], 2) == len({*desk.hosts(2), *desk.hosts(3)}) % 2 * 2 + 2
    )
