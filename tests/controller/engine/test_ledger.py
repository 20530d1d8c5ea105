"""The ledger's indexes: always in order, never a scan, the same after a restart."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.domain import DeviceId, HostId, HostReport
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Snapshot
from cotenant.controller.engine.state.capacity import FreeIndex
from cotenant.controller.engine.state.ledger import Ledger
from cotenant.controller.planning import scheduling_class_of
from cotenant.controller.policies.toolkit import longest_first
from tests.controller.building import Desk, engine, profile, report

LENGTHS = st.lists(
    st.tuples(st.floats(1.0, 1e4), st.sampled_from([64, 65, 66, 67]), st.booleans()), min_size=1, max_size=40
)


@given(jobs=LENGTHS)
def test_the_queue_of_many_shapes_comes_in_the_policys_order(jobs: list[tuple[float, int, bool]]) -> None:
    desk = Desk("sjf")
    for number, (expected_s, gpus, wide) in enumerate(jobs, 1):
        desk.submit(number, expected_s=expected_s, gpus=gpus, memory_mib=100 if wide else None)
    view = desk.engine.ledger
    wanted = sorted(desk.engine.jobs.values(), key=lambda j: (j.estimate.remaining_s, j.number))
    assert [j.job_id for j in view.queue.jobs_in_order()] == [j.job_id for j in wanted]
    heads = list(view.queue.heads())
    assert len(heads) == len({scheduling_class_of(j) for j in wanted})
    assert heads == sorted(heads, key=view.queue.order_key)
    assert all(view.queue.jobs_of_class(scheduling_class_of(head))[0] is head for head in heads)


def test_newcomers_are_those_that_this_event_put_into_the_queue() -> None:
    desk = Desk("sjf")
    desk.run(1, resumable=True)
    desk.submit(2, gpus=5)
    assert [j.job_id for j in desk.engine.ledger.queue.newcomers()] == ["2"]
    desk.tell(ev.AlarmRang())
    assert list(desk.engine.ledger.queue.newcomers()) == []
    desk.tell(ev.ProfileLearned(job_id=desk.job(2).job_id, profile=profile(8, (1, 1.0, 1.0))))
    assert list(desk.engine.ledger.queue.newcomers()) == []


def test_a_profile_that_comes_after_the_end_makes_no_ended_job_count_twice() -> None:
    desk = Desk("sjf")
    desk.run(1)
    desk.end(1)
    desk.tell(ev.ProfileLearned(job_id=desk.job(1).job_id, profile=profile(8, (1, 1.0, 1.0))))
    assert desk.job(1).measured.profile is not None
    desk.engine.ledger.check()  # Counts what all that are kept take in memory.


def test_jobs_on_devices_come_by_predicted_end_and_unknown_ends_last() -> None:
    desk = Desk("fifo", report("a", 4))
    for number, expected_s in ((1, 300.0), (2, None), (3, 20.0), (4, 100.0)):
        desk.run(number, expected_s=expected_s)
    assert [j.job_id for j in desk.engine.ledger.running.jobs_by_end()] == ["3", "4", "1", "2"]
    desk.wait(10)
    desk.progress(3, 5, 4.0)
    assert next(iter(desk.engine.ledger.running.jobs_by_end())).job_id == "3"


@given(
    counts=st.lists(st.integers(1, 8), min_size=1, max_size=6),
    moves=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7), st.booleans()), max_size=60),
)
def test_the_free_index_says_what_counting_says(
    counts: list[int], moves: list[tuple[int, int, bool]]
) -> None:
    held: set[DeviceId] = set()
    index, free = FreeIndex(held, ()), {}
    ledger = Ledger(lambda job: ())
    for number, count in enumerate(counts):
        host = ledger.put_host(report(f"h{number}", count))
        index.set_host(host)
        free[host.host_id] = {d.device_id for d in host.report.devices}
    for number, device, give in moves:
        host_id = HostId(f"h{number % len(counts)}")
        devices = ledger.hosts[host_id].report.devices
        device_id = devices[device % len(devices)].device_id
        (held.discard if give else held.add)(device_id)
        index.refresh(host_id)
        (free[host_id].add if give else free[host_id].discard)(device_id)
    for host_id, here in free.items():
        assert list(index.devices[host_id, "cpu"]) == sorted(here)
    assert index.most("cpu") == max(len(here) for here in free.values())
    assert index.everywhere == sum(map(len, free.values()))
    for gpus in range(1, 9):
        enough = [(len(here), host_id) for host_id, here in free.items() if len(here) >= gpus]
        assert index.tightest("cpu", gpus) == (min(enough)[1] if enough else None)
    for count in range(1, 9):
        assert list(index.hosts_with_free("cpu", count)) == sorted(
            h for h, here in free.items() if len(here) == count
        )


def restored(desk: Desk) -> Desk:
    other = Desk("fifo")
    other.engine = engine("fifo")
    saved = msgspec.msgpack.encode(desk.engine.snapshot())
    other.engine.restore(msgspec.msgpack.decode(saved, type=Snapshot))
    other.now_s = desk.now_s
    return other


def test_a_restored_engine_knows_a_device_that_its_host_no_longer_has() -> None:
    desk = Desk("fifo", report("a", 2))
    desk.run(1, gpus=2)
    desk.tell(ev.HostJoined(report=report("a", 1)))
    other = restored(desk)
    for each in (desk, other):
        each.end(1)
        assert set(each.engine.ledger.devices) == {"a/cpu0"}


def test_a_pair_stays_where_its_host_takes_room_back_and_nobody_comes_to_it() -> None:
    """The MPS daemon of an exclusive GPU dies, and the driver is found to keep more of its memory."""
    daemon = {"sharing": "mps"}
    desk = Desk("sjf-ffs", report("a", kind="cuda", memory_mib=1000, device=daemon))
    for job in (1, 2, 3):
        desk.submit(job, batch_size=4, profile=profile(4, (1, 1.0, 400), duty=0.2), iterations=100)
        desk.start(job) if job < 3 else None
    assert desk.devices(1) == desk.devices(2) != ()
    for room in ({"max_tenants": 1}, {"max_tenants": 1, "reserve_mib": 300}, {**daemon, "reserve_mib": 300}):
        desk.tell(ev.HostJoined(report=report("a", kind="cuda", memory_mib=1000, device=room)))
        for each in (desk, restored(desk)):
            assert [each.phase(job) for job in (1, 2, 3)] == ["running", "running", "queued"]
    desk.tell(ev.HostJoined(report=report("a", kind="cuda", memory_mib=1000, device={"max_tenants": 1})))
    desk.end(1)
    assert desk.phase(3) == "queued"
    desk.end(2)
    assert desk.phase(3) == "loading"


def test_the_size_of_a_cluster_is_what_it_is_now_and_not_what_it_was() -> None:
    desk = Desk("fifo", report("a", 8), report("b", 2), report("c", 2))
    desk.tell(ev.HostLost(host_id=HostId("a"), by="root"))
    desk.submit(1, gpus=4)
    assert set(desk.hosts(1)) == {"b", "c"}  # No host that is up could hold it alone.
    other = restored(desk)
    other.submit(2, gpus=4)
    assert other.why(2) == desk_why(desk)


def desk_why(desk: Desk) -> str:
    desk.submit(2, gpus=4)
    return desk.why(2)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: report("a", 1, port_first=80),
        lambda: report("a", 1, port_count=0),
        lambda: report("a", 1, memory_mib=0),
        lambda: HostReport(host_id=HostId("b"), devices=report("a").devices),
        lambda: HostReport(host_id=HostId("a"), devices=report("a").devices * 2),
        lambda: report("a", 1, device={"sharing": "mps"}),
    ],
)
def test_a_host_report_that_makes_no_sense_is_refused(wrong: object) -> None:
    assert callable(wrong)
    with pytest.raises(ValueError):
        wrong()


@given(
    jobs=st.lists(st.tuples(st.sampled_from([5.0, 20.0, 20.0, 300.0, None]), st.integers(0, 3)), max_size=9),
    paces=st.lists(st.tuples(st.integers(1, 9), st.sampled_from([0.5, 1.0, 2.0, 4.0])), max_size=5),
)
def test_the_longest_come_first_whatever_phase_and_pace_they_have(
    jobs: list[tuple[float | None, int]], paces: list[tuple[int, float]]
) -> None:
    desk = Desk("fifo", report("a", 9))
    for number, (expected_s, phase) in enumerate(jobs, 1):
        desk.submit(number, expected_s=expected_s)
        desk.wait(1.0)
        if phase:
            desk.start(number)
    for number, step_s in paces:
        if number <= len(jobs) and desk.phase(number) == "running":
            desk.wait(0.5)
            desk.job(number).measured.solo_step_s = 1.0
            desk.engine.ledger.records.repace(desk.job(number), step_s)
    now_s = desk.engine.now_s
    left_s = {job.number: job.remaining_now_s(now_s) for job in desk.engine.jobs.values()}
    known = sorted((-left, number) for number, left in left_s.items() if left is not None)
    walked = list(longest_first(desk.engine.ledger))
    assert [left for left, _ in walked] == [left_s[job.number] for _, job in walked]
    found = [(-left, job.number) for left, job in walked]
    assert sorted(found) == known
    due = sum(
        1 for left, _ in known if left < 0.0
    )  # Of those past their end none has more left than another.
    assert found[:due] == known[:due]


def test_a_job_may_change_where_it_stands_and_is_still_found_there() -> None:
    desk = Desk("sjf", report("a", 2))
    desk.submit(1, expected_s=50.0)
    desk.submit(2, expected_s=60.0)
    for number in (1, 2):
        desk.job(
            number
        ).estimate.remaining_s = 1.0  # Loading ones stand by what is left: here behind the ledger's back.
        desk.start(number)
    desk.end(1)
    assert [job.job_id for job in desk.engine.ledger.running.training] == ["2"]
