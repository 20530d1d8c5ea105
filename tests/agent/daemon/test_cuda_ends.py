"""Ends that ask whether CUDA works on the device: what the answer makes of them, and a whole queue of one
user on a host with one bad device.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.agent.daemon.core.edge import (
    AwaitMemory,
    Connected,
    DevicesChanged,
    EndCame,
    MemoryFree,
    MemoryHeld,
    StatusCame,
)
from cotenant.agent.daemon.core.gpu_faults import _WORDS
from cotenant.agent.daemon.core.quick_failures import ASKS_AFTER, QUICK_S
from cotenant.agent.supervisor.core.exit_classifier import decide
from cotenant.agent.supervisor.core.exits import Exit
from cotenant.controller.domain import (
    CUDA_NOT_STARTED,
    Device,
    ExitVerdict,
    HostId,
    HostState,
    JobId,
    Launch,
    StartAttempt,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.wire import Renew, Welcome
from tests.agent.daemon.test_state import HOST, KEY, Agent, only, reported, start, status, welcomed
from tests.building import hosts
from tests.building.endings import ending_of
from tests.building.orders import gang
from tests.building.results import result
from tests.controller.building import Desk

BAD, GOOD = hosts.gpu("h1/gpu-bad", "GPU-bad"), hosts.gpu("h1/gpu-good", "GPU-good")
WHY = "CUDA does not start here: error 802 (system not yet initialized) at init"
NO_CUDA = {
    "outcome": "infra-failed",
    "exit_code": 1,
    "rule": CUDA_NOT_STARTED,
    "detail": "CUDA did not start",
}
OUT_OF_PLACE = {
    "outcome": "user-failed",
    "exit_code": 1,
    "rule": "exit code",
    "detail": "exit code 1: KeyError",
}
ECC = {"outcome": "infra-failed", "exit_code": 1, "rule": "GPU fault", "detail": "GPU failure"}


def on_gpus(*devices: Device, **changes: Any) -> Agent:
    return welcomed(report=hosts.host(HOST, *(devices or (BAD, GOOD)), cpus=4), **changes)


def begin(agent: Agent, job: str, device: Device = BAD, *argv: str, **seen: Any) -> None:
    launch = Launch(argv=argv or ("python", f"{job}.py"), workdir="/w", uid=1000, gid=1000)
    of: dict[str, Any] = {"job_id": JobId(job), "attempt": KEY["attempt"]}
    agent.obey(start(job, command=int(job), launch=launch, gang=gang((device.device_id,))))
    agent.say(Connected(**of), StatusCame(status=status(job, started=True, **seen)))


def end(agent: Agent, job: str, how: dict[str, Any]) -> AwaitMemory:
    [asked] = only(AwaitMemory, agent.say(EndCame(result=result(job, **how))))
    return asked


ANSWERS: dict[str, tuple[dict[str, Any], dict[str, str], str, str, str]] = {
    # name: (end, what a try found, outcome, role, detail)
    "words, and the device is bad": (
        NO_CUDA, {"GPU-bad": WHY}, "infra-failed", "device",
        f"the GPU failed: {WHY} on h1/gpu-bad; CUDA did not start",
    ),
    "words, and the device works": (
        NO_CUDA, {"GPU-bad": ""}, "user-failed", "",
        f"CUDA did not start; {_WORDS['works'].format(where='h1/gpu-bad')}",
    ),
    "words, and nobody could try": (NO_CUDA, {}, "infra-failed", "", "CUDA did not start"),
    "another failure of the GPU, which works": (ECC, {"GPU-bad": ""}, "infra-failed", "", "GPU failure"),
    "a failure of its own, on a bad device": (
        OUT_OF_PLACE, {"GPU-bad": WHY}, "infra-failed", "device",
        f"the GPU failed: {WHY} on h1/gpu-bad; exit code 1: KeyError",
    ),
    "a failure of its own": (OUT_OF_PLACE, {"GPU-bad": ""}, "user-failed", "", "exit code 1: KeyError"),
}  # fmt: skip


@pytest.mark.parametrize(("how", "found", "outcome", "role", "detail"), ANSWERS.values(), ids=ANSWERS.keys())
@pytest.mark.parametrize("held", [{}, {"GPU-bad": "a zombie"}])
def test_words_only_ask_and_a_try_answers(
    how: dict[str, Any], found: dict[str, str], outcome: str, role: str, detail: str, held: dict[str, str]
) -> None:
    agent = on_gpus()
    begin(agent, "7")
    assert end(agent, "7", how).tries_cuda == ("rule" in how and how is not OUT_OF_PLACE)
    answer = MemoryHeld(**KEY, holders=held, cuda=found) if held else MemoryFree(**KEY, cuda=found)
    [ended] = reported(agent.say(answer))
    assert isinstance(ended, ev.AttemptEnded)
    assert (ended.verdict.outcome, ended.gpu_fault, ended.verdict.detail) == (outcome, role, detail)


def test_that_cuda_works_outside_of_a_daemon_proves_nothing_for_its_client() -> None:
    agent = on_gpus(msgspec.structs.replace(BAD, sharing="mps"), mps_runtime="/run/c")
    begin(agent, "7")
    [attempt] = agent.state.running
    agent.state.memory.attempts[attempt.key] = msgspec.structs.replace(attempt, mps=True)
    end(agent, "7", NO_CUDA)
    [ended] = reported(agent.say(MemoryFree(**KEY, cuda={"GPU-bad": ""})))
    assert isinstance(ended, ev.AttemptEnded) and ended.verdict.outcome == "infra-failed"


# --- The brake -------------------------------------------------------------------------------------


def asks(*ends: tuple[tuple[str, ...], dict[str, Any], float]) -> list[bool]:
    """By end, whether CUDA is tried after it: the command, how it ended, and after how long."""
    agent, found = on_gpus(), []
    for number, (argv, how, ran_s) in enumerate(ends, 7):
        begin(agent, str(number), BAD, *argv)
        agent.now_s += ran_s
        found.append(end(agent, str(number), how).tries_cuda)
        agent.say(MemoryFree(job_id=JobId(str(number)), attempt=KEY["attempt"]))
    return found


A, B, C, D = (("python", f"{name}.py") for name in "abcd")
DONE = {"outcome": "finished"}
STOPPED = {"outcome": "stopped", "exit_code": None}


def test_programs_that_fail_at_once_one_after_another_ask_whoever_s_they_are() -> None:
    bad, quick = OUT_OF_PLACE, 2.0
    assert ASKS_AFTER == 3
    assert asks(*((each, bad, quick) for each in (A, B, C, D))) == [False, False, True, False]
    assert not any(asks(*((A, bad, quick) for _ in range(9)))), "one script a thousand times says nothing"
    assert asks((A, bad, quick), (B, STOPPED, quick), (B, bad, quick), (C, bad, quick))[-1]
    for well in ((D, DONE, quick), (D, bad, QUICK_S + 1), (D, {**bad, "first_step": 1}, quick)):
        assert not any(asks((A, bad, quick), (B, bad, quick), well, (C, bad, quick))), well


# --- With the engine -------------------------------------------------------------------------------


def one_user_s_queue(text: str, found: str, jobs: int = 10) -> tuple[Desk, list[str]]:
    """Jobs of one user, each with a command of its own, on a host where everything that is put on one device
    ends so after two seconds, and on the other one is done; `found`: what a try on the bad one finds. Returns
    the engine, and the jobs that were put on the bad device, in their order."""
    agent = on_gpus()
    desk = Desk("fifo", agent.state.config.report, back_off_s=1.0)
    put: list[str] = []
    starts: list[StartAttempt] = []

    def note(commands: Any) -> None:
        for each in (each for each in commands if isinstance(each, StartAttempt)):
            starts.append(each)
            of: dict[str, Any] = {"job_id": each.job_id, "attempt": each.attempt}
            agent.obey(each)
            agent.say(Connected(**of), StatusCame(status=status(each.job_id, each.attempt, started=True)))

    for number in range(1, jobs + 1):
        desk.submit(number, user="ann", retries=0)
        note(desk.commands)
    for _ in range(50):
        if not starts:
            note(desk.wait(2.0))
            continue
        command = starts.pop(0)
        job, device = command.job_id, command.gang[0].devices[0]
        agent.now_s += 2.0
        note(desk.wait(2.0))
        verdict = ExitVerdict(outcome="finished", exit_code=0)
        if device == BAD.device_id:
            put.append(job)
            log = f"Traceback (most recent call last):\n  File 'x.py'\n{text}\n"
            verdict = decide(ending_of(Exit(rank=0, exit_code=1), gone={"tails": {0: log}}))
        ended = result(job, command.attempt, **msgspec.structs.asdict(verdict))
        [asked] = only(AwaitMemory, agent.say(EndCame(result=ended)))
        cuda = {"GPU-bad": found} if asked.tries_cuda and device == BAD.device_id else {}
        if any(cuda.values()):  # The edge reports the device before it answers.
            bad = msgspec.structs.replace(BAD, state="suspect", healthy=False, note=found)
            agent.say(DevicesChanged(devices=(bad, GOOD)))
            agent.hear(Welcome(session="s1", lease_s=None, reports_seen=0, journal="j"), Renew(beat=1))
            desk.tell(ev.HostJoined(report=agent.state.config.report, attempts=agent.state.inventory()))
            note(desk.commands)
        for event in reported(agent.say(MemoryFree(job_id=job, attempt=command.attempt, cuda=cuda))):
            desk.tell(event)
            note(desk.commands)
        assert desk.engine.hosts[HostId(HOST)].state == HostState.OK, "nobody's jobs close a host"
    return desk, put


INIT = "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"
CRASH = "RuntimeError: something odd"


@pytest.mark.parametrize(("text", "put_there"), [(INIT, 1), (CRASH, 3)])
def test_a_bad_device_is_out_before_the_fourth_job_of_one_user(text: str, put_there: int) -> None:
    desk, put = one_user_s_queue(text, WHY)
    assert len(put) == put_there
    phases = {job: desk.phase(job) for job in map(str, range(1, 11))}
    own = set(put[:-1]) if text == CRASH else set()  # Nobody could know better of the first two.
    assert phases == {job: "failed" if job in own else "done" for job in phases}, "the others ran elsewhere"


@pytest.mark.parametrize("text", [INIT, CRASH])
def test_a_device_where_cuda_works_stays_whatever_one_user_s_scripts_print(text: str) -> None:
    desk, put = one_user_s_queue(text, "")
    assert len(put) > 3
    assert all(desk.phase(job) == "failed" for job in put)
    assert all(each.healthy for each in desk.engine.hosts[HostId(HOST)].report.devices)


@given(st.lists(st.tuples(st.sampled_from([NO_CUDA, OUT_OF_PLACE, ECC, STOPPED, DONE]), st.integers(0, 4))))
def test_no_story_of_ends_takes_a_device_out(story: list[tuple[dict[str, Any], int]]) -> None:
    agent = on_gpus()
    for number, (how, program) in enumerate(story, 1):
        begin(agent, str(number), BAD, "python", f"{program}.py")
        agent.now_s += 2.0
        asked = end(agent, str(number), how)
        cuda = {"GPU-bad": ""} if asked.tries_cuda else {}
        agent.say(MemoryFree(job_id=JobId(str(number)), attempt=KEY["attempt"], cuda=cuda))
        assert all(each.healthy for each in agent.state.config.report.devices)
