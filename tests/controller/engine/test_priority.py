"""A waiting job of greater priority is not overtaken on devices that it could use, whatever the policy is."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from math import inf

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cotenant.controller.domain import (
    NOTHING,
    QUEUED,
    Decision,
    DeviceId,
    Job,
    JobId,
    Place,
    Reason,
    Share,
    asks_hosts,
    because,
    texts,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine
from cotenant.controller.engine.stages.free_times import NEAR_S, leaves_s, when_free
from cotenant.controller.planning import Plan, View, is_possible, suits, why_waiting
from cotenant.controller.policies.base import Parameters, Policy, Stateless
from tests.controller.building import Desk, report
from tests.controller.engine.test_histories import POLICIES, fresh
from tests.controller.histories import HOSTS, WAITS_S, event_of

PASSING = ("sjf", "srtf", "castor", "patient", "cotenant", "fgd", "max-min", "rltune", "lucid", "sjf-ffs")


def busy(policy: str, **more: float) -> Desk:
    """Two devices, both held: by job 1 and by job 2."""
    desk = Desk(policy, report("a", 2), ageing_s=0.0)
    for number in (1, 2):
        desk.run(number, **more)
    return desk


@pytest.mark.parametrize("policy", PASSING)
def test_narrow_jobs_do_not_pass_a_wide_one_of_greater_priority(policy: str) -> None:
    desk = busy(policy)
    desk.submit(3, gpus=2, priority=10)
    for number in (4, 5, 6):
        desk.submit(number)
    desk.end(1)
    assert [desk.phase(number) for number in (3, 4, 5, 6)] == ["queued"] * 4
    desk.end(2)
    assert [desk.phase(number) for number in (3, 4, 5, 6)] == ["loading", "queued", "queued", "queued"]


@pytest.mark.parametrize("policy", [name for name in PASSING if name != "max-min"])
@pytest.mark.parametrize("how", ["cancelled", "held", "lowered"])
def test_nothing_is_kept_for_a_job_that_does_not_wait_any_more(policy: str, how: str) -> None:
    desk = busy(policy)
    wide = desk.submit(3, gpus=2, priority=10)
    desk.submit(4)
    desk.end(1)
    assert desk.phase(4) == "queued"
    match how:
        case "cancelled":
            desk.tell(ev.CancelRequested(job_id=wide, by="ann"))
        case "held":
            desk.tell(ev.HoldRequested(job_id=wide, by="ann"))
        case _:
            desk.tell(ev.SpecChanged(job_id=wide, changes={"priority": 0}, by="ann"))
    assert desk.phase(4) == "loading"


def test_equal_priorities_leave_it_to_the_policy() -> None:
    desk = busy("sjf")
    desk.submit(3, gpus=2, priority=10)
    desk.submit(4, priority=10)
    desk.end(1)
    assert desk.phase(4) == "loading"


def test_who_ends_before_the_greater_one_can_start_may_pass() -> None:
    desk = busy("sjf")
    desk.end(1)
    desk.run(7, expected_s=1_000.0)
    desk.end(2)
    desk.submit(3, gpus=2, priority=10)
    desk.submit(4, expected_s=2_000.0)
    desk.submit(5)
    desk.submit(6, time_limit_s=2_000.0)
    assert [desk.phase(number) for number in (4, 5, 6)] == ["queued"] * 3
    desk.submit(8, expected_s=500.0)
    assert desk.phase(8) == "loading"
    desk.end(8)
    desk.submit(9, time_limit_s=500.0)
    assert desk.phase(9) == "loading", "its time limit says that it ends before"


def test_a_time_limit_says_when_the_greater_one_can_start() -> None:
    desk = Desk("sjf", report("a", 2), ageing_s=0.0)
    desk.run(1, time_limit_s=1_000.0)
    desk.submit(3, gpus=2, priority=10)
    desk.submit(4, expected_s=2_000.0)
    assert desk.phase(4) == "queued"
    desk.submit(5, expected_s=100.0)
    assert desk.phase(5) == "loading"


@pytest.mark.parametrize(("limit_s", "phase"), [(None, "queued"), (500.0, "loading")])
def test_a_co_tenant_may_pass_where_a_limit_ends_those_that_it_holds_up(
    limit_s: float | None, phase: str
) -> None:
    desk = Desk("sjf-ffs", report("a", 2, device={"max_tenants": 2}), ageing_s=0.0)
    for number in (1, 2):
        desk.run(number, memory_mib=100, expected_s=1_000.0, time_limit_s=limit_s)
    desk.submit(3, gpus=2, share="never", priority=10)
    desk.submit(4, memory_mib=100, time_limit_s=300.0)
    assert desk.phase(4) == phase


def test_devices_that_the_greater_one_could_not_use_are_not_kept() -> None:
    desk = Desk("sjf", report("a", 2), report("b", 1), report("c", 2, type="NVIDIA-T4"), ageing_s=0.0)
    desk.run(1, gpus=2, gpu_type="cpu")
    desk.submit(3, gpus=2, gpu_type="cpu", priority=10)
    for number in (4, 5, 6):
        desk.submit(number)
    assert {desk.devices(number) for number in (4, 5, 6)} == {("b/cpu0",), ("c/cpu0",), ("c/cpu1",)}


def test_a_job_that_was_to_start_on_kept_devices_starts_on_others() -> None:
    """Best fit would put it on the host that the greater one waits for."""
    desk = Desk("sjf", report("a", 2), report("b", 4), ageing_s=0.0)
    desk.run(1, expected_s=100.0)
    assert desk.devices(1) == ("a/cpu0",)
    desk.run(2, gpus=3, expected_s=10_000.0)
    desk.submit(3, gpus=2, priority=10)
    desk.submit(4)
    assert desk.devices(4) == ("b/cpu3",)


def test_a_job_that_no_host_could_hold_keeps_nothing() -> None:
    desk = busy("sjf")
    desk.submit(3, gpus=3, priority=10)
    desk.submit(4)
    desk.end(1)
    assert desk.phase(4) == "loading"


def test_an_aged_job_stands_before_every_priority() -> None:
    desk = Desk("sjf", report("a", 2), ageing_s=100.0)
    for number in (1, 2):
        desk.run(number)
    desk.submit(4)
    desk.wait(101.0)
    desk.submit(3, gpus=2, priority=10)
    desk.end(1)
    assert desk.phase(4) == "loading"


def test_what_a_quota_withholds_is_not_waited_for() -> None:
    desk = Desk("lyra", report("a", 2), ageing_s=0.0)
    desk.run(1, job_class="hp")
    desk.submit(3, priority=10)
    assert desk.phase(3) == "queued", "host a has an hp job, and lends nothing"
    desk.submit(4, job_class="hp", gpu_type="cpu")
    assert desk.phase(4) == "loading"


def fragmented(policy: str) -> Desk:
    """One device is free on each of three hosts, and job 7 of priority 10 waits for two on one host."""
    desk = Desk(policy, *(report(host, 2) for host in "abc"), ageing_s=0.0)
    for number in range(1, 7):
        desk.run(number)
    desk.submit(7, gpus=2, nodes=1, priority=10)
    for number in (1, 3, 5):
        desk.end(number)
    return desk


@pytest.mark.parametrize("policy", ["gfs", "gfs-rise"])
def test_a_new_policy_that_has_offered_nobody_anything_yet_keeps_devices_as_well(policy: str) -> None:
    desk = fragmented("sjf")
    desk.submit(8)
    desk.tell(ev.PolicyChanged(name=policy, by="root"))
    desk.wait(1.0)
    assert [desk.phase(number) for number in (7, 8)] == ["queued"] * 2


@pytest.mark.parametrize("policy", ["gfs", "gfs-rise"])
def test_no_narrow_job_passes_at_the_moment_at_which_an_hp_job_starts(policy: str) -> None:
    desk = fragmented(policy)
    desk.submit(9, job_class="hp", priority=10)
    desk.submit(8)
    assert [desk.phase(number) for number in (7, 8, 9)] == ["queued", "queued", "loading"]


class LastFirst(Stateless):
    """A stranger's policy with an order of its own, which looks at no priority."""

    name = "last-first"

    def queue_key(self, job: Job) -> tuple[float, ...]:
        return ()

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        plan = Plan(view)
        for job in sorted(view.queue.jobs_in_order(), key=lambda each: -each.number):
            devices = plan.find_free(job)
            if devices is not None:
                plan.place(job, devices, because("free-devices-in-order", self.name, len(devices)))
        return plan.decision() if plan.actions else NOTHING

    def explain(self, view: View, job: Job) -> Reason:
        return why_waiting(view, job, self.name)


