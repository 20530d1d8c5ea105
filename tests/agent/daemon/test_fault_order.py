"""Ends and the news of the faults that caused them: whatever comes first, the same is told."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.agent.daemon.core import gpu_faults
from cotenant.agent.daemon.core.edge import (
    AwaitMemory,
    DevicesChanged,
    EndCame,
    FoundAttempt,
    GpuFault,
    MemoryFree,
)
from cotenant.agent.daemon.core.remembered import Fault
from cotenant.controller.domain import GpuFaultRole, JobId
from cotenant.controller.domain import events as ev
from tests.agent.daemon.test_gpu_faults import CRASH, ONE, THREE, TWO, XID, host, sharing
from tests.agent.daemon.test_state import Agent, only
from tests.building.results import result

CULPRIT = msgspec.structs.replace(XID, culprits=(TWO,))
MPS = GpuFault(uuids=("0",), why="its MPS server is in FAULT")
BROKEN = GpuFault(uuids=("0",), why="Xid 48 (uncorrectable memory error)", xid=48, device_failed=True)
INSIDE = msgspec.structs.replace(XID, ends=False)
BROKEN_INSIDE = msgspec.structs.replace(BROKEN, why="Xid 94 (contained memory error)", xid=94, ends=False)
ELSEWHERE = msgspec.structs.replace(XID, uuids=("1",))
NEWS = (XID, CULPRIT, MPS, BROKEN, INSIDE, BROKEN_INSIDE, ELSEWHERE)
# fmt: off
ENDS: tuple[dict[str, Any], ...] = (
    CRASH,
    {"outcome": "user-failed", "exit_code": 1, "detail": "exit code 1: RuntimeError: x"},
    {"outcome": "infra-failed", "exit_code": 1, "detail": "NCCL failure: x"},
    {"outcome": "finished", "exit_code": 0, "detail": ""},
    {"outcome": "stopped", "exit_code": None, "detail": "saved and stopped at step 4"},
)
# fmt: on


def told(agent: Agent) -> dict[str, ev.AttemptEnded]:
    """What the controller hears of each end, once the devices were looked at anew."""
    for key in (ONE, TWO, THREE):
        agent.say(MemoryFree(job_id=key[0], attempt=key[1]))
    attempts = agent.state.memory.attempts.values()
    return {attempt.job_id: attempt.ended for attempt in attempts if attempt.ended is not None}


def after(*happenings: Any, sharing_by: str = "mps") -> dict[str, ev.AttemptEnded]:
    agent = sharing(sharing=sharing_by)
    for happening in happenings:
        agent.now_s += 0.3
        agent.say(happening)
    return told(agent)


def ending(job: str, how: dict[str, Any]) -> EndCame:
    return EndCame(result=result(job, **how))


@given(data=st.data())
def test_any_order_of_ends_and_news_is_told_as_the_same(data: st.DataObject) -> None:
    """Jobs 7 and 8 share a GPU, 9 has another; each ends in some way, and some news come, some of them twice,
    all before the devices were looked at anew."""
    by = data.draw(st.sampled_from(["mps", "time-slicing"]))
    known = NEWS if by == "mps" else (INSIDE, BROKEN_INSIDE, BROKEN, ELSEWHERE)
    news = data.draw(st.lists(st.sampled_from(known), max_size=3))
    ends = [ending(job, data.draw(st.sampled_from(ENDS))) for job in "789"]
    happenings = [*ends, *news]
    first = after(*happenings, sharing_by=by)
    assert first.keys() == {"7", "8", "9"}
    assert after(*data.draw(st.permutations(happenings)), sharing_by=by) == first


@pytest.mark.parametrize("fault", [XID, MPS, BROKEN], ids=lambda fault: fault.why)
def test_an_error_that_comes_before_its_fault_is_not_the_users_failure(fault: GpuFault) -> None:
    for order in permutations((ending("7", CRASH), ending("8", ENDS[1]), fault)):
        ends = after(*order)
        assert [ends[job].verdict.outcome for job in "78"] == ["infra-failed", "infra-failed"], order


def test_one_that_was_alone_on_a_device_that_failed_is_not_failed_for_it() -> None:
    broken = msgspec.structs.replace(BROKEN, uuids=("1",))
    for order in permutations((ending("9", CRASH), broken)):
        assert (after(*order)["9"].verdict.outcome, after(*order)["9"].gpu_fault) == (
            "infra-failed",
            "device",
        )


def test_a_failure_asks_for_news_and_a_good_end_only_for_its_memory() -> None:
    for how in ENDS:
        [asked] = only(AwaitMemory, sharing().say(ending("7", how)))
        assert asked.failed == (how["outcome"] in ("user-failed", "infra-failed")), how


def test_the_end_of_one_whose_gpu_is_lost_waits_for_the_news_too() -> None:
    agent = sharing()
    lost = msgspec.structs.replace(host().devices[0], state="lost", healthy=False, note="lost")
    agent.say(DevicesChanged(devices=(lost, host().devices[1])))
    [asked] = only(AwaitMemory, agent.say(ending("7", ENDS[1])))
    assert asked.failed
    agent.say(BROKEN)
    assert told(agent)["7"].gpu_fault == "device"


def test_an_agent_that_is_started_in_between_waits_for_the_news_as_well() -> None:
    agent = sharing()
    agent.say(ending("7", ENDS[1]))
    found = [FoundAttempt(job_id=key[0], attempt=key[1], alive=key != ONE) for key in (ONE, TWO, THREE)]
    found[0] = msgspec.structs.replace(found[0], result=result("7", **ENDS[1]))
    again, effects = agent.restarted(*found, report=host())
    [asked] = only(AwaitMemory, effects)
    assert asked.failed
    again.say(BROKEN)
    assert told(again)["7"].gpu_fault == "device"


def test_news_that_come_when_the_end_was_told_change_nothing_about_it() -> None:
    """The window is closed then; its neighbours are still told what it means for them."""
    agent = sharing()
    agent.say(ending("7", ENDS[1]), MemoryFree(job_id=ONE[0], attempt=ONE[1]))
    before = agent.state.memory.attempts[ONE].ended
    assert before is not None and before.verdict.outcome == "user-failed"
    agent.say(XID)
    assert agent.state.memory.attempts[ONE].ended == before
    agent.say(ending("8", CRASH))
    assert told(agent)["8"].gpu_fault == "suspect"


# --- What is known of a fault is a join ------------------------------------------------------------

ROLES: tuple[GpuFaultRole, ...] = ("suspect", "hit", "culprit", "device")
WORDS = st.builds(
    Fault,
    role=st.sampled_from(ROLES),
    why=st.sampled_from(["a fatal CUDA error", "Xid 31 (x)", "Xid 48 (y)"]),
    where=st.sampled_from(["h1/gpu-1", "h1/gpu-2"]),
    beside=st.lists(st.sampled_from([JobId("7"), JobId("8")]), unique=True).map(lambda js: tuple(sorted(js))),
    weight=st.integers(0, 2),
)


@given(WORDS, WORDS, WORDS)
def test_words_about_a_fault_may_be_joined_in_any_order_and_any_number_of_times(
    one: Fault, two: Fault, three: Fault
) -> None:
    join = gpu_faults.join_faults
    assert join(one, one) == one
    assert join(one, two) == join(two, one)
    assert join(join(one, two), three) == join(one, join(two, three))
    assert join(join(one, two), two) == join(one, two)
