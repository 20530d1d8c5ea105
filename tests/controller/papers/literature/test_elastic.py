"""Policies that give jobs more and fewer devices: how they divide, and what they do about it."""

from __future__ import annotations

from typing import Any

import pytest

from cotenant.controller.domain import Job, JobId, Phase, because
from cotenant.controller.domain import events as ev
from cotenant.controller.papers.literature.elastic import SizeClaim, afs_l, max_min, themis
from cotenant.controller.papers.pcs import size_gpu_s
from cotenant.controller.performance import SpeedCurve
from tests.controller.building import Desk, engine, profile, report, spec

WIDE: dict[str, Any] = {"gpus_min": 1, "gpus_max": 4, "batch_size": 8}


def claim(number: int, left_s: float, *sizes: int, serial: float = 0.0) -> SizeClaim:
    job = Job(
        spec=spec(number), number=number, submitted_s=0.0, reason=because("finished"), phase=Phase.QUEUED
    )
    job.measured.curve = SpeedCurve(serial=serial)
    return SizeClaim(job=job, sizes=sizes, left_s=left_s)


# fmt: off
DIVISIONS = [
    ("equal parts, in order of arrival", max_min, [claim(1, 9, 1, 2, 4), claim(2, 9, 1, 2, 4)], 8, [4, 4]),
    ("equal parts of what they take", max_min, [claim(1, 9, 1, 2, 4), claim(2, 9, 1, 2, 4)], 7, [4, 2]),
    ("what one cannot use goes to others", max_min, [claim(1, 9, 1), claim(2, 9, 1, 2, 4)], 6, [1, 4]),
    ("nobody passes who does not fit", max_min,
     [claim(1, 9, 3), claim(2, 9, 4), claim(3, 9, 1)], 5, [3, 0, 0]),
    ("the shortest first", afs_l, [claim(1, 9, 2), claim(2, 8, 2), claim(3, 7, 2)], 4, [0, 2, 2]),
    ("more for the short one", afs_l, [claim(1, 90, 1, 2, 4), claim(2, 9, 1, 2, 4)], 5, [1, 4]),
    ("but for one that scales badly", afs_l,
     [claim(1, 90, 1, 2, 4), claim(2, 9, 1, 2, 4, serial=0.9)], 5, [4, 1]),
    ("as many as the furthest behind can use", themis,
     [claim(1, 90, 1, 2, 4), claim(2, 9, 1, 2, 4)], 5, [1, 4]),
]
# fmt: on


@pytest.mark.parametrize("row", DIVISIONS, ids=[row[0].replace(" ", "-") for row in DIVISIONS])
def test_a_division_gives(row: tuple[Any, ...]) -> None:
    _, divide, claims, gpus, wanted = row
    sizes = divide(claims, gpus, 100.0)
    assert [sizes.get(each.job_id, 0) for each in claims] == wanted


def alone() -> Desk:
    """Job 1 has all four devices, as nobody else is there."""
    desk = Desk("max-min", report("a", 4), resize_lease_s=0.0, ageing_s=0.0)
    desk.submit(1, **WIDE, expected_s=10_000.0, load_s=10.0, pause_s=5.0)
    assert len(desk.devices(1)) == 4
    desk.start(1)
    return desk


def test_a_job_shrinks_for_one_that_waits_once_it_has_had_its_lease_and_each_says_why() -> None:
    desk = alone()
    desk.wait(100.0)
    desk.submit(2, **WIDE, expected_s=1_000.0)
    assert desk.phase(2) == "queued"
    assert desk.why(2) == (
        "its part under max-min is 2 devices, which become free when others have ended or have had their "
        "lease"
    )
    desk.wait(199.0)
    assert desk.phase(1) == "running"
    desk.wait(1.0)
    assert (desk.phase(1), desk.phase(2)) == ("checkpointing", "reserved")
    assert str(desk.job(1).reason) == (
        "given 2 devices instead of 4, as is its part under max-min: job 2 gets the others"
    )
    desk.end(1, "stopped")
    assert (len(desk.devices(1)), len(desk.devices(2))) == (2, 2)
    assert (desk.job(1).counts.resizes, desk.job(1).counts.preemptions) == (1, 0)


def test_a_job_grows_when_others_have_ended_and_says_why() -> None:
    desk = alone()
    desk.wait(400.0)
    desk.submit(2, **WIDE, expected_s=1_000.0)
    desk.end(1, "stopped")
    desk.start(1)
    desk.start(2)
    desk.wait(400.0)
    desk.end(2)
    assert desk.phase(1) == "checkpointing"
    text = str(desk.job(1).reason)
    assert text.startswith("given 4 devices instead of 2, as is its part under max-min: it should end ")
    desk.end(1, "stopped")
    assert len(desk.devices(1)) == 4


def test_a_job_that_is_nearly_done_does_not_grow() -> None:
    desk = Desk("max-min", report("a", 4), resize_lease_s=0.0, ageing_s=0.0)
    desk.run(1, gpus=2, expected_s=1e6)
    desk.run(2, **WIDE, expected_s=1_000.0, load_s=10.0, pause_s=5.0)
    assert len(desk.devices(2)) == 2
    desk.wait(500.0)
    desk.end(1)
    assert desk.phase(2) == "running", "what it would gain is less than a save and a load"


def test_a_rigid_job_is_preempted_where_an_elastic_one_would_shrink() -> None:
    desk = Desk("afs-l", report("a", 2), resize_lease_s=0.0)
    desk.run(1, gpus=2, expected_s=10_000.0)
    desk.wait(400.0)
    desk.submit(2, gpus=2, expected_s=10.0)
    assert (desk.phase(1), desk.phase(2)) == ("checkpointing", "reserved")
    assert str(desk.job(1).reason) == "preempted for 2: its part of the devices under afs-l is none now"


