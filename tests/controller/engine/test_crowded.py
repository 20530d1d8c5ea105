"""Out of device memory while sharing: recorded, blamed on who died, and that pair is not made again."""

from __future__ import annotations

from typing import Any

import msgspec

from cotenant.controller.domain import Decision, DeviceId, JobId, Share, because
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Snapshot
from cotenant.controller.knowledge import ENTRIES_MAX, PairTable
from tests.controller.building import Desk, profile, report

LIGHT = profile(8, (1, 1.0, 300.0), (2, 1.1, 200.0), duty=0.2)


def job(script: str, expected_s: float = 1000.0, **more: Any) -> dict[str, Any]:
    known = {"argv": ("python", script), "profile": LIGHT, "batch_size": 8, "expected_s": expected_s}
    return {**known, **more}


def pair(*hosts: Any) -> Desk:
    desk = Desk("castor", *hosts)
    desk.run(1, **job("x.py"))
    desk.submit(2, **job("y.py", 500.0))
    desk.start(2)
    return desk


def crash(desk: Desk, number: int, **more: Any) -> None:
    desk.end(number, "user-failed", exit_code=1, detail="out of device memory", out_of_memory=True, **more)


def out_of_memory(desk: Desk) -> dict[str, int]:
    entries = desk.engine.ledger.pairs.entries.values()
    return {f"{e.job}|{e.beside}": e.out_of_memory for e in entries if e.out_of_memory}


def test_the_guest_goes_on_later_and_is_not_failed_for_it() -> None:
    desk = pair()
    desk.durable(2, 7)
    crash(desk, 2)
    assert desk.phase(2) == "queued"
    assert str(desk.job(2).reason) == (
        "ran out of device memory beside 1 (capped at 300 MiB); this pair is not made again, and the job "
        "goes on alone"
    )
    assert (
        desk.job(2).counts.user_failures,
        desk.job(2).counts.infra_failures,
        desk.job(2).progress.step,
    ) == (0, 0, 7)
    assert desk.why(2) == "this job ran out of device memory while it shared (1 x), so it runs alone"
    desk.end(1)
    assert desk.phase(2) == "loading"
    assert desk.job(2).placement.beside == ()


def test_blamed_is_the_one_that_died() -> None:
    guest, host = pair(), pair()
    crash(guest, 2)
    crash(host, 1)
    assert out_of_memory(guest) == {"python y.py, batch 8|python x.py, batch 8": 1}
    assert out_of_memory(host) == {"python x.py, batch 8|python y.py, batch 8": 1}
    assert "planned with 300 MiB" in str(host.job(1).reason)
    assert (host.phase(1), host.phase(2)) == ("queued", "running"), "the incumbent goes on alone as well"


def test_one_that_has_the_device_to_itself_fails_by_itself() -> None:
    desk = Desk("castor")
    desk.run(1, **job("x.py"))
    crash(desk, 1)
    assert desk.phase(1) == "failed"
    assert out_of_memory(desk) == {}


def test_a_guest_keeps_its_cap_when_its_partner_leaves() -> None:
    desk = pair()
    desk.end(1)
    crash(desk, 2)
    assert desk.phase(2) == "loading", "it died of the cap it was given for job 1, and has the device now"
    assert out_of_memory(desk) == {"python y.py, batch 8|python x.py, batch 8": 1}


def test_the_second_time_alone_it_is_the_program() -> None:
    desk = pair()
    crash(desk, 2)
    desk.end(1)
    desk.start(2)
    crash(desk, 2)
    assert desk.phase(2) == "failed"


def test_a_gang_with_two_partners_is_kept_from_both() -> None:
    desk = Desk("castor", report("a", 2))
    desk.run(1, **job("x.py"))
    desk.run(2, **job("y.py"))
    desk.submit(3, **job("z.py", 200.0, gpus=2))
    desk.start(3)
    crash(desk, 3)
    assert len(out_of_memory(desk)) == 2


def test_a_gang_over_hosts_ends_everywhere_and_waits() -> None:
    desk = Desk("castor", report("a", 1), report("b", 1))
    desk.run(1, **job("x.py"))
    desk.run(2, **job("y.py"))
    desk.submit(3, **job("z.py", 200.0, gpus=2))
    desk.start(3)
    crash(desk, 3, host="a")
    assert desk.phase(3) == "stopping"
    desk.end(3, "stopped", host="b")
    assert desk.phase(3) == "queued"
    assert desk.job(3).reason.code == "crowded-out"