def last_first(name: str, parameters: Parameters) -> Policy:
    return LastFirst()


def test_a_greater_one_that_fits_starts_in_the_place_of_the_one_that_a_policy_prefers() -> None:
    desk = Desk("last-first", report("a", 1), make=last_first)
    desk.run(1)
    desk.submit(2, priority=1)
    desk.submit(3)
    desk.end(1)
    assert (desk.phase(2), desk.phase(3)) == ("loading", "queued")
    assert str(desk.job(2).placement.reason) == (
        "priority 1 goes before job 3, which the policy wanted to start there"
    )


def test_a_part_that_does_not_fit_is_waited_for() -> None:
    desk = Desk("sjf", report("a", 1, device={"divides": True, "cores": (0, 1, 2, 3)}), ageing_s=0.0)
    desk.run(1, gpu_fraction=0.5)
    desk.run(2, gpu_fraction=0.25)
    desk.submit(3, gpu_fraction=0.5, priority=10)
    desk.submit(4, gpu_fraction=0.25)
    assert desk.phase(4) == "queued"
    desk.end(2)
    assert (desk.phase(3), desk.phase(4)) == ("loading", "queued")


# --- Whatever happens ------------------------------------------------------------------------------


def could_use(engine: Engine, job: Job, times: Mapping[DeviceId, float]) -> Iterator[list[DeviceId]]:
    """Devices on which the gang could stand: of one host each, or of several where no host has enough."""
    view, wanted = engine.ledger, engine.ledger.queue.class_of(job)
    for type in view.free.types:
        by_host: dict[str, list[DeviceId]] = {}
        for device_id in times:
            device = view.devices[device_id]
            is_type = device.type == type and wanted.gpu_type in ("", type)
            is_enough = device.usable_mib >= wanted.memory_mib
            if is_type and is_enough and suits(view.hosts[device.host_id], wanted):
                by_host.setdefault(device.host_id, []).append(device_id)
        size = wanted.gpus // max(1, wanted.nodes)
        if wanted.nodes <= 1 and size > view.sizes.on_host(wanted, type):
            size = 1
        enough = [devices for devices in by_host.values() if len(devices) >= size]
        together = [each for devices in enough for each in devices]
        if size == wanted.gpus:
            yield from enough
        elif len(together) >= wanted.gpus and len(enough) >= wanted.nodes:
            yield together


