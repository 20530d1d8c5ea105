"""fifo, sjf and srtf as tables: a sentence, a cluster, who is there, the newcomer, the wanted plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cotenant.controller.domain import AnyAction, Defer, HostId, JobId, Place, Preempt, Share
from cotenant.controller.domain import events as ev
from tests.controller.building import Desk, report

Before = Callable[[Desk], object]
Row = tuple[str, list[Any], Before, dict[str, Any], list[str]]


def written(action: AnyAction) -> str:
    match action:
        case Place(job_id=job_id, devices=devices):
            return f"place {job_id} on {' '.join(devices)}"
        case Share(job_id=job_id, devices=devices, accumulation_steps=s):
            return f"share {job_id} on {' '.join(devices)} with s={s}"
        case Preempt(job_id=job_id, for_job=newcomer):
            return f"preempt {job_id} for {newcomer}"
        case Defer(job_id=job_id, victims=victims, until_s=until_s):
            return f"defer {job_id} until {until_s:g} for {' '.join(victims)}"
        case _:
            return str(action)


def decided(desk: Desk) -> list[str]:
    assert desk.engine.refusals == []
    return [written(action) for action in desk.engine.decision.actions]


def nothing(_: Desk) -> None:
    pass


def running(*jobs: dict[str, Any]) -> Before:
    """Jobs 1, 2, ... that have all been placed and run."""

    def before(desk: Desk) -> None:
        for number, more in enumerate(jobs, 1):
            desk.submit(number, **{key: value for key, value in more.items() if key != "resumable"})
            desk.start(number, resumable=more.get("resumable", True))

    return before


def then(*parts: Before) -> Before:
    return lambda desk: [part(desk) for part in parts]


def queued(number: int, **more: Any) -> Before:
    return lambda desk: desk.submit(number, **more)


def told(event: ev.AnyEvent) -> Before:
    return lambda desk: desk.tell(event)


def later(seconds: float) -> Before:
    return lambda desk: desk.wait(seconds)


TWO, FOUR = report("a", 2), report("a", 4)
FAR = "127.0.0.1"

# fmt: off
FIFO: list[Row] = [
    ("one job on one free device", [TWO], nothing, {}, ["place 9 on a/cpu0"]),
    ("the next free device in device order", [TWO], running({}), {}, ["place 9 on a/cpu1"]),
    ("nothing when nothing is free", [TWO], running({}, {}), {}, []),
    ("a gang gets all its devices", [TWO], nothing, {"gpus": 2}, ["place 9 on a/cpu0 a/cpu1"]),
    ("a gang is never started in part", [TWO], running({}), {"gpus": 2}, []),
    ("the head that does not fit keeps smaller ones waiting", [TWO],
     then(running({}), queued(2, gpus=2)), {}, []),
    ("a head that can never fit is passed over", [TWO],
     then(queued(2, gpus=16)), {}, ["place 9 on a/cpu0"]),
    ("a head whose only host is drained is passed over", [TWO, report("b", 2, type="gpu")],
     then(told(ev.HostDrained(host_id=HostId("b"), by="root")), queued(2, gpu_type="gpu")), {},
     ["place 9 on a/cpu0"]),
    ("the length of a job does not matter", [TWO],
     then(running({}, {}), queued(3, expected_s=900)), {"expected_s": 1}, []),
    ("the host with the fewest devices left over is taken", [report("a", 4), report("b", 2)], nothing,
     {"gpus": 2}, ["place 9 on b/cpu0 b/cpu1"]),
    ("a gang stays on one host where one could hold it", [report("a", 2), report("b", 2)],
     running({}, {}, {}), {"gpus": 2}, []),
    ("a gang larger than any host is spread, fullest first", [report("a", 4), report("b", 2)], nothing,
     {"gpus": 5}, ["place 9 on a/cpu0 a/cpu1 a/cpu2 a/cpu3 b/cpu0"]),
    ("a gang is not spread over hosts that others cannot reach",
     [report("a", 2, address=FAR), report("b", 2, address=FAR)], nothing, {"gpus": 3}, []),
    ("`--nodes 2` takes equal parts of two hosts", [report("a", 4), report("b", 4)], nothing,
     {"gpus": 4, "nodes": 2}, ["place 9 on a/cpu0 a/cpu1 b/cpu0 b/cpu1"]),
    ("`--nodes 2` waits when only one host has room", [report("a", 4), report("b", 1)], nothing,
     {"gpus": 4, "nodes": 2}, []),
    ("`--nodes 1` is never spread", [report("a", 2), report("b", 2)], nothing, {"gpus": 3, "nodes": 1}, []),
    ("the type that was asked for", [report("a", 2), report("b", 1, type="T4")], nothing,
     {"gpu_type": "T4"}, ["place 9 on b/cpu0"]),
    ("a gang is never mixed of two types", [report("a", 1), report("b", 1, type="T4")], nothing,
     {"gpus": 2}, []),
    ("a host that has the features", [report("a", 2), report("b", 2, features=("ib", "ssd"))], nothing,
     {"features": ("ssd",)}, ["place 9 on b/cpu0"]),
    ("a device whose memory is enough", [report("a", 2, memory_mib=500), report("b", 1)], nothing,
     {"memory_mib": 800}, ["place 9 on b/cpu0"]),
    ("the driver's reserve is not memory", [report("a", 1, device={"reserve_mib": 300})], nothing,
     {"memory_mib": 800}, []),
    ("an unhealthy device is not offered", [report("a", 1, device={"healthy": False, "note": "Xid 79"})],
     nothing, {}, []),
    ("a silent host gets nothing new", [TWO], told(ev.HostSilent(host_id=HostId("a"))), {}, []),
]
SJF: list[Row] = [
    ("shorter ones pass a job that does not fit", [TWO],
     then(running({}), queued(2, gpus=2, expected_s=1)), {"expected_s": 50}, ["place 9 on a/cpu1"]),
    ("one that would end after an aged job could start does not pass it", [TWO],
     then(running({"resumable": False, "expected_s": 300.0}), queued(2, gpus=2, expected_s=1), later(200)),
     {"expected_s": 500.0, "resumable": False}, []),
    ("one that ends before does", [TWO],
     then(running({"resumable": False, "expected_s": 300.0}), queued(2, gpus=2, expected_s=1), later(200)),
     {"expected_s": 50.0, "resumable": False}, ["place 9 on a/cpu1"]),
    ("one that has never run does not pass an aged job either: nobody knows whether it can resume", [TWO],
     then(running({"resumable": False, "expected_s": 16_000.0}), queued(2, gpus=2, expected_s=1),
          later(14_600)), {"expected_s": 5_000.0}, []),
    ("an aged job that could never fit is passed", [TWO],
     then(running({}), queued(2, gpus=16, expected_s=1), later(200)), {"expected_s": 50},
     ["place 9 on a/cpu1"]),
    ("nobody is preempted", [TWO], running({"expected_s": 900}, {"expected_s": 900}), {"expected_s": 1}, []),
]
LONG: dict[str, Any] = {"expected_s": 900.0}
SRTF: list[Row] = [
    ("free devices before preemption", [TWO], running(dict(LONG)), {"expected_s": 1}, ["place 9 on a/cpu1"]),
    ("the longest is preempted", [TWO], running(dict(LONG), {"expected_s": 800.0}), {"expected_s": 1},
     ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("between equals the first to arrive is preempted", [TWO], running(dict(LONG), dict(LONG)),
     {"expected_s": 1}, ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("a job with less remaining time is left alone", [TWO], running({"expected_s": 5.0}, {"expected_s": 5.0}),
     {"expected_s": 6}, []),
    ("an equal job is left alone", [TWO], running({"expected_s": 5.0}, {"expected_s": 5.0}),
     {"expected_s": 5}, []),
    ("remaining time counts, not length", [TWO],
     then(running(dict(LONG), {"expected_s": 500.0}), later(600)), {"expected_s": 100},
     ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("as many victims as it takes", [TWO], running(dict(LONG), dict(LONG)), {"gpus": 2, "expected_s": 1},
     ["preempt 1 for 9", "preempt 2 for 9", "place 9 on a/cpu0 a/cpu1"]),
    ("free devices count towards a gang", [TWO], running(dict(LONG)), {"gpus": 2, "expected_s": 1},
     ["preempt 1 for 9", "place 9 on a/cpu0 a/cpu1"]),
    ("a victim that does not help is spared", [report("a", 1), report("b", 2)],
     then(running({"gpus": 2, **LONG}, {"expected_s": 950.0})), {"gpus": 2, "expected_s": 1},
     ["preempt 1 for 9", "place 9 on b/cpu0 b/cpu1"]),
    ("no victim when all of them together are not enough", [TWO],
     running(dict(LONG), {"expected_s": 900.0, "job_class": "hp"}), {"gpus": 2, "expected_s": 1}, []),
    ("hp is never preempted", [report("a", 1)], running({"job_class": "hp", **LONG}), {"expected_s": 1}, []),
    ("what cannot resume is never preempted", [report("a", 1)], running({"resumable": False, **LONG}),
     {"expected_s": 1}, []),
    ("a newcomer of unknown length is expected to need five minutes", [report("a", 1)], running(dict(LONG)),
     {}, ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("and preempts nobody who needs less", [report("a", 1)], running({"expected_s": 200.0}), {}, []),
    ("a job of unknown length is expected to need as much as it has had", [report("a", 1)],
     then(running({}), later(1020)), {"expected_s": 400.0}, ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("and is not preempted by one that needs more", [report("a", 1)], then(running({}), later(1020)),
     {"expected_s": 1100.0}, []),
    ("a newcomer behind a wide job that waits still preempts", [TWO],
     then(running(dict(LONG), {"job_class": "hp", **LONG}), queued(3, gpus=2, expected_s=1)),
     {"expected_s": 2}, ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("nobody preempts while an aged job waits for devices", [TWO],
     then(running(dict(LONG), {"job_class": "hp", **LONG}), queued(3, gpus=2, expected_s=1), later(200)),
     {"expected_s": 2}, []),
    ("a device of the wrong type is not made free", [report("a", 1), report("b", 1, type="T4")],
     running({"gpu_type": "cpu", **LONG}, {"gpu_type": "T4", "expected_s": 800.0}),
     {"gpu_type": "T4", "expected_s": 1}, ["preempt 2 for 9", "place 9 on b/cpu0"]),
    ("devices of a drained host are not worth a preemption", [report("a", 1), report("b", 1)],
     then(running(dict(LONG), {"expected_s": 800.0}), told(ev.HostDrained(host_id=HostId("a"), by="root"))),
     {"expected_s": 1}, ["preempt 2 for 9", "place 9 on b/cpu0"]),
]
# fmt: on
ROWS = [(policy, row) for policy, rows in (("fifo", FIFO), ("sjf", SJF), ("srtf", SRTF)) for row in rows]


@pytest.mark.parametrize(
    ("policy", "row"), ROWS, ids=[f"{policy}: {row[0]}".replace(" ", "-") for policy, row in ROWS]
)
def test_the_plan(policy: str, row: Row) -> None:
    _, hosts, before, newcomer, wanted = row
    desk = Desk(policy, *hosts, ageing_s=150.0)
    before(desk)
    desk.submit(9, **newcomer)
    assert decided(desk) == wanted


def test_sjf_starts_the_shortest_first_and_unknown_lengths_last() -> None:
    desk = Desk("sjf", report("a", 1))
    desk.run(1)
    for job, expected_s in (("2", None), ("3", 50.0), ("4", 5.0), ("5", 50.0)):
        desk.submit(job, expected_s=expected_s)
    order: list[str] = []
    while waiting := [j for j in ("2", "3", "4", "5") if desk.phase(j) == "queued"]:
        desk.end(order[-1] if order else "1")
        (now,) = [j for j in waiting if desk.phase(j) == "loading"]
        desk.start(now)
        order.append(now)
    assert order == ["4", "3", "5", "2"]


def test_a_shorter_job_behind_an_aged_one_is_told_of_that_and_not_of_victims() -> None:
    desk = Desk("srtf", report("a", 1), ageing_s=100.0)
    desk.run(1, expected_s=5000.0)
    desk.submit(2, expected_s=9000.0)
    desk.wait(101)
    desk.submit(3, expected_s=10.0)
    assert desk.job(2).aged
    assert (desk.phase(1), desk.phase(3)) == ("running", "queued")
    assert desk.why(3).startswith("behind job 2, which has waited")


def test_a_repeatedly_preempted_job_runs_in_peace_once_it_has_aged() -> None:
    desk = Desk("srtf", report("a", 1), ageing_s=100.0)
    desk.run(1, expected_s=5000.0)
    preempted = 0
    for number in range(2, 30):
        desk.submit(number, expected_s=10.0)
        if desk.phase(1) == "checkpointing":
            preempted += 1
            desk.durable(1, desk.job(1).progress.step + 1)
            desk.end(1, "stopped")
        if desk.phase(number) == "loading":
            desk.start(number)
            desk.wait(10)
            desk.end(number)
        if desk.phase(1) == "loading":
            desk.start(1)
        if desk.job(1).aged:
            break
    assert desk.job(1).aged
    assert preempted >= 2
    while desk.phase(1) != "running":
        desk.wait(1)
    desk.submit(99, expected_s=1.0)
    assert desk.phase(1) == "running"


WHY = [
    ("fifo", {}, "behind job 2 in fifo order; it needs 1 device, and 0 are free"),
    ("fifo", {"gpus": 5}, "needs 5 devices; the largest possible placement here has 2"),
    ("sjf", {"expected_s": 1.0}, "first in sjf order; it needs 1 device, and 0 are free"),
    (
        "srtf",
        {"expected_s": 999.0},
        "no job that could be preempted has longer to run than this job, which has 16m39s",
    ),
    ("castor", {"share": "never", "expected_s": 1.0}, "this job was submitted with --share never"),
]


@pytest.mark.parametrize(("policy", "newcomer", "wanted"), WHY)
def test_why_a_job_waits(policy: str, newcomer: dict[str, Any], wanted: str) -> None:
    desk = Desk(policy, report("a", 2))
    desk.run(1, gpus=2, expected_s=20.0)
    desk.submit(2, expected_s=500.0)
    desk.submit(9, **newcomer)
    assert desk.why(9) == wanted


def test_the_head_of_fifo_keeps_free_devices_and_the_others_are_told_whom_they_are_behind() -> None:
    desk = Desk("fifo", report("a", 2))
    desk.run(1)
    desk.submit(2, gpus=2)
    desk.submit(3)
    assert desk.why(2) == "first in fifo order; it needs 2 devices, and 1 is free"
    assert desk.why(3) == "behind job 2 in fifo order"
    desk.tell(ev.CancelRequested(job_id=JobId("2"), by="ann"))
    assert desk.phase(3) == "loading"


def test_devices_that_are_free_but_apart_are_said_to_be_apart() -> None:
    desk = Desk("fifo", report("a", 2), report("b", 2))
    desk.run(1)
    desk.run(2, gpus=2)
    desk.tell(ev.HostJoined(report=report("c", 1)))
    desk.submit(3, gpus=2)
    assert desk.why(3) == "2 devices are free, but not the 2 it needs together on one host"