def test_the_engine_refuses_the_pair_whatever_the_policy_says() -> None:
    desk = pair()
    crash(desk, 2)
    desk.submit(3, **job("y.py", 200.0))
    share = Share(job_id=JobId("3"), devices=(DeviceId("a/cpu0"),), reason=because("sharing-nobody"))
    desk.engine.fold(ev.AlarmRang(), Decision(actions=(share,)), desk.now_s)
    assert [refusal.code for refusal in desk.engine.refusals] == ["sharing-crowded"]
    alone = msgspec.structs.replace(share, job_id=JobId("2"))
    desk.engine.fold(ev.AlarmRang(), Decision(actions=(alone,)), desk.now_s)
    assert [refusal.code for refusal in desk.engine.refusals] == ["sharing-alone"]


def test_the_quarantine_survives_recovery() -> None:
    desk = pair()
    crash(desk, 2)
    written = desk.restart()
    desk.submit(3, **job("y.py", 200.0))
    assert desk.why(3) == "no sharing with 1: jobs of these two kinds have run out of device memory together"
    assert msgspec.msgpack.decode(written, type=Snapshot).ledger.pairs == desk.engine.ledger.pairs.entries


def test_later_measurements_do_not_lift_it() -> None:
    desk = pair()
    desk.submit(3, **job("y.py"))
    crash(desk, 2)
    for _ in range(30):
        desk.tell(ev.PairObserved(first=JobId("1"), second=JobId("2"), first_xi=1.0, second_xi=1.0))
    assert desk.engine.ledger.pairs.interference(desk.job(1), desk.job(2)).crowded
    assert desk.phase(3) == "queued"


def test_a_table_that_is_full_forgets_the_oldest_that_did_no_harm() -> None:
    desk = pair()
    table = PairTable()
    table.note_crowding(desk.job(1), desk.job(2))
    harm = next(iter(table.entries))
    for number in range(ENTRIES_MAX):
        table.entries[f"{number}:{number}"] = msgspec.structs.replace(table.entries[harm], out_of_memory=0)
    full = PairTable(table.entries)
    full.observe(desk.job(2), desk.job(1), 1.5)
    assert harm in full.entries
    assert "0:0" not in full.entries
    assert "1:1" in full.entries


# --- Memory that is measured ---------------------------------------------------------------------------


def test_a_profile_that_comes_while_a_job_runs_alone_makes_it_a_partner() -> None:
    desk = Desk("castor")
    desk.run(1, argv=("python", "x.py"), batch_size=8, expected_s=1000.0)
    desk.submit(2, **job("y.py", 500.0))
    assert desk.why(2).startswith("cannot share with 1 yet: the peak memory of job 1 is not known")
    desk.tell(ev.ProfileLearned(job_id=JobId("1"), profile=LIGHT))
    assert desk.phase(2) == "loading"
    assert desk.job(1).placement.memory_mib == 300


def test_more_than_was_declared_counts_once_it_is_measured() -> None:
    desk = Desk("castor")
    desk.run(1, argv=("python", "x.py"), batch_size=8, expected_s=1000.0, memory_mib=100)
    greedy = profile(8, (1, 1.0, 850.0), duty=0.2)
    desk.tell(ev.ProfileLearned(job_id=JobId("1"), profile=greedy))
    desk.submit(2, **job("y.py", 500.0))
    assert desk.phase(2) == "queued"
    assert desk.why(2) == "even a sub-batch of 4 does not fit beside 1: 200 MiB needed, 150 MiB left"


def test_what_is_measured_while_sharing_leaves_the_plan_and_counts_for_the_next() -> None:
    desk = pair()
    greedy = profile(8, (1, 1.0, 850.0), duty=0.2)
    desk.tell(ev.ProfileLearned(job_id=JobId("1"), profile=greedy))
    assert desk.job(1).placement.memory_mib == 300
    desk.end(2)
    desk.submit(3, **job("z.py", 500.0))
    assert desk.phase(3) == "queued"


def test_the_reserve_of_the_device_is_never_planned_with() -> None:
    for reserve_mib, wanted in ((0, "loading"), (450, "queued")):
        desk = Desk("castor", report("a", 1, device={"reserve_mib": reserve_mib}))
        desk.run(1, **job("x.py", memory_mib=300))
        desk.submit(2, argv=("python", "y.py"), memory_mib=300, expected_s=500.0)
        assert desk.phase(2) == wanted
