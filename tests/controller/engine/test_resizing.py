"""Elastic jobs: what a resize may ask for, and what becomes of it whatever happens meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine
from cotenant.controller.performance import Profile, SpeedCurve, curve_of
from tests.controller.building import Desk, engine, profile, report, spec
from tests.controller.watching import Watcher

WHY = domain.because("own", "for a test")
ELASTIC: dict[str, Any] = {"gpus_min": 1, "gpus_max": 4, "batch_size": 8}


def decide(desk: Desk, *actions: domain.Place | domain.Preempt | domain.Resize) -> str:
    """The actions are carried out as if the policy had said so: why the first of them was refused, if any."""
    desk.commands = desk.engine.fold(ev.AlarmRang(), domain.Decision(actions=actions), desk.now_s)
    return str(desk.engine.refusals[0]) if desk.engine.refusals else "allowed"


def resize(job: str | int, *devices: str) -> domain.Resize:
    return domain.Resize(
        job_id=domain.JobId(str(job)), devices=tuple(map(domain.DeviceId, devices)), reason=WHY
    )


def place(job: str | int, *devices: str) -> domain.Place:
    return domain.Place(
        job_id=domain.JobId(str(job)), devices=tuple(map(domain.DeviceId, devices)), reason=WHY
    )


@pytest.fixture
def desk() -> Desk:
    desk = Desk("fifo", report("a", 4, checkpoint_domain="nfs"), resize_lease_s=0.0)
    desk.submit(1, **ELASTIC, expected_s=1000.0)
    desk.start(1)
    desk.tell(ev.HostJoined(report=report("b", 2, checkpoint_domain="nfs")))
    assert desk.devices(1) == ("a/cpu0",)
    return desk


def start_of(desk: Desk) -> domain.StartAttempt:
    (start,) = [command for command in desk.commands if isinstance(command, domain.StartAttempt)]
    return start


def test_a_job_that_grows_saves_and_goes_on_with_the_same_batch_on_all_of_its_new_devices(desk: Desk) -> None:
    assert decide(desk, resize(1, "a/cpu0", "a/cpu1", "a/cpu2", "a/cpu3")) == "allowed"
    assert desk.phase(1) == "checkpointing"
    (stop,) = [command for command in desk.commands if isinstance(command, domain.StopAttempt)]
    assert stop.save
    desk.durable(1, 40)
    desk.end(1, "stopped")
    assert desk.phase(1) == "loading"
    assert desk.devices(1) == ("a/cpu0", "a/cpu1", "a/cpu2", "a/cpu3")
    start = start_of(desk)
    assert (start.resume_step, start.sub_batch, start.accumulation_steps, start.step_batch) == (
        40, 8, 1, (8, 4),
    )  # fmt: skip
    job = desk.job(1)
    assert (job.counts.resizes, job.counts.preemptions, job.attempt.number) == (1, 0, 2)
    assert str(desk.engine.explain(domain.JobId("1"), desk.now_s)[0]) == "for a test"


@pytest.mark.parametrize(("devices", "micro_batches", "rows"), [(1, 4, 8), (2, 2, 8)], ids=["one", "two"])
def test_the_batch_of_a_step_is_the_same_on_any_number_of_devices(
    devices: int, micro_batches: int, rows: int
) -> None:
    desk = Desk("fifo", report("a", 4))
    desk.submit(1, **{**ELASTIC, "gpus_min": devices, "gpus_max": 4})
    start = start_of(desk)
    assert (start.accumulation_steps, start.sub_batch) == (micro_batches, rows)
    assert start.accumulation_steps * (start.sub_batch or 0) * devices == 8 * 4


def test_nobody_else_gets_a_device_that_a_resize_has_a_claim_on(desk: Desk) -> None:
    decide(desk, resize(1, "a/cpu0", "a/cpu1"))
    desk.submit(2, gpus=4)
    assert desk.phase(2) == "queued"
    desk.submit(3)
    assert desk.devices(3) not in (("a/cpu0",), ("a/cpu1",))
    assert decide(desk, place(2, "a/cpu0", "a/cpu1", "a/cpu2", "a/cpu3")) != "allowed"


def test_devices_that_a_job_leaves_behind_are_another_jobs_once_it_is_gone(desk: Desk) -> None:
    decide(desk, resize(1, "a/cpu0", "a/cpu1", "a/cpu2", "a/cpu3"))
    desk.end(1, "stopped")
    desk.start(1)
    desk.submit(2, gpus=3)
    assert desk.phase(2) == "queued"
    assert decide(desk, resize(1, "a/cpu2"), place(2, "a/cpu0", "a/cpu1", "a/cpu3")) == "allowed"
    assert (desk.phase(1), desk.phase(2)) == ("checkpointing", "reserved")
    desk.end(1, "stopped")
    assert (desk.phase(1), desk.phase(2)) == ("loading", "loading")
    assert (desk.devices(1), desk.devices(2)) == (("a/cpu2",), ("a/cpu0", "a/cpu1", "a/cpu3"))


def test_a_job_grows_onto_devices_that_another_leaves_and_waits_for_it(desk: Desk) -> None:
    desk.tell(ev.HostLost(host_id=domain.HostId("b"), by="root"))
    desk.run(2, gpus=2, expected_s=100.0)
    assert desk.devices(2) == ("a/cpu1", "a/cpu2")
    wanted = ("a/cpu0", "a/cpu1")
    assert decide(desk, domain.Preempt(job_id=domain.JobId("2"), reason=WHY), resize(1, *wanted)) == "allowed"
    desk.end(1, "stopped")
    assert desk.phase(1) == "reserved"
    desk.end(2, "stopped")
    assert (desk.phase(1), desk.devices(1)) == ("loading", wanted)


def test_two_jobs_resized_at_once_swap_what_they_have(desk: Desk) -> None:
    desk.tell(ev.HostLost(host_id=domain.HostId("b"), by="root"))
    decide(desk, resize(1, "a/cpu0", "a/cpu1", "a/cpu2"))
    assert desk.engine.refusals, "32 samples cannot be divided by 3"
    decide(desk, resize(1, "a/cpu0", "a/cpu1"))
    desk.end(1, "stopped")
    desk.start(1)
    desk.run(2, **ELASTIC)
    assert desk.devices(2) == ("a/cpu2",)
    assert decide(desk, resize(1, "a/cpu0"), resize(2, "a/cpu1", "a/cpu2")) == "allowed"
    desk.end(2, "stopped")
    assert (desk.phase(2), desk.phase(1)) == ("reserved", "checkpointing")
    desk.end(1, "stopped")
    assert (desk.devices(1), desk.devices(2)) == (("a/cpu0",), ("a/cpu1", "a/cpu2"))
    assert (desk.phase(1), desk.phase(2)) == ("loading", "loading")


# --- What is refused -------------------------------------------------------------------------------

Before = Callable[[Desk], object]


def nothing(desk: Desk) -> None:
    pass


def cannot_resume(desk: Desk) -> None:
    desk.tell(
        ev.CapabilitiesSeen(
            job_id=domain.JobId("1"), attempt=desk.job(1).attempt.number, host_id=domain.HostId("a"),
            resumable=False, step=0,
        )
    )  # fmt: skip


REFUSED = [
    ("an unknown job", nothing, "77", ("a/cpu1",), "refused to resize job 77: the job is gone"),
    ("a waiting job", lambda d: d.submit(2, gpus=7), "2", ("a/cpu1",), "refused to resize job 2: the job is"),
    ("a rigid job", lambda d: d.run(2), "2", ("a/cpu1", "a/cpu2"), "not submitted with --gpus MIN-MAX"),
    ("the same devices", nothing, "1", ("a/cpu0",), "refused to resize job 1: it has these devices"),
    ("too many", nothing, "1", (*(f"a/cpu{n}" for n in range(4)), "b/cpu0"), "5 devices given, 1 to 4"),
    ("none", nothing, "1", (), "0 devices given, 1 to 4"),
    ("one twice", nothing, "1", ("a/cpu1", "a/cpu1"), "1 devices given, 1 to 4"),
    ("a batch that cannot be divided", nothing, "1", ("a/cpu0", "a/cpu1", "a/cpu2"), "divided equally among"),
    ("a device that is held", lambda d: d.run(2, gpu_type="cpu"), "1", ("a/cpu0", "b/cpu0"), "already has 1"),
    ("a device that is unknown", nothing, "1", ("a/cpu0", "z/0"), "device z/0 is not available (unknown)"),
    ("a job that cannot resume", cannot_resume, "1", ("a/cpu0", "a/cpu1"), "it cannot resume"),
    ("another domain", lambda d: d.tell(ev.HostJoined(report=report("c", 2, checkpoint_domain="c"))), "1",
     ("c/cpu0", "c/cpu1"), "its checkpoints cannot be read there"),
    ("its own host, drained", lambda d: d.tell(ev.HostDrained(host_id=domain.HostId("a"), by="root")), "1",
     ("a/cpu0", "b/cpu1"), "device a/cpu0 is not available (drained)"),
]  # fmt: skip


@pytest.mark.parametrize("row", REFUSED, ids=[row[0].replace(" ", "-") for row in REFUSED])
def test_a_resize_is_refused_for(desk: Desk, row: tuple[str, Before, str, tuple[str, ...], str]) -> None:
    _, before, job, devices, wanted = row
    before(desk)
    assert wanted in decide(desk, resize(job, *devices))
    assert desk.phase(1) == "running" and desk.job(1).resize_to is None


def test_a_job_keeps_its_devices_for_a_lease_before_it_is_resized_again() -> None:
    desk = Desk("fifo", report("a", 4), resize_lease_s=60.0)
    desk.run(1, **ELASTIC)
    desk.wait(59.0)
    assert decide(desk, resize(1, "a/cpu0", "a/cpu1")) == (
        "refused to resize job 1: it has trained for 59s on its devices, and gets 1m00s at least"
    )
    desk.wait(1.0)
    assert decide(desk, resize(1, "a/cpu0", "a/cpu1")) == "allowed"


def test_an_hp_job_is_never_resized() -> None:
    desk = Desk("fifo", report("a", 4), resize_lease_s=0.0)
    desk.run(1, **ELASTIC, job_class="hp")
    assert "it has class hp" in decide(desk, resize(1, "a/cpu0", "a/cpu1"))


def test_nobody_holds_more_than_a_limit_by_way_of_an_elastic_job() -> None:
    desk = Desk("fifo", report("a", 4), resize_lease_s=0.0, limits=domain.LimitSettings(user_devices=3))
    desk.run(1, **ELASTIC)
    assert decide(desk, resize(1, *(f"a/cpu{n}" for n in range(4)))) == (
        "refused job 1: user ann may hold 3 devices at once and would hold 4"
    )
    assert decide(desk, resize(1, "a/cpu0", "a/cpu1")) == "allowed"
    desk.submit(2, gpus=2)
    assert desk.phase(2) == "blocked", "2 and 2 are more than 3"


# --- What happens meanwhile ------------------------------------------------------------------------


@pytest.mark.parametrize("claimed", ["a/cpu1", "b/cpu0"])
@pytest.mark.parametrize(
    "event",
    [
        ev.HostSilent(host_id=domain.HostId("b")),
        ev.HostDrained(host_id=domain.HostId("b"), by="root"),
        ev.HostLost(host_id=domain.HostId("b"), by="root"),
        ev.HostJoined(report=report("b", 3, checkpoint_domain="nfs")),
    ],
    ids=["silent", "drained", "lost", "new"],
)
def test_a_claim_that_cannot_be_kept_leaves_a_preempted_job(
    desk: Desk, event: ev.AnyEvent, claimed: str
) -> None:
    decide(desk, resize(1, "a/cpu0", claimed))
    desk.durable(1, 40)
    desk.engine.fold(event, domain.Decision(), desk.now_s)
    assert (desk.job(1).resize_to is None) == (claimed == "b/cpu0")
    desk.end(1, "stopped")
    if claimed == "b/cpu0":
        assert len(desk.devices(1)) == 1, "the policy has placed it anew"
    else:
        assert desk.devices(1) == ("a/cpu0", "a/cpu1")
    assert desk.job(1).attempt.start_step == 40


def test_the_host_it_leaves_is_lost_and_it_goes_on_where_it_was_to_go(desk: Desk) -> None:
    desk.durable(1, 30)
    decide(desk, resize(1, "b/cpu0", "b/cpu1"))
    desk.tell(ev.HostLost(host_id=domain.HostId("a"), by="lease"))
    assert (desk.phase(1), desk.devices(1)) == ("loading", ("b/cpu0", "b/cpu1"))
    assert desk.job(1).attempt.start_step == 30


def test_the_host_it_leaves_is_lost_with_devices_it_was_to_get(desk: Desk) -> None:
    desk.durable(1, 30)
    decide(desk, resize(1, "a/cpu1", "b/cpu1"))
    desk.tell(ev.HostLost(host_id=domain.HostId("a"), by="lease"))
    assert desk.devices(1) == ("b/cpu0",), "its claim is gone, and the policy has placed it"


def test_a_save_that_misses_its_deadline_costs_the_steps_since_the_last_one(desk: Desk) -> None:
    desk.durable(1, 30)
    desk.progress(1, 90)
    decide(desk, resize(1, "a/cpu0", "a/cpu1"))
    desk.wait(200.0)
    assert desk.phase(1) == "stopping"
    desk.end(1, "stopped")
    assert (desk.phase(1), desk.devices(1), desk.job(1).attempt.start_step) == (
        "loading",
        ("a/cpu0", "a/cpu1"),
        30,
    )


@pytest.mark.parametrize("outcome", ["user-failed", "infra-failed", "never-started"])
def test_an_attempt_that_dies_while_it_saves_goes_on_all_the_same(desk: Desk, outcome: str) -> None:
    desk.durable(1, 30)
    decide(desk, resize(1, "a/cpu0", "a/cpu1"))
    desk.end(1, outcome)
    assert (desk.phase(1), desk.devices(1), desk.job(1).attempt.start_step) == (
        "loading",
        ("a/cpu0", "a/cpu1"),
        30,
    )


def test_a_job_that_finishes_meanwhile_is_done_and_its_claim_is_given_up(desk: Desk) -> None:
    decide(desk, resize(1, "a/cpu0", "a/cpu1", "a/cpu2", "a/cpu3"))
    desk.end(1, "finished")
    assert desk.phase(1) == "done"
    assert desk.engine.ledger.free.everywhere == 6


def test_a_job_that_is_cancelled_meanwhile_ends_and_its_claim_is_given_up(desk: Desk) -> None:
    decide(desk, resize(1, "a/cpu0", "a/cpu1", "a/cpu2", "a/cpu3"))
    desk.tell(ev.CancelRequested(job_id=domain.JobId("1"), by="ann"))
    desk.end(1, "stopped")
    assert desk.phase(1) == "cancelled"
    assert desk.engine.ledger.free.everywhere == 6


def test_a_save_that_is_lost_with_its_host_is_no_reason_to_begin_elsewhere_before(desk: Desk) -> None:
    """An agent that only falls silent may still have the processes."""
    decide(desk, resize(1, "b/cpu0", "b/cpu1"))
    desk.tell(ev.HostSilent(host_id=domain.HostId("a")))
    assert desk.phase(1) == "checkpointing" and desk.job(1).resize_to is not None
    desk.tell(ev.HostBack(host_id=domain.HostId("a")))
    desk.end(1, "stopped")
    assert desk.devices(1) == ("b/cpu0", "b/cpu1")


def until_stopping(desk: Desk) -> None:
    decide(desk, resize(1, "a/cpu0", "a/cpu1"))
    desk.wait(200.0)


def until_reserved(desk: Desk) -> None:
    desk.run(2, gpus=2)
    decide(desk, domain.Preempt(job_id=domain.JobId("2"), reason=WHY), resize(1, "a/cpu0", "b/cpu0"))
    desk.end(1, "stopped")


def until_loading(desk: Desk) -> None:
    decide(desk, resize(1, "a/cpu0", "a/cpu1"))
    desk.end(1, "stopped")


STATES: list[tuple[str, Callable[[Desk], object]]] = [
    ("running", nothing),
    ("checkpointing", lambda desk: decide(desk, resize(1, "a/cpu0", "a/cpu1"))),
    ("stopping", until_stopping),
    ("reserved", until_reserved),
    ("loading", until_loading),
]


@pytest.mark.parametrize("state", STATES, ids=[state for state, _ in STATES])
def test_a_controller_that_is_killed_in_any_state_of_a_resize_goes_on_from_there(
    desk: Desk, state: tuple[str, Callable[[Desk], object]]
) -> None:
    name, reach = state
    reach(desk)
    assert desk.phase(1) == name
    snapshot = msgspec.msgpack.encode(desk.engine.snapshot())
    restored = engine(validate=True, resize_lease_s=0.0)
    restored.restore(msgspec.msgpack.decode(snapshot, type=type(desk.engine.snapshot())))
    assert msgspec.msgpack.encode(restored.snapshot()) == snapshot
    for one in (desk.engine, restored):
        finish(one, desk.now_s)
    assert msgspec.msgpack.encode(restored.snapshot()) == msgspec.msgpack.encode(desk.engine.snapshot())


def finish(one: Engine, now_s: float) -> None:
    """All attempts that leave have left, and all that load get going."""
    for _ in range(3):
        for job in list(one.jobs.values()):
            of: dict[str, Any] = {"job_id": job.job_id, "attempt": job.attempt.number}
            for host_id in job.attempt.hosts_left:
                if job.phase in ("checkpointing", "stopping"):
                    one.handle(
                        ev.AttemptEnded(**of, host_id=host_id, verdict=domain.ExitVerdict(outcome="stopped")),
                        now_s,
                    )
                elif job.phase == "loading":
                    one.handle(ev.FirstStepDone(**of, host_id=host_id, step=1), now_s)


# --- How fast it is on more devices ----------------------------------------------------------------


def test_a_curve_is_assumed_until_steps_on_two_numbers_of_devices_were_seen(desk: Desk) -> None:
    job = desk.job(1)
    assert (job.measured.curve.source, round(job.measured.curve.speedup(4, 1), 2)) == ("assumed", 3.39)
    desk.wait(200.0)
    desk.progress(1, 50, 4.0)
    assert (job.measured.curve.measured, job.measured.curve.source, job.estimate.slowdown) == (
        ((1, 4.0),),
        "assumed",
        1.0,
    )
    decide(desk, resize(1, "a/cpu0", "a/cpu1"))
    desk.durable(1, 50)
    desk.end(1, "stopped")
    desk.start(1)
    desk.wait(200.0)
    desk.progress(1, 60, 3.0)
    assert (job.measured.curve.measured, job.measured.curve.source, job.estimate.slowdown) == (
        ((1, 4.0), (2, 3.0)),
        "seen",
        0.75,
    )
    assert job.measured.curve.step_s(4) == pytest.approx(2.5), "a + c / devices through both"
    desk.submit(2, **ELASTIC, argv=("python", "train-1.py"))
    assert desk.job(2).measured.curve.source == "like jobs"
    assert desk.job(2).measured.curve.speedup(2, 1) == pytest.approx(4.0 / 3.0)


def test_what_is_left_counts_on_the_fewest_devices_and_runs_down_faster_on_more(desk: Desk) -> None:
    decide(desk, resize(1, "a/cpu0", "a/cpu1"))
    desk.end(1, "stopped")
    desk.start(1)
    before_s = desk.job(1).remaining_now_s(desk.now_s)
    desk.wait(53.0)
    assert before_s - desk.job(1).remaining_now_s(desk.now_s) == pytest.approx(100.0)


def test_profiles_of_its_like_on_each_number_of_devices_make_its_curve(desk: Desk) -> None:
    for devices, step_s in ((1, 1.0), (2, 1.2), (4, 1.4)):
        desk.submit(10 + devices, gpus=devices, batch_size=8, code_sha256="c0de", argv=("python", "t.py"))
        job = desk.job(10 + devices)
        if desk.phase(10 + devices) == "loading":
            desk.start(10 + devices)
        desk.tell(
            ev.ProfileLearned(
                job_id=job.job_id, profile=measured(step_s), attempt=None, device_type="cpu",
                is_complete=True,
            )
        )  # fmt: skip
        desk.tell(ev.CancelRequested(job_id=job.job_id, by="ann"))
        desk.end(10 + devices, "stopped")
    desk.submit(3, **ELASTIC, code_sha256="c0de", argv=("python", "t.py"))
    curve = desk.job(3).measured.curve
    assert curve.source == "profile"
    assert dict(curve.measured) == {1: 4.0, 2: pytest.approx(2.2), 4: 1.4}, (
        "all batches but the last without a sync"
    )


def measured(step_s: float) -> Profile:
    return profile(8, (1, step_s, 100.0))


def test_a_curve_without_measurements_is_amdahls() -> None:
    curve = SpeedCurve(serial=0.5)
    assert (curve.ratio(2, 1), curve.speedup(4, 2)) == (0.75, 1.2)
    assert curve_of((), ()).source == "assumed"
    assert curve_of(((1, 1.0),), ((1, 2.0), (2, 1.0))) == SpeedCurve(
        measured=((1, 1.0),), serial=0.0, source="like jobs"
    )


# --- What can be asked for -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({"gpus_min": 2, "gpus_max": 3, "batch_size": 5}, "cannot be divided equally among 2"),
        ({"gpus_min": 2, "gpus_max": 3, "nodes": 2}, "cannot be divided equally among 2 workers and among 3"),
        ({"gpus_min": 2, "gpus_max": 1}, "gpus_max 1 is below gpus_min 2"),
    ],
)
def test_a_range_that_makes_no_sense_is_never_a_spec(asked: dict[str, int], wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        spec(1, **asked)


def test_watchers_promises_hold_while_jobs_are_resized_at_random() -> None:
    """Any number of devices, in any order: whole gangs, no device twice, no attempt twice."""
    chance = random.Random(7)
    desk = Desk(
        "fifo",
        report("a", 4, checkpoint_domain="x"),
        report("b", 4, checkpoint_domain="x"),
        resize_lease_s=0.0,
    )
    watcher, jobs = Watcher(desk.engine), ("1", "2", "3")
    for job in jobs:
        desk.submit(job, **ELASTIC)
    for _ in range(150):
        job = chance.choice(jobs)
        devices = chance.sample(sorted(desk.engine.ledger.devices), chance.choice((1, 2, 4)))
        decide(desk, resize(job, *devices))
        watcher.saw(ev.AlarmRang(), desk.commands)
        for other in jobs:
            if chance.random() < 0.5 and desk.phase(other) in ("loading", "checkpointing"):
                if desk.phase(other) == "loading":
                    desk.start(other)
                else:
                    for host_id in desk.hosts(other):
                        event = ev.AttemptEnded(
                            job_id=domain.JobId(other), attempt=desk.job(other).attempt.number,
                            host_id=host_id, verdict=domain.ExitVerdict(outcome="stopped"),
                        )  # fmt: skip
                        watcher.saw(event, desk.tell(event))
    assert sum(desk.job(job).counts.resizes for job in jobs) > 20
