"""Faults of GPUs as the agent's state machine sees them: who ends, in which role, with which words."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from cotenant.agent.daemon.core import gpu_faults
from cotenant.agent.daemon.core.edge import (
    Adopt,
    Connected,
    DevicesChanged,
    EndCame,
    EndLeftovers,
    FoundAttempt,
    GpuFault,
    Keep,
    MemoryFree,
    StatusCame,
    SupervisorGone,
    Tell,
    Trust,
)
from cotenant.agent.daemon.core.notes import Kept
from cotenant.agent.daemon.core.remembered import Attempt, AttemptKey, Fault
from cotenant.agent.ipc.channel import StopNow
from cotenant.agent.ipc.records import Result
from cotenant.controller.domain import (
    AttemptNo,
    CommandId,
    DeviceId,
    GpuFaultRole,
    HostReport,
    JobId,
    TrustDevices,
)
from cotenant.controller.domain import events as ev
from tests.agent.daemon.test_state import (
    HOST,
    Agent,
    device,
    only,
    reported,
    start,
    status,
    stop,
    welcomed,
)
from tests.building import hosts
from tests.building.results import result

ONE: AttemptKey = (JobId("7"), AttemptNo(1))
TWO: AttemptKey = (JobId("8"), AttemptNo(1))
THREE: AttemptKey = (JobId("9"), AttemptNo(1))
KEYS = {"7": ONE, "8": TWO, "9": THREE}
XID = GpuFault(uuids=("0",), why="Xid 31 (GPU memory page fault)", xid=31)
UUID = "GPU-1a2b3c4d-0000-0000-0000-000000000000"
CRASH: dict[str, Any] = {
    "outcome": "user-failed",
    "exit_code": 1,
    "detail": "CUDA error in the program: x",
    "cuda_fault": True,
}


def gpu(number: int, **changes: Any) -> Any:
    plain = msgspec.structs.replace(device(number), kind="cuda", cores=(), sharing="mps")
    return msgspec.structs.replace(plain, **changes)


def host(**changes: Any) -> HostReport:
    return hosts.host(HOST, gpu(0, **changes), gpu(1, **changes))


def sharing(**changes: Any) -> Agent:
    """Jobs 7 and 8 share a GPU under MPS; 9 has the other one to itself."""
    agent = welcomed(report=host(**changes))
    for number, (job, slot) in enumerate((("7", 0), ("8", 0), ("9", 1)), 1):
        member = msgspec.structs.replace(start().gang[0], devices=(DeviceId(f"h1/cpu{slot}"),))
        agent.obey(start(job, command=number, gang=(member,)))
        agent.say(
            Connected(job_id=JobId(job), attempt=AttemptNo(1)), StatusCame(status=status(job, started=True))
        )
    return agent


def told_to_stop(effects: Any) -> list[str]:
    return [each.job_id for each in only(Tell, effects) if isinstance(each.message, StopNow)]


def over(result: Result) -> tuple[EndCame, MemoryFree]:
    """No process is left, and what it held of its GPU is back."""
    return EndCame(result=result), MemoryFree(job_id=result.job_id, attempt=result.attempt)


def end(agent: Agent, job: str, **changes: Any) -> ev.AttemptEnded:
    stopped = {"outcome": "stopped", "exit_code": None, "detail": "ended on request (Xid 31)", **changes}
    [ended] = [e for e in reported(agent.say(*over(result(job, **stopped)))) if e.job_id == job]
    assert isinstance(ended, ev.AttemptEnded)
    return ended


def test_all_on_the_device_are_told_to_end_without_a_save_and_nobody_else() -> None:
    agent = sharing()
    effects = agent.say(XID)
    assert told_to_stop(effects) == ["7", "8"]
    [first, _] = [each.message for each in only(Tell, effects)]
    assert first == StopNow(save=False, deadline_s=0.0, reason=XID.why)
    kinds = [type(effect) for effect in effects]
    assert kinds.index(Keep) < kinds.index(Tell), "it is on disk before anybody hears of it"
    assert told_to_stop(agent.say(XID)) == [], "once is enough"


def degraded(plain: str = "") -> Agent:
    """Jobs 7 and 8 are clients of a daemon that is in trouble by now, so that their GPU is said to
    time-slice; `plain` came after that, to the other place on it, and 8 did not."""
    device, other = gpu(0, local=UUID), gpu(0, local=UUID, sharing="time-slicing")
    agent = welcomed(report=hosts.host(HOST, device), mps_runtime="/run/c")
    member = msgspec.structs.replace(start().gang[0], devices=(DeviceId("h1/cpu0"),))
    for number, job in enumerate(("7", plain or "8"), 1):
        if job == plain:
            agent.say(DevicesChanged(devices=(other,)))
        agent.obey(start(job, command=number, gang=(member,)))
        agent.say(StatusCame(status=status(job, started=True)))
    agent.say(DevicesChanged(devices=(other,)))
    return agent


@pytest.mark.parametrize("first", ["news", "death"])
def test_clients_whose_daemon_is_in_trouble_are_still_hit_together(first: str) -> None:
    agent = degraded()
    news = msgspec.structs.replace(XID, uuids=(UUID,))
    agent.say(*([news] if first == "news" else []), *over(result("7", **CRASH)), *over(result("8", **CRASH)))
    ends = [attempt.ended for attempt in agent.state.memory.attempts.values() if attempt.ended is not None]
    assert [(each.verdict.outcome, each.gpu_fault) for each in ends] == [("infra-failed", "suspect")] * 2


def test_what_a_client_does_does_not_reach_a_job_without_mps_beside_it_nor_the_other_way_round() -> None:
    news = msgspec.structs.replace(XID, uuids=(UUID,))
    agent = degraded(plain="9")
    assert [each.mps for each in agent.state.running] == [True, False]
    agent.say(msgspec.structs.replace(news, culprits=(ONE,)))
    stops = {each.job_id: each.stop is not None for each in agent.state.running}
    assert stops == {"7": True, "9": False}

    agent = degraded(plain="9")
    agent.say(msgspec.structs.replace(news, culprits=(THREE,)))
    stops = {each.job_id: each.stop is not None for each in agent.state.running}
    assert stops == {"7": False, "9": True}

    agent = degraded(plain="9")
    agent.say(msgspec.structs.replace(news, device_failed=True))
    assert all(each.stop is not None for each in agent.state.running)


def test_where_nobody_knows_which_both_are_suspects() -> None:
    agent = sharing()
    agent.say(XID)
    ended = end(agent, "7")
    assert (ended.verdict.outcome, ended.gpu_fault) == ("infra-failed", "suspect")
    assert ended.verdict.detail == (
        "Xid 31 (GPU memory page fault) on h1/cpu0: this job or one beside it caused it (8), nobody knows "
        "which"
    )
    assert end(agent, "8", **CRASH).gpu_fault == "suspect", "the second one too, though it is alone by now"


def test_a_known_culprit_is_named_and_its_neighbour_is_only_hit() -> None:
    agent = sharing()
    agent.say(msgspec.structs.replace(XID, culprits=(TWO,)))
    hit, culprit = end(agent, "7"), end(agent, "8")
    assert (hit.verdict.outcome, hit.gpu_fault) == ("infra-failed", "hit")
    assert "caused by a job beside it (8)" in hit.verdict.detail
    assert (culprit.verdict.outcome, culprit.gpu_fault) == ("infra-failed", "culprit")
    assert "caused by this job beside 7" in culprit.verdict.detail


def test_the_kernels_log_may_name_the_culprit_a_moment_later() -> None:
    agent = sharing()
    agent.say(XID)
    assert told_to_stop(agent.say(msgspec.structs.replace(XID, culprits=(ONE,)))) == []
    agent.say(XID)
    assert (end(agent, "7").gpu_fault, end(agent, "8").gpu_fault) == ("culprit", "hit")


def test_one_that_is_alone_has_caused_it_and_fails_for_it() -> None:
    agent = sharing()
    agent.say(msgspec.structs.replace(XID, uuids=("1",)))
    ended = end(agent, "9")
    assert (ended.verdict.outcome, ended.gpu_fault) == ("user-failed", "culprit")
    assert ended.verdict.detail.endswith("on h1/cpu1, which it had to itself: an error of the program")


SERVER = GpuFault(uuids=("0", "1"), why="its MPS server is in FAULT", one_server=True)


def clients() -> Agent:
    """As `sharing`, with one daemon for both GPUs."""
    agent = sharing()
    for key, attempt in agent.state.memory.attempts.items():
        agent.state.memory.attempts[key] = msgspec.structs.replace(attempt, mps=True)
    return agent


def test_alone_on_its_gpu_is_not_alone_on_a_server_for_several() -> None:
    agent = clients()
    assert sorted(told_to_stop(agent.say(SERVER))) == ["7", "8", "9"]
    ends = [end(agent, job) for job in "987"]
    assert {(each.verdict.outcome, each.gpu_fault) for each in ends} == {("infra-failed", "suspect")}


def test_who_is_on_another_gpu_of_the_server_is_only_hit_where_it_is_known_on_which_it_was() -> None:
    agent = clients()
    agent.say(XID)
    assert told_to_stop(
        agent.say(msgspec.structs.replace(SERVER, culprits=(ONE, TWO), spared=(ONE, TWO)))
    ) == ["9"]
    assert [end(agent, job).gpu_fault for job in "789"] == ["suspect", "suspect", "hit"]


def test_what_a_server_does_ends_no_job_that_is_not_its_client() -> None:
    agent = clients()
    plain = msgspec.structs.replace(agent.state.memory.attempts[THREE], mps=False)
    agent.state.memory.attempts[THREE] = plain
    agent.obey(start("6", command=4, gang=(msgspec.structs.replace(start().gang[0], devices=plain.devices),)))
    beside = JobId("6"), AttemptNo(1)
    agent.state.memory.attempts[beside] = msgspec.structs.replace(
        agent.state.memory.attempts[beside], mps=True
    )
    agent.say(SERVER)
    stops = {each.job_id: each.stop is not None for each in agent.state.running}
    assert stops == {"6": True, "7": True, "8": True, "9": False}


def test_one_that_came_after_it_has_nothing_to_do_with_it() -> None:
    agent = sharing()
    assert told_to_stop(agent.say(msgspec.structs.replace(XID, spared=(TWO,)))) == ["7"]
    assert (end(agent, "7").gpu_fault, end(agent, "8", **CRASH).gpu_fault) == ("culprit", "")


def test_one_that_is_alone_with_strangers_is_a_suspect() -> None:
    agent = sharing()
    agent.say(msgspec.structs.replace(XID, uuids=("1",), strangers=True))
    ended = end(agent, "9")
    assert (ended.verdict.outcome, ended.gpu_fault) == ("infra-failed", "suspect")
    assert "(not one of ours)" in ended.verdict.detail


def test_a_device_that_failed_is_nobodys_doing() -> None:
    agent = sharing()
    agent.say(GpuFault(uuids=("0", "1"), why="Xid 79 (fallen off the bus)", xid=79, device_failed=True))
    for job in "789":
        ended = end(agent, job)
        assert (ended.verdict.outcome, ended.gpu_fault) == ("infra-failed", "device")
        assert ended.verdict.detail.startswith("the GPU failed: Xid 79 (fallen off the bus) on h1/cpu")


def test_what_stays_in_one_process_ends_nobody_and_names_who_dies_of_it() -> None:
    agent = sharing(sharing="time-slicing")
    assert told_to_stop(agent.say(msgspec.structs.replace(XID, ends=False))) == []
    dead = end(agent, "7", **CRASH)
    assert (dead.verdict.outcome, dead.gpu_fault) == ("user-failed", "culprit")
    assert dead.verdict.detail == "Xid 31 (GPU memory page fault) on h1/cpu0; CUDA error in the program: x"
    agent.now_s += gpu_faults.CONTAINED_S + 1.0
    later = end(agent, "8", **CRASH)
    assert (later.gpu_fault, later.verdict.detail) == ("", CRASH["detail"]), "another error, long after"


def test_what_stays_in_the_process_of_a_job_from_another_device_says_nothing_of_who_holds_this_one() -> None:
    agent = sharing(sharing="time-slicing")
    agent.say(msgspec.structs.replace(XID, ends=False, culprits=((JobId("9"), AttemptNo(1)),)))
    dead = end(agent, "7", **CRASH)
    assert (dead.gpu_fault, dead.verdict.detail) == ("", CRASH["detail"])


def test_who_dies_of_memory_that_broke_in_its_own_process_is_not_failed_for_it() -> None:
    agent = sharing(sharing="time-slicing")
    broken = GpuFault(
        uuids=("0",), why="Xid 94 (contained memory error)", xid=94, device_failed=True, ends=False
    )
    assert told_to_stop(agent.say(broken)) == []
    dead = end(agent, "7", **CRASH)
    assert (dead.verdict.outcome, dead.gpu_fault) == ("infra-failed", "device")
    assert dead.verdict.detail.startswith(
        "the GPU failed: Xid 94 (contained memory error) on h1/cpu0; CUDA error"
    )
    assert end(agent, "8", outcome="finished", exit_code=0, detail="").verdict.outcome == "finished"


def test_a_cuda_error_in_one_client_of_mps_is_a_fault_of_all_before_anybody_tells_of_it() -> None:
    agent = sharing()
    effects = agent.say(*over(result("7", **CRASH)))
    [ended] = [each for each in reported(effects) if isinstance(each, ev.AttemptEnded)]
    assert (ended.verdict.outcome, ended.gpu_fault) == ("infra-failed", "suspect")
    assert told_to_stop(effects) == ["8"]
    assert end(agent, "8", **CRASH).gpu_fault == "suspect"
    alone = end(agent, "9", **CRASH)
    assert (alone.verdict.outcome, alone.gpu_fault) == ("user-failed", ""), (
        "who is alone dies of its own error"
    )


def test_without_mps_a_cuda_error_is_its_own() -> None:
    agent = sharing(sharing="time-slicing")
    assert end(agent, "7", **CRASH).verdict.outcome == "user-failed"
    assert end(agent, "8").gpu_fault == ""


def test_whoever_is_left_was_not_alone_if_another_has_just_died() -> None:
    agent = sharing()
    end(agent, "7", outcome="user-failed", exit_code=1, detail="crashed with SIGABRT")
    agent.now_s += gpu_faults.JUST_S / 2
    agent.say(XID)
    assert (end(agent, "8").gpu_fault, agent.state.running[0].job_id) == ("suspect", "9")
    agent.now_s += gpu_faults.JUST_S * 2
    agent.say(msgspec.structs.replace(XID, uuids=("1",)))
    assert end(agent, "9").verdict.outcome == "user-failed"


def test_one_that_finished_in_the_same_moment_has_finished() -> None:
    agent = sharing()
    agent.say(XID)
    ended = end(agent, "7", outcome="finished", exit_code=0, detail="")
    assert (ended.verdict.outcome, ended.gpu_fault) == ("finished", "")


def test_a_restarted_agent_still_knows_the_fault() -> None:
    agent = sharing()
    agent.say(XID)
    found = [FoundAttempt(job_id=key[0], attempt=key[1], alive=True) for key in (ONE, TWO, THREE)]
    gone = result("8", outcome="stopped", detail="ended on request")
    found[1] = msgspec.structs.replace(found[1], alive=False, result=gone)
    again, effects = agent.restarted(*found, report=host())
    assert [each.job_id for each in only(Adopt, effects)] == ["7", "9"]
    again.say(MemoryFree(job_id=TWO[0], attempt=TWO[1]))
    first = again.state.memory.attempts[TWO].ended
    assert first is not None
    assert first.gpu_fault == "suspect"
    assert told_to_stop(again.say(Connected(job_id=ONE[0], attempt=ONE[1]))) == ["7"]
    again.say(*over(result("7", outcome="stopped", detail="ended on request")))
    last = again.state.memory.attempts[ONE].ended
    assert last is not None
    assert last.gpu_fault == "suspect"


def test_a_supervisor_that_dies_meanwhile_and_one_that_does_not_obey_end_by_the_fault_as_well() -> None:
    agent = sharing()
    agent.say(XID)
    [clean] = only(EndLeftovers, agent.say(SupervisorGone(job_id=ONE[0], attempt=ONE[1])))
    [ended] = reported(agent.say(*over(clean.result)))
    assert (ended.gpu_fault, ended.verdict.outcome) == ("suspect", "infra-failed")
    [overdue] = only(EndLeftovers, agent.wait(120.0))
    assert overdue.result.job_id == "8"


def test_a_stop_with_a_save_becomes_one_without() -> None:
    agent = sharing()
    agent.obey(stop("7", command=10))
    assert told_to_stop(agent.say(XID)) == ["7", "8"]
    assert told_to_stop(agent.obey(stop("7", command=11))) == [], "and stays one"


def test_a_persons_word_reaches_the_edge() -> None:
    agent = sharing()
    effects = agent.obey(TrustDevices(command_id=CommandId(50), host_id=HOST))
    assert only(Trust, effects) == [Trust()]
    assert only(Trust, agent.obey(TrustDevices(command_id=CommandId(50), host_id=HOST))) == []


# --- Roles and words -------------------------------------------------------------------------------

# fmt: off
ROLES: list[tuple[GpuFault, set[AttemptKey], GpuFaultRole]] = [
    (XID, set(), "culprit"),
    (XID, {TWO}, "suspect"),
    (msgspec.structs.replace(XID, strangers=True), set(), "suspect"),
    (msgspec.structs.replace(XID, culprits=(ONE,)), {TWO}, "culprit"),
    (msgspec.structs.replace(XID, culprits=(TWO,)), {TWO}, "hit"),
    (msgspec.structs.replace(XID, culprits=(THREE,)), {TWO}, "suspect"),
    (msgspec.structs.replace(XID, device_failed=True, culprits=(ONE,)), {TWO}, "device"),
    (msgspec.structs.replace(XID, device_failed=True), set(), "device"),
]
# fmt: on


@pytest.mark.parametrize(("fault", "company", "role"), ROLES)
def test_roles(fault: GpuFault, company: set[AttemptKey], role: GpuFaultRole) -> None:
    assert gpu_faults.role_of(ONE, fault, company) == role


@pytest.mark.parametrize("role", [role for role in get_args(GpuFaultRole) if role])
@pytest.mark.parametrize("beside", [(), (JobId("8"),)])
def test_every_role_has_words_and_only_one_alone_is_its_users_failure(
    role: GpuFaultRole, beside: tuple[JobId, ...]
) -> None:
    plain: Result = result("7", outcome="stopped", detail="")
    judged = gpu_faults.judge_fault(
        plain, Fault(role=role, why="Xid 31 (x)", where="h1/gpu-1", beside=beside)
    )
    assert judged.gpu_fault == role
    assert "Xid 31 (x) on h1/gpu-1" in judged.verdict.detail
    assert judged.verdict.outcome == ("user-failed" if role == "culprit" and not beside else "infra-failed")


def test_a_fault_is_kept_with_the_attempt_over_the_disk() -> None:
    attempt = Attempt(job_id=ONE[0], attempt=ONE[1], command_id=CommandId(1))
    struck = gpu_faults.struck(attempt, XID, {TWO}, "h1/gpu-1")
    assert struck is not None
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(Kept(attempt=struck)), type=Kept)
    assert read.attempt == struck