def test_a_job_that_loads_keeps_its_devices() -> None:
    desk = Desk("max-min", report("a", 4), resize_lease_s=0.0)
    desk.submit(1, **WIDE, expected_s=10_000.0)
    desk.wait(1_000.0)
    desk.submit(2, **WIDE)
    assert (desk.phase(1), desk.phase(2)) == ("loading", "queued")


@pytest.mark.parametrize("policy", ["max-min", "afs-l", "themis"])
def test_an_elastic_policy_comes_to_rest_while_nothing_happens(policy: str) -> None:
    """What it wants is what it has done: time alone changes nothing for jobs that go on as expected."""
    desk = Desk(policy, report("a", 4), report("b", 4), resize_lease_s=0.0)
    for number in (1, 2, 3):
        desk.submit(number, **WIDE, expected_s=1e6)
    for _ in range(6):
        for number in (1, 2, 3):
            if desk.phase(number) == "checkpointing":
                desk.end(number, "stopped")
            if desk.phase(number) == "loading":
                desk.start(number)
        desk.wait(400.0)
    resizes = [desk.job(number).counts.resizes for number in (1, 2, 3)]
    for _ in range(20):
        desk.wait(1_000.0)
        desk.tell(ev.AlarmRang())
    assert [desk.job(number).counts.resizes for number in (1, 2, 3)] == resizes
    assert desk.engine.jobs[JobId("1")].phase is Phase.RUNNING


def test_pcs_gives_elastic_jobs_what_the_share_of_their_class_allows() -> None:
    """Two classes of one weight each: the large job has half of the devices, the small ones the rest."""
    desk = Desk("pcs", report("a", 8), resize_lease_s=0.0, ageing_s=0.0)
    parameters: dict[str, str | int | float | bool] = {
        "elastic": True, "thresholds_gpu_s": "1000", "weights": "0.5,0.5", "min_lease_s": 60.0,
    }  # fmt: skip
    desk.tell(ev.PolicyChanged(name="pcs", parameters=parameters, by="root"))
    large = {**WIDE, "gpus_max": 8}
    desk.run(1, **large, expected_s=100_000.0, load_s=1.0, pause_s=1.0)
    assert len(desk.devices(1)) == 8, "nobody else is there"
    desk.wait(100.0)
    desk.submit(2, **WIDE, expected_s=500.0)
    desk.end(1, "stopped")
    assert (len(desk.devices(1)), len(desk.devices(2))) == (4, 4)
    assert str(desk.job(1).reason).startswith("given 4 devices instead of 8, as is its part under pcs")
    state = desk.engine.snapshot().policy_state
    other = engine("pcs")
    other.restore(desk.engine.snapshot())
    assert other.snapshot().policy_state == state


@pytest.mark.parametrize("iterations", [None, 3_000], ids=["by-steps", "by-iterations"])
def test_the_size_of_an_elastic_job_stands_still_while_it_runs_and_after_it_was_resized(
    iterations: int | None,
) -> None:
    """PCS sorts jobs into classes by it: one that shrank as it trained would end among the small ones."""
    desk = Desk("max-min", report("a", 4), resize_lease_s=0.0, ageing_s=0.0)
    known = {"profile": profile(8, (1, 1.0, 100.0)), "iterations": iterations}
    desk.submit(1, **WIDE, **known, expected_s=3_000.0, load_s=1.0, pause_s=1.0)
    whole_s = size_gpu_s(desk.job(1), desk.now_s)
    assert whole_s == pytest.approx(3_000.0)
    desk.start(1)
    desk.wait(310.0)
    done = int(310.0 / desk.job(1).estimate.slowdown)
    assert desk.job(1).estimate.slowdown < 1.0, "it has four devices"
    assert size_gpu_s(desk.job(1), desk.now_s) == pytest.approx(whole_s, abs=2.0)
    desk.submit(2, **WIDE, expected_s=3_000.0)
    assert desk.phase(1) == "checkpointing"
    desk.durable(1, done)
    desk.end(1, "stopped", step=done)
    desk.start(1)
    desk.wait(50.0)
    assert (len(desk.devices(1)), desk.job(1).counts.resizes) == (2, 1)
    assert size_gpu_s(desk.job(1), desk.now_s) == pytest.approx(whole_s, abs=4.0)


def test_pcs_gives_small_jobs_their_share_behind_however_many_large_ones() -> None:
    desk = Desk("pcs", report("a", 2), resize_lease_s=0.0, ageing_s=0.0)
    parameters: dict[str, str | int | float | bool] = {
        "elastic": True, "thresholds_gpu_s": "1000", "weights": "0.5,0.5", "min_lease_s": 60.0,
    }  # fmt: skip
    desk.tell(ev.PolicyChanged(name="pcs", parameters=parameters, by="root"))
    desk.run(1, gpus=1, expected_s=100_000.0)
    desk.run(2, gpus=1, expected_s=100_000.0)
    for number in range(3, 8):
        desk.submit(number, gpus=1, expected_s=100_000.0)
    desk.submit(8, gpus=1, expected_s=10.0)
    desk.wait(400.0)
    assert desk.phase(8) == "reserved", desk.why(8)


def test_nobody_passes_an_aged_job() -> None:
    desk = Desk("max-min", report("a", 4), resize_lease_s=0.0, ageing_s=50.0)
    for number in (1, 2):
        desk.run(number, gpus=2, expected_s=1e6, job_class="hp")
    desk.submit(3, gpus=4)
    desk.wait(60.0)
    desk.submit(4, gpus=1)
    desk.end(1)
    assert (desk.phase(3), desk.phase(4)) == ("queued", "queued")
    assert desk.why(4).startswith("behind job 3, which has waited")
