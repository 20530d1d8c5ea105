"""A fatal fault of a GPU: nobody is lost, the pair is kept apart for a time, and the right one is blamed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cotenant.controller.api import pair_views
from cotenant.controller.domain import (
    Decision,
    DeviceId,
    HostId,
    HostReport,
    JobId,
    Share,
    TrustDevices,
    because,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.knowledge import APART_S, APART_S_MAX, PairTable
from tests.controller.building import Desk, profile, report

LIGHT = profile(8, (1, 1.0, 300.0), (2, 1.1, 200.0), duty=0.2)
WORDS = "Xid 31 (GPU memory page fault) on a/cpu0"
A = HostId("a")


def job(script: str, expected_s: float = 1000.0, **more: Any) -> dict[str, Any]:
    known = {"argv": ("python", script), "profile": LIGHT, "batch_size": 8, "expected_s": expected_s}
    return {**known, **more}


def pair(*hosts: HostReport) -> Desk:
    desk = Desk("castor", *hosts)
    desk.run(1, **job("x.py"))
    desk.submit(2, **job("y.py", 500.0))
    desk.start(2)
    assert desk.job(2).placement.beside == ("1",)
    return desk


def fault(desk: Desk, number: int, role: str, outcome: str = "infra-failed", **more: Any) -> None:
    desk.end(number, outcome, detail=WORDS, gpu_fault=role, **more)


def test_both_go_on_from_their_checkpoints_and_neither_is_failed_for_it() -> None:
    desk = pair()
    desk.durable(1, 40)
    desk.durable(2, 7)
    for number in (1, 2):
        fault(desk, number, "suspect")
    for number, step in ((1, 40), (2, 7)):
        assert desk.phase(number) == "blocked"
        assert desk.job(number).durable_step == step
        assert (desk.job(number).counts.user_failures, desk.job(number).counts.infra_failures) == (0, 1)
        assert WORDS in str(desk.job(number).reason)
    assert desk.engine.hosts[A].failures_in_row == 0, "no host is to blame"
    desk.wait(60.0)
    assert sorted(desk.phase(number) for number in (1, 2)) == ["loading", "queued"], "one after the other"


def test_the_pair_is_kept_apart_for_a_time_and_then_may_be_made_again() -> None:
    desk = pair()
    for number in (1, 2):
        fault(desk, number, "suspect")
    desk.wait(60.0)
    first, second = sorted((1, 2), key=desk.phase)
    desk.start(first)
    assert desk.why(second) == (
        f"no sharing with {first}: a fatal GPU fault struck jobs of these two kinds together; they are kept "
        "apart for a time (`cotenant pairs` says how long)"
    )
    [view] = pair_views(desk.engine.ledger.pairs.list_seen(), 3, now_s=desk.now_s)
    assert view.verdict == "faulted"
    assert view.quarantine.startswith("a fatal GPU fault struck the two together (1 x): kept apart ")
    desk.wait(APART_S)
    assert not desk.engine.ledger.pairs.interference(desk.job(1), desk.job(2)).faulted
    [view] = pair_views(desk.engine.ledger.pairs.list_seen(), 3, now_s=desk.now_s)
    assert view.verdict == "unsure"


def test_the_time_apart_doubles_and_has_an_end() -> None:
    desk, table, until_s = pair(), PairTable(), 0.0
    lengths = []
    for _ in range(12):
        key, ends_s = table.note_fault(desk.job(1), desk.job(2), until_s)
        lengths.append(ends_s - until_s)
        table.reunite(key, until_s)
        assert table.interference(desk.job(2), desk.job(1)).faulted, "an old alarm does not end it"
        until_s = ends_s
        table.reunite(key, until_s)
        assert not table.interference(desk.job(1), desk.job(2)).faulted
    assert lengths[:3] == [APART_S, 2 * APART_S, 4 * APART_S]
    assert lengths[-1] == APART_S_MAX


def test_the_engine_refuses_the_pair_whatever_the_policy_says() -> None:
    desk = pair()
    fault(desk, 2, "suspect")
    desk.submit(3, **job("y.py", 200.0))
    share = Share(job_id=JobId("3"), devices=(DeviceId("a/cpu0"),), reason=because("sharing-nobody"))
    desk.engine.fold(ev.AlarmRang(), Decision(actions=(share,)), desk.now_s)
    assert [refusal.code for refusal in desk.engine.refusals] == ["sharing-faulted"]


def test_the_quarantine_survives_recovery() -> None:
    desk = pair()
    fault(desk, 2, "suspect")
    desk.restart()
    assert desk.engine.ledger.pairs.list_seen()[0].apart_until_s is not None
    desk.wait(APART_S)
    assert desk.engine.ledger.pairs.list_seen()[0].apart_until_s is None, "and so does its end"


# fmt: off
EVIDENCE = [
    (("culprit",), True), (("suspect",), False), (("suspect", "suspect"), True), (("hit",) * 3, False),
    (("device", "device"), False),
]
# fmt: on


@pytest.mark.parametrize(("roles", "alone"), EVIDENCE)
def test_a_job_with_enough_evidence_against_it_runs_alone(roles: tuple[str, ...], alone: bool) -> None:
    desk = Desk("castor", report("a", 1))
    desk.submit(2, **job("y.py", 500.0))
    for role in roles:
        desk.wait(600.0)
        desk.start(2)
        fault(desk, 2, role)
    desk.wait(3600.0)
    desk.start(2)
    desk.submit(3, **job("z.py", 200.0))
    assert desk.phase(3) == ("queued" if alone else "loading")
    if alone:
        assert desk.why(3) == "cannot share with 2: it may be what caused GPU faults while it shared"


def test_one_that_had_the_device_to_itself_is_its_users_to_mend() -> None:
    desk = Desk("castor")
    desk.run(1, **job("x.py"))
    fault(desk, 1, "culprit", "user-failed")
    assert desk.phase(1) == "failed"
    assert desk.engine.ledger.pairs.list_seen() == []


def test_a_device_that_failed_blames_no_pair_and_no_host() -> None:
    desk = pair()
    for number in (1, 2):
        fault(desk, number, "device")
    assert desk.engine.ledger.pairs.list_seen() == []
    assert desk.engine.hosts[A].failures_in_row == 0
    assert [desk.phase(number) for number in (1, 2)] == ["blocked", "blocked"]


def test_a_fault_of_a_job_that_was_being_stopped_changes_nothing_for_it() -> None:
    desk = pair()
    desk.durable(2, 3)
    desk.tell(ev.PreemptRequested(job_id=JobId("2"), by="ann"))
    fault(desk, 2, "suspect")
    assert (desk.phase(2), desk.job(2).counts.preemptions, desk.job(2).counts.infra_failures) == (
        "queued",
        1,
        0,
    )
    assert len(desk.engine.ledger.pairs.list_seen()) == 1, "the pair is known for it all the same"


def test_a_gang_over_hosts_ends_everywhere_and_only_the_pair_on_the_struck_host_is_known_for_it() -> None:
    desk = Desk("castor", report("a", 1), report("b", 1))
    desk.run(1, **job("x.py"))
    desk.run(2, **job("y.py"))
    desk.submit(3, **job("z.py", 200.0, gpus=2))
    desk.start(3)
    fault(desk, 3, "suspect", host="a")
    assert desk.phase(3) == "stopping"
    desk.end(3, "user-failed", detail="lost a peer", host="b")
    assert desk.phase(3) == "blocked"
    assert desk.job(3).counts.user_failures == 0
    [struck] = desk.engine.ledger.pairs.list_seen()
    assert {struck.first, struck.second} == {"python z.py x2, batch 8", "python x.py, batch 8"}


PEER = ("infra-failed", "", "NCCL failure: a peer is gone")
GANG_ENDS = [
    (("infra-failed", "suspect", WORDS), ("user-failed", "", "exit code 1: RuntimeError: x")),
    (("infra-failed", "device", WORDS), PEER),
    (("infra-failed", "hit", WORDS), ("stopped", "", "ended on request")),
    (("user-failed", "culprit", WORDS), PEER),
    (("infra-failed", "culprit", WORDS), ("infra-failed", "hit", WORDS)),
]


@pytest.mark.parametrize("ends", GANG_ENDS, ids=lambda ends: f"{ends[0][1]} and {ends[1][2]}")
def test_whichever_host_of_a_gang_speaks_first_the_same_becomes_of_the_job_and_of_the_hosts(
    ends: tuple[tuple[str, str, str], tuple[str, str, str]],
) -> None:
    """Who lost a peer to a fault mostly says so before the host that knows of the fault."""
    found = []
    for order in (("a", "b"), ("b", "a")):
        desk = Desk("castor", report("a", 1), report("b", 1))
        desk.submit(1, **job("z.py", 200.0, gpus=2))
        desk.start(1)
        for host in order:
            outcome, role, detail = ends["ab".index(host)]
            desk.end(1, outcome, host=host, detail=detail, gpu_fault=role)
        blamed = [desk.engine.hosts[HostId(host)].failures_in_row for host in "ab"]
        failures = (
            desk.job(1).counts.user_failures,
            desk.job(1).counts.infra_failures,
            desk.job(1).counts.fault_evidence,
        )
        found.append((desk.phase(1), failures, blamed))
    assert found[0] == found[1]
    assert found[0][2] == [0, 0], "no host is to blame"
    assert found[0][0] == ("failed" if ends[0][0] == "user-failed" else "blocked")


# --- Devices that are not offered ------------------------------------------------------------------


def changed(desk: Desk, before: HostReport, number: int, **changes: Any) -> HostReport:
    devices = list(before.devices)
    devices[number] = msgspec.structs.replace(devices[number], **changes)
    now = msgspec.structs.replace(before, devices=tuple(devices))
    seen = [
        ev.AttemptSeen(job_id=j.job_id, attempt=j.attempt.number, running=True)
        for j in desk.engine.jobs.values()
        if before.host_id in j.attempt.hosts_left
    ]
    desk.tell(ev.HostJoined(report=now, attempts=tuple(seen)))
    return now


SUSPECT: dict[str, Any] = {"state": "suspect", "healthy": False, "note": "suspect: Xid 62"}


def test_a_device_that_is_not_ok_takes_no_new_work_and_what_runs_there_goes_on() -> None:
    before = report("a", 2)
    desk = Desk("fifo", before)
    desk.run(1)
    bad = changed(desk, before, 0, **SUSPECT)
    changed_twice = changed(desk, bad, 1, state="draining", healthy=False, note="draining: Xid 48")
    desk.submit(2)
    assert (desk.phase(1), desk.phase(2)) == ("running", "queued")
    said = [str(reason) for reason in desk.engine.explain(JobId("2"), desk.now_s)]
    assert "device a/cpu0 is not offered: suspect: Xid 62" in said
    assert "device a/cpu1 is not offered: draining: Xid 48" in said
    changed(desk, changed_twice, 1, state="ok", healthy=True, note="")
    assert desk.devices(2) == ("a/cpu1",)


def test_nobody_is_kept_back_for_a_job_that_a_broken_device_makes_impossible() -> None:
    before = report("a", 2)
    desk = Desk("fifo", before, ageing_s=10.0)
    changed(desk, before, 0, **SUSPECT)
    desk.submit(1, gpus=2)
    desk.wait(100.0)
    assert desk.job(1).aged
    desk.submit(2)
    assert desk.phase(2) == "loading"


def test_a_reservation_outlives_what_is_said_of_other_devices() -> None:
    before = report("a", 2)
    desk = Desk("srtf", before)
    for number in (1, 2):
        desk.run(number, expected_s=1000.0 * number, job_class="spot")
    desk.submit(3, expected_s=10.0)
    assert desk.phase(3) == "reserved"
    [mine] = desk.devices(3)
    other = 0 if mine == "a/cpu1" else 1
    bad = changed(desk, before, other, **SUSPECT)
    assert desk.phase(3) == "reserved"
    changed(desk, bad, 1 - other, note="a word")
    assert desk.phase(3) == "reserved"
    changed(desk, bad, 1 - other, **SUSPECT)
    assert desk.phase(3) != "reserved"


def test_resuming_a_host_has_its_agent_trust_suspect_devices() -> None:
    before = report("a", 2)
    desk = Desk("fifo", before)
    desk.tell(ev.HostResumed(host_id=A, by="root"))
    assert desk.commands == []
    changed(desk, before, 0, **SUSPECT)
    desk.tell(ev.HostResumed(host_id=A, by="root"))
    assert [type(command) for command in desk.commands] == [TrustDevices]


# --- Memory limits ---------------------------------------------------------------------------------


def gpu_host(**device: Any) -> HostReport:
    return report("a", 2, kind="cuda", type="H200", device=device)


def caps(desk: Desk) -> list[int | None]:
    return [command.memory_cap_mib for command in desk.commands if hasattr(command, "memory_cap_mib")]


def test_who_may_get_company_is_limited_to_its_plan_from_the_start() -> None:
    for policy, host, more, cap in (
        ("castor", gpu_host(), {}, 300),
        ("castor", gpu_host(), {"share": "never"}, None),
        ("castor", gpu_host(), {"profile": None}, None),
        ("castor", gpu_host(max_tenants=1), {}, None),
        ("castor", report("a", 1), {}, None),
        ("fifo", gpu_host(), {}, None),
    ):
        desk = Desk(policy, host)
        desk.submit(1, **job("x.py", **more))
        assert caps(desk) == [cap], (policy, more)


def test_one_that_outgrows_its_plan_alone_goes_on_without_a_limit() -> None:
    desk = Desk("castor", gpu_host())
    desk.run(1, **job("x.py"))
    desk.durable(1, 5)
    desk.end(1, "user-failed", exit_code=1, detail="out of device memory", out_of_memory=True)
    assert (desk.phase(1), desk.job(1).counts.user_failures) == ("loading", 0)
    assert caps(desk) == [None]
    desk.start(1)
    desk.end(1, "user-failed", exit_code=1, detail="out of device memory", out_of_memory=True)
    assert desk.phase(1) == "failed", "without a limit it is the program"


def test_tenants_of_two_users_never_share_under_mps_and_are_told_so() -> None:
    desk = Desk("castor", report("a", 1, kind="cuda", type="H200", device={"sharing": "mps"}))
    desk.run(1, **job("x.py"))
    desk.submit(2, **job("y.py", 500.0, uid=2000))
    desk.submit(3, **job("z.py", 400.0))
    assert (desk.phase(2), desk.phase(3)) == ("queued", "loading"), "who cannot share keeps nobody back"
    assert desk.engine.refusals == [], "the policy does not propose it"
    desk.end(3)
    assert desk.why(2) == "cannot share with 1: under MPS both must be the same user's"