def first_start_s(engine: Engine, job: Job, times: Mapping[DeviceId, float]) -> float:
    """By trying every moment at which a device becomes free."""
    wanted, known = engine.ledger.queue.class_of(job), engine.ledger.devices
    for at_s in sorted(set(times.values())):
        for devices in could_use(engine, job, times):
            free = Counter(known[each].host_id for each in devices if times[each] <= at_s + NEAR_S)
            size = wanted.gpus // max(1, wanted.nodes)
            pods = sum(count >= size for count in free.values())
            if sum(free.values()) >= wanted.gpus and (wanted.nodes <= 1 or pods >= wanted.nodes):
                return at_s
    return inf


def overtaken(engine: Engine, job: Job, before: Mapping[DeviceId, float] | None) -> Job | None:
    """The waiting job that stands first among those of greater priority, if this one has just delayed it.
    `before`: when devices were to become free before it came to share some."""
    ledger = engine.ledger
    greater = [
        other
        for other in ledger.queue.jobs_in_order()
        if other.spec.priority > job.spec.priority
        and is_possible(ledger, other)
        and not engine.current.holds_back(ledger, other)
    ]
    first = max(greater, key=lambda other: other.spec.priority, default=None)
    if first is None or first.spec.gpu_fraction < 1.0 or asks_hosts(first.spec):
        return None
    assert job.placement is not None
    with_it = when_free(ledger)
    without = dict(with_it)
    for device_id in with_it.keys() & set(job.placement.devices):
        others = [ledger.jobs[each] for each in ledger.holdings.tenants(device_id) if each != job.job_id]
        leaves = [leaves_s(ledger, each) if before is None else before.get(device_id, inf) for each in others]
        without[device_id] = max(leaves, default=ledger.now_s)
    start_s = first_start_s(engine, first, without)
    if start_s < inf:
        return first if first_start_s(engine, first, with_it) > start_s + NEAR_S else None
    usable = {each for devices in could_use(engine, first, with_it) for each in devices}
    return first if not usable.isdisjoint(job.placement.devices) else None


