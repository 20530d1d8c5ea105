"""Jobs that ask for a part of a device: beside whom they are put, with how much of it, under any policy."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cotenant.controller.domain import Decision, JobId, LimitSettings, Place, StartAttempt, because
from cotenant.controller.domain import events as ev
from cotenant.controller.policies import registry
from tests.controller.building import Desk, profile, report

DIVIDES: dict[str, Any] = {"divides": True, "cores": (0, 1, 2, 3), "memory_mib": 1000}
MPS: dict[str, Any] = {"divides": True, "sharing": "mps", "memory_mib": 1000}


def slots(count: int = 1, **device: Any) -> Any:
    return report("a", count, device=DIVIDES | device)


def gpus(count: int = 1, **device: Any) -> Any:
    return report("a", count, kind="cuda", type="H200", device=MPS | device)


def part(desk: Desk, job_id: str | int) -> float:
    placement = desk.job(job_id).placement
    return 0.0 if placement is None else float(placement.fraction)


def start_of(desk: Desk) -> StartAttempt:
    return next(command for command in desk.commands if isinstance(command, StartAttempt))


def placed(desk: Desk) -> dict[str, tuple[str, ...]]:
    return {job_id: desk.devices(job_id) for job_id in desk.engine.jobs if desk.devices(job_id)}


@pytest.mark.parametrize("policy", [*registry.ours_available()])
def test_two_halves_run_on_one_device_at_once(policy: str) -> None:
    desk = Desk(policy, slots())
    for job_id, expected_s in ((1, 5000.0), (2, 6000.0)):
        desk.submit(job_id, gpu_fraction=0.5, expected_s=expected_s)
        desk.wait(601.0)  # Some policies look at the queue every ten minutes.
        desk.start(job_id)
    desk.submit(3, gpu_fraction=0.25, expected_s=9000.0)
    assert placed(desk) == {"1": ("a/cpu0",), "2": ("a/cpu0",)}
    desk.end(1)
    desk.wait(601.0)
    assert placed(desk) == {"2": ("a/cpu0",), "3": ("a/cpu0",)}


def test_who_has_a_part_is_told_who_has_the_others() -> None:
    desk = Desk("fifo", slots())
    told = []
    for job_id in (1, 2):
        desk.run(job_id, gpu_fraction=0.5)
        told.append(str(desk.engine.explaining(desk.now_s).reason_now(desk.job(1))))
    assert told == [
        "holds a part (0.50) of its device, whose other parts are free",
        "holds a part (0.50) of its device, beside job 2",
    ]


def test_a_part_is_not_moved_to_a_host_without_the_cores_for_it() -> None:
    """It was asked about again, at the same moment and for ever."""
    hosts = [msgspec.structs.replace(report(name, 1, device=DIVIDES), cpus=8) for name in "ab"]
    desk = Desk("fifo", *hosts)
    desk.run(1, gpu_fraction=0.25, cpus=3)
    desk.submit(2, gpu_fraction=0.25, cpus=6)
    assert placed(desk) == {"1": ("a/cpu0",), "2": ("b/cpu0",)}


def test_the_agent_is_told_the_part_and_its_memory() -> None:
    desk = Desk("fifo", gpus())
    desk.submit(1, gpu_fraction=0.25)
    assert (start_of(desk).fraction, start_of(desk).memory_cap_mib) == (0.25, 250)
    desk.submit(2, gpu_fraction=0.25, memory_mib=600)
    assert (start_of(desk).fraction, start_of(desk).memory_cap_mib) == (0.25, 600)
    desk.submit(3, gpu_fraction=0.5)
    assert desk.phase(3) == "queued"
    waits = [str(reason) for reason in desk.engine.explain(desk.job(3).job_id, desk.now_s)]
    assert (
        "of 1 divided device none has a part (0.50) left: a/0 has 150 MiB left beside its parts; this one "
        "needs 500 MiB"
    ) in waits


@pytest.mark.parametrize("needs_mib", [100.0, 900.0])
def test_a_part_keeps_its_memory_whatever_is_measured(needs_mib: float) -> None:
    """It is the job's limit: with what was measured in its place the parts of a device could be more than it
    has."""
    desk = Desk("fifo", slots())
    for number in (1, 2):
        desk.run(number, gpu_fraction=0.5, batch_size=8)
    desk.tell(
        ev.ProfileLearned(
            job_id=JobId("1"), profile=profile(8, (1, 1.0, needs_mib)), attempt=desk.job(1).attempt.number
        )
    )
    assert [desk.job(number).placement.memory_mib for number in (1, 2)] == [500, 500]


def test_a_part_of_a_slot_is_whole_cores() -> None:
    desk = Desk("fifo", slots())
    desk.submit(1, gpu_fraction=0.3)
    assert part(desk, 1) == 0.5
    desk.submit(2, gpu_fraction=0.25)
    desk.submit(3, gpu_fraction=0.25)
    assert placed(desk).keys() == {"1", "2", "3"}


def test_the_device_with_the_least_left_that_is_enough_is_taken() -> None:
    desk = Desk("fifo", gpus(3))
    for job_id, fraction in ((1, 0.5), (2, 0.75), (3, 0.25)):
        desk.submit(job_id, gpu_fraction=fraction)
    assert [desk.devices(job_id)[0] for job_id in (1, 2, 3)] == ["a/0", "a/1", "a/1"]
    desk.submit(4, gpu_fraction=0.75)
    assert desk.devices(4) == ("a/2",)
    desk.submit(5, gpu_fraction=0.2)
    assert desk.devices(5) == ("a/2",)


def test_parts_that_are_placed_together_share_a_device() -> None:
    """And a whole job gets what is left over, though the policy had meant it for a part."""
    desk = Desk("fifo", gpus(2))
    for job_id in (1, 2):
        desk.run(job_id)
    for job_id in (3, 4):
        desk.submit(job_id, gpu_fraction=0.5)
    desk.submit(5)
    desk.tell(ev.HostDrained(host_id=report("a").host_id, by="root"))
    desk.end(1)
    desk.end(2)
    desk.tell(ev.HostResumed(host_id=report("a").host_id, by="root"))
    desk.wait(1.0)
    assert placed(desk) == {"3": ("a/0",), "4": ("a/0",), "5": ("a/1",)}


@pytest.mark.parametrize("policy", ["castor", "sjf-ffs", "lucid", "patient", "castor-cost"])
def test_nobody_shares_with_a_part(policy: str) -> None:
    desk = Desk(policy, gpus())
    desk.run(1, gpu_fraction=0.25, memory_mib=100, expected_s=100.0)
    desk.submit(2, memory_mib=100, expected_s=100.0)
    assert placed(desk) == {"1": ("a/0",)}
    desk.wait(10_000.0)
    assert placed(desk) == {"1": ("a/0",)}


def test_a_part_joins_no_job_that_has_the_whole_device() -> None:
    desk = Desk("castor", gpus())
    desk.run(1, memory_mib=100, expected_s=100.0)
    desk.submit(2, gpu_fraction=0.25, memory_mib=100, expected_s=100.0)
    assert placed(desk) == {"1": ("a/0",)}


UNDIVIDED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "one core": (slots(divides=False, cores=(0,)), {}, "a/cpu0 cannot be divided"),
    "no MPS": (gpus(divides=False, sharing="time-slicing"), {}, "a/0 cannot be divided"),
    "never shares": (gpus(), {"share": "never"}, "it was submitted with --share never"),
}


@pytest.mark.parametrize("case", UNDIVIDED)
def test_where_nothing_holds_it_to_its_part_it_has_the_device(case: str) -> None:
    host, more, why = UNDIVIDED[case]
    desk = Desk("fifo", host)
    desk.run(1, gpu_fraction=0.5, **more)
    assert part(desk, 1) == 1.0
    desk.submit(2, gpu_fraction=0.5, **more)
    assert desk.phase(2) == "queued"
    assert any(why in str(reason) for reason in desk.engine.explain(desk.job(2).job_id, desk.now_s))


def test_users_do_not_meet_under_mps() -> None:
    desk = Desk("fifo", gpus())
    desk.run(1, gpu_fraction=0.25, uid=1000)
    desk.submit(2, gpu_fraction=0.25, uid=1001)
    assert desk.phase(2) == "queued"
    desk.submit(3, gpu_fraction=0.25, uid=1000)
    assert desk.phase(3) == "loading"


def test_a_policy_may_not_put_a_whole_job_beside_parts() -> None:
    desk = Desk("fifo", gpus())
    desk.run(1, gpu_fraction=0.25, memory_mib=10)
    desk.submit(2, memory_mib=10)
    engine = desk.engine
    why = because("sharing-off")
    action = Place(job_id=desk.job(2).job_id, devices=desk.job(1).placement.devices, reason=why)
    engine.fold(ev.AlarmRang(), Decision(actions=(action,)), desk.now_s)
    assert [str(each) for each in engine.refusals] == ["refused job 2: a/0 already has 1 tenants"]


def test_parts_of_both_classes_are_kept_apart_where_that_costs_nothing() -> None:
    desk = Desk("gfs-rise", gpus(2))
    desk.run(1, gpu_fraction=0.75, job_class="hp")
    desk.run(2, gpu_fraction=0.75, job_class="spot")
    desk.submit(3, gpu_fraction=0.25, job_class="spot")
    assert desk.devices(3) == desk.devices(2)


def test_hp_takes_a_whole_device_from_its_parts() -> None:
    desk = Desk("yarn-cs", gpus())
    desk.run(1, gpu_fraction=0.5)
    desk.run(2, gpu_fraction=0.5)
    desk.submit(3, job_class="hp")
    assert [desk.phase(job_id) for job_id in (1, 2, 3)] == ["checkpointing", "checkpointing", "reserved"]
    desk.end(1, "stopped")
    assert desk.phase(3) == "reserved"
    desk.end(2, "stopped")
    assert (desk.phase(3), part(desk, 3)) == ("loading", 1.0)


def test_a_part_does_not_wait_for_one_that_leaves_beside_which_it_fits() -> None:
    desk = Desk("fifo", gpus())
    desk.run(1, gpu_fraction=0.25)
    desk.run(2, gpu_fraction=0.25)
    desk.tell(ev.PreemptRequested(job_id=desk.job(1).job_id, by="ann"))
    assert desk.phase(1) == "checkpointing"
    desk.submit(3, gpu_fraction=0.5)
    assert desk.phase(3) == "loading"


def test_no_part_passes_a_job_that_has_aged() -> None:
    """Else whoever wants a whole device could wait for ever."""
    desk = Desk("fifo", gpus(), ageing_s=100.0)
    desk.run(1, gpu_fraction=0.5)
    desk.submit(2)
    desk.wait(200.0)
    desk.submit(3, gpu_fraction=0.5)
    assert desk.phase(3) == "queued"
    desk.end(1)
    assert desk.phase(2) == "loading"


def test_a_limit_counts_parts() -> None:
    desk = Desk("fifo", gpus(2), limits=LimitSettings(user_devices=1))
    for job_id in (1, 2, 3):
        desk.submit(job_id, gpu_fraction=0.5)
    assert placed(desk).keys() == {"1", "2"}
    assert desk.phase(3) == "blocked"
    desk.end(1)
    assert placed(desk).keys() == {"2", "3"}


def test_who_needs_more_than_its_part_fails_with_it() -> None:
    """It does not get the whole device instead: that is not what it asked for."""
    desk = Desk("fifo", gpus())
    desk.run(1, gpu_fraction=0.5)
    desk.end(1, "user-failed", out_of_memory=True)
    assert desk.phase(1) == "failed"


@pytest.mark.parametrize("policy", ["fifo", "srtf", "castor", "gfs-rise"])
def test_a_restart_changes_nothing(policy: str) -> None:
    desk = Desk(policy, gpus())
    desk.run(1, gpu_fraction=0.5, expected_s=10.0)
    desk.run(2, gpu_fraction=0.25, expected_s=10.0)
    desk.submit(3, gpu_fraction=0.5, expected_s=10.0)
    desk.restart()
    desk.end(2)
    desk.wait(1.0)
    assert placed(desk) == {"1": ("a/0",), "3": ("a/0",)}


def test_a_preempting_policy_preempts_nobody_for_a_part_that_fits() -> None:
    desk = Desk("srtf", gpus(2))
    desk.run(1, expected_s=10_000.0)
    desk.run(2, gpu_fraction=0.5, expected_s=20_000.0)
    desk.submit(3, gpu_fraction=0.5, expected_s=10.0)
    assert [desk.phase(job_id) for job_id in (1, 2, 3)] == ["running", "running", "loading"]
    assert desk.devices(3) == desk.devices(2)