def held_back(policy: Policy) -> set[JobId]:
    """Jobs that the policy holds back in the middle of a decision, where it is asked from now on. Its quota
    there is of that event: on a host that has just joined, say."""
    held: set[JobId] = set()
    original = getattr(type(policy), "holds_back", None)
    if original is not None:

        def holds_back_now(view: View, job: Job) -> bool:
            found = bool(original(policy, view, job))
            held.update([job.job_id] if found else [])
            return found

        policy.holds_back = holds_back_now  # type: ignore[attr-defined]
    return held


@given(name=st.sampled_from(POLICIES), seed=st.integers(0, 2**32))
@example(name="gfs", seed=65)
@example(name="gfs", seed=134217728).via("its quota holds a job back in the one decision only")
@example(name="gfs", seed=1337991).via("an aged job of greater priority stands behind another of its class")
@example(name="lyra", seed=5011).via("the engine refuses to preempt for another job, which was counted on")
@example(name="cotenant", seed=2379627705)
@example(name="sjf-ffs", seed=5016).via("a co-tenant ends in time, and those that it holds up do not")
@settings(deadline=None)
def test_nobody_starts_who_delays_a_waiting_job_of_greater_priority(name: str, seed: int) -> None:
    engine, chance = fresh(name), random.Random(seed)
    for host in HOSTS:
        engine.handle(ev.HostJoined(report=host), 0.0)
    for _ in range(90):
        step = (chance.randrange(100), chance.randrange(100), chance.randrange(100), chance.randrange(100))
        event = event_of(engine, step, (name,))
        waited = {
            job.job_id
            for job in engine.ledger.queue.jobs_in_order()
            if not engine.current.holds_back(engine.ledger, job)
        }
        if isinstance(event, ev.JobArrived):
            waited.add(event.spec.job_id)
        was_s, at_s = engine.now_s, engine.now_s + WAITS_S[step[3] % len(WAITS_S)]
        engine.ledger.now_s = at_s  # As the decision sees it: a job that is late is expected later by now.
        before = when_free(engine.ledger)
        engine.ledger.now_s = was_s
        held = held_back(engine.current.policy)
        engine.handle(event, at_s)
        for action in engine.decision.actions:
            job = engine.jobs.get(action.job_id) if isinstance(action, Place | Share) else None
            if job is not None and job.phase is not QUEUED and job.placement is not None and not job.aged:
                late = overtaken(engine, job, before if isinstance(action, Share) else None)
                assert late is None or late.job_id not in waited - held, (
                    f"{engine.current.name}: job {job.job_id} delays {late.job_id}"
                )


# --- What people are told --------------------------------------------------------------------------


def test_both_are_told_what_is_kept_before_anything_else() -> None:
    desk = busy("castor", memory_mib=100)
    desk.submit(3, gpus=2, priority=10)
    desk.submit(4)
    desk.end(1)
    unforeseen = "needs 2 devices: 1 is free and kept for it; nothing tells when enough will be free"
    assert desk.why(3) == unforeseen
    kept = "what is free is kept for job 3 of priority 10, which needs 2 devices; "
    assert desk.why(4) == kept + "nothing tells when it can start"
    desk = busy("sjf", time_limit_s=1_000.0)
    desk.submit(3, gpus=2, priority=10)
    desk.submit(4)
    desk.end(1)
    left = texts.rough_duration(desk.job(2).limit_left_s(desk.now_s) + desk.job(2).estimate.pause_s)
    foreseen = f"needs 2 devices: 1 is free and kept for it; enough should be free in {left}"
    assert desk.why(3) == foreseen
    assert f"is expected to start in {left}: this job would not end before" in desk.why(4)


def test_too_few_free_devices_are_named_before_what_sharing_would_take() -> None:
    desk = busy("castor")
    desk.submit(3, gpus=2)
    desk.end(1)
    first, second, *_ = desk.engine.explain(JobId("3"), desk.now_s)
    assert str(first) == "first in castor order; it needs 2 devices, and 1 is free"
    assert str(second).startswith("cannot share with 2")


def test_without_other_priorities_nothing_is_said_of_any() -> None:
    desk = busy("sjf")
    desk.submit(3, gpus=2, priority=10)
    desk.end(1)
    assert desk.why(3) == "first in sjf order; it needs 2 devices, and 1 is free"
