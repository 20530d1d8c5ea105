"""Memory that is still held after a job: who is named, and when a device goes back."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cotenant.agent.edge import (
    AnyAgentEvent,
    AwaitMemory,
    Connected,
    DeviceFreed,
    DevicesChanged,
    EndCame,
    Found,
    MemoryFree,
    MemoryHeld,
    StatusCame,
    Ticked,
)
from cotenant.agent.gpus.held import Answer, DeviceUse, Holder, Holds, judged, who_holds
from cotenant.agent.gpus.release import PROGRAM, Release
from cotenant.controller.domain.cluster import HELD_MIB_MIN, Device, HostReport
from cotenant.controller.domain.commands import GangMember
from cotenant.controller.domain.events import AttemptEnded
from cotenant.controller.domain.ids import AttemptNo, DeviceId, JobId
from cotenant.controller.wire.agents import Hello, Welcome
from tests.agent.mock_gpus import ONE, TWO, MockGpus
from tests.agent.test_state import (
    HOST,
    KEY,
    Agent,
    only,
    reported,
    result,
    sent,
    start,
    status,
    stop,
    welcomed,
)

GPU = Device(
    device_id=DeviceId("h1/gpu-a"), host_id=HOST, kind="cuda", type="H200", local="GPU-a",
    memory_mib=80_000, reserve_mib=600,
)  # fmt: skip
OTHER = Device(
    device_id=DeviceId("h1/gpu-b"), host_id=HOST, kind="cuda", type="H200", local="GPU-b",
    memory_mib=80_000, reserve_mib=600,
)  # fmt: skip


def use(used_mib: int, *holders: Holder, problem: str = "") -> DeviceUse:
    return DeviceUse(uuid="GPU-a", used_mib=used_mib, holders=holders, problem=problem)


def holder(pid: int, used_mib: int | None, state: str = "S", name: str = "python") -> Holder:
    return Holder(pid=pid, used_mib=used_mib, state=state, name=name)


@pytest.mark.parametrize(
    ("name", "seen", "says"),
    [
        ("back at the reserve", use(600), ""),
        ("a little more than that", use(600 + HELD_MIB_MIN - 1), ""),
        ("a co-tenant's", use(20_600, holder(7, 20_000)), ""),
        ("nobody's", use(9_600), "9000 MiB still held after a job by no visible process"),
        ("a zombie's", use(9_600, holder(7, 9_000, "Z")), "process 7 (python), a zombie"),
        ("one in the kernel's", use(9_600, holder(7, 9_000, "D")), "stuck in the kernel (state D)"),
        (
            "one we cannot see's",
            use(9_600, Holder(pid=7, used_mib=9_000)),
            "process 7, not visible from here",
        ),
        (
            "partly a co-tenant's",
            use(9_600, holder(7, 4_000)),
            "5000 MiB still held after a job by no visible",
        ),
        ("the driver does not say whose", use(9_600, holder(7, None)), ""),
        (
            "it does not say, and there is a zombie",
            use(9_600, holder(7, None), holder(8, None, "Z")),
            "process 8",
        ),
        ("a zombie that holds nothing", use(600, holder(7, 0, "Z")), ""),
        ("it cannot be asked", use(0, problem="it has fallen off the bus"), "fallen off the bus"),
    ],
)
def test_who_holds_memory_is_named(name: str, seen: DeviceUse, says: str) -> None:
    said = who_holds(seen, 600)
    assert (said == "") == (says == ""), name
    assert says in said


def test_many_holders_are_counted() -> None:
    said = who_holds(use(60_000, *(holder(pid, 5_000, "Z") for pid in range(10, 16))), 600)
    assert "process 12" in said and "process 13" not in said and said.endswith("and 3 more")


def test_a_device_that_the_answer_leaves_out_is_not_taken_for_free() -> None:
    assert judged(Answer(devices=(use(600),)), (GPU, OTHER)).keys() == {"GPU-b"}
    assert judged(Answer(problem="no driver"), (GPU,)) == {
        "GPU-a": "its memory cannot be asked for: no driver"
    }


def test_what_is_held_is_laid_over_what_the_host_offers_but_not_over_worse() -> None:
    holds = Holds()
    holds.found({"GPU-a": "9 MiB held by 7"})
    lost = Device(**{**{f: getattr(OTHER, f) for f in OTHER.__struct_fields__}, "state": "lost"})
    first, second = holds.laid_over((GPU, OTHER))
    assert (first.state, first.healthy, first.note) == ("suspect", False, "9 MiB held by 7")
    assert second == OTHER
    holds.found({"GPU-b": "also"})
    assert holds.laid_over((lost,)) == (lost,)
    holds.freed("GPU-a")
    assert holds.laid_over((GPU,)) == (GPU,)


# --- The agent ---------------------------------------------------------------------------------------

REPORT = HostReport(host_id=HOST, devices=(GPU, OTHER), cpus=4)
ON_GPU = (GangMember(host_id=HOST, devices=(GPU.device_id,), first_rank=0),)


def ended(**changes: Any) -> tuple[Agent, list[Any]]:
    """An attempt has run on a GPU, and no process of it is left."""
    agent = welcomed(report=REPORT, **changes)
    agent.obey(start(gang=ON_GPU))
    agent.say(Connected(**KEY), StatusCame(status=status(started=True)))
    return agent, agent.say(EndCame(result=result()))


def ends(effects: list[Any]) -> list[AttemptEnded]:
    return [each for each in reported(effects) if isinstance(each, AttemptEnded)]


def test_the_end_is_held_back_until_the_memory_is_back() -> None:
    agent, effects = ended()
    assert only(AwaitMemory, effects) == [
        AwaitMemory(job_id=JobId("7"), attempt=AttemptNo(1), devices=(GPU,))
    ]
    assert ends(effects) == []
    assert [each.job_id for each in agent.state.running] == ["7"], "its devices are not given out"
    again = agent.say(EndCame(result=result()), Ticked())
    assert only(AwaitMemory, again) == [] and ends(again) == []
    assert len(ends(agent.say(MemoryFree(**KEY)))) == 1
    assert agent.state.running == ()
    assert ends(agent.say(MemoryFree(**KEY))) == [], "said twice, heard once"


def test_a_stop_that_comes_while_it_waits_changes_nothing() -> None:
    agent, _ = ended()
    agent.obey(stop(command=9))
    agent.wait(500.0, answered=True)
    assert len(ends(agent.say(MemoryFree(**KEY)))) == 1


def test_held_memory_makes_the_device_suspect_before_the_end_is_heard() -> None:
    agent, _ = ended()
    effects = agent.say(MemoryHeld(**KEY, holders={"GPU-a": "9000 MiB held by process 7"}))
    [hello] = sent(Hello, effects)
    first, second = hello.report.devices
    assert (first.state, first.healthy, first.note) == ("suspect", False, "9000 MiB held by process 7")
    assert second == OTHER
    assert ends(effects) == [], "not before the controller knows the device"
    effects = agent.hear(Welcome(session="s1", lease_s=None, reports_seen=0, journal="j"))
    assert len(ends(effects)) == 1
    assert agent.state.running == ()
    agent.obey(start("8", command=5, gang=ON_GPU))
    assert len(agent.state.running) == 0, "nothing starts there"


def test_a_device_that_is_free_again_is_offered_again_and_a_look_around_does_not_lose_the_mark() -> None:
    agent, _ = ended()
    agent.say(MemoryHeld(**KEY, holders={"GPU-a": "held"}))
    assert sent(Hello, agent.say(DevicesChanged(devices=(GPU, OTHER)))) == [], "nothing new"
    [hello] = sent(Hello, agent.say(DeviceFreed(uuid="GPU-a")))
    assert hello.report.devices == (GPU, OTHER)


def test_nobody_waits_for_the_memory_of_a_gpu_that_is_lost() -> None:
    agent, _ = ended()
    lost = msgspec.structs.replace(GPU, state="lost", healthy=False, note="Xid 79")
    assert len(ends(agent.say(DevicesChanged(devices=(lost, OTHER))))) == 1
    assert agent.state.running == ()
    assert ends(agent.say(MemoryHeld(**KEY, holders={"GPU-a": "it has fallen off the bus"}))) == []


def test_an_agent_that_starts_anew_asks_again() -> None:
    agent, _ = ended()
    again, effects = agent.restarted(
        Found(job_id=JobId("7"), attempt=AttemptNo(1), alive=False, result=result()), report=REPORT
    )
    assert len(only(AwaitMemory, effects)) == 1
    assert [each.job_id for each in again.state.running] == ["7"]
    again.hear(Welcome(session="s2", lease_s=None, reports_seen=0, journal="j"))
    assert len(ends([*again.say(MemoryFree(**KEY)), *again.wait(5.0)])) >= 1


def beside(*, first_step: int | None = 1) -> Agent:
    """Two clients on one GPU; the second one has come to step 40."""
    agent = welcomed(report=REPORT)
    agent.obey(start(gang=ON_GPU), start("8", command=2, gang=ON_GPU))
    other: dict[str, Any] = {"job_id": JobId("8"), "attempt": AttemptNo(1)}
    agent.say(Connected(**KEY), Connected(**other))
    agent.say(StatusCame(status=status("8", started=True, first_step=first_step, step=40)))
    return agent


def test_after_a_client_was_killed_without_its_daemons_help_its_co_client_has_to_make_a_step() -> None:
    agent = beside()
    [hello] = sent(Hello, agent.say(EndCame(result=result(unclean=True))))
    assert hello.report.devices[0].state == "suspect"
    assert "waiting for job 8 to make a step" in hello.report.devices[0].note
    agent.say(MemoryFree(**KEY))
    assert sent(Hello, agent.say(StatusCame(status=status("8", started=True, first_step=1, step=40)))) == []
    [hello] = sent(Hello, agent.say(StatusCame(status=status("8", started=True, first_step=1, step=41))))
    assert hello.report.devices == (GPU, OTHER)


def test_a_co_client_that_ends_instead_settles_it_as_well() -> None:
    agent = beside()
    agent.say(EndCame(result=result(unclean=True)), EndCame(result=result("8")))
    [hello] = sent(Hello, agent.say(MemoryFree(job_id=JobId("8"), attempt=AttemptNo(1))))
    assert hello.report.devices == (GPU, OTHER)


@pytest.mark.parametrize(
    ("clean", "first_step"), [(True, 1), (False, None)], ids=("a clean end", "nobody makes steps")
)
def test_otherwise_nobody_is_doubted(clean: bool, first_step: int | None) -> None:
    agent = beside(first_step=first_step)
    assert sent(Hello, agent.say(EndCame(result=result(unclean=not clean)))) == []


# --- The edge: a program that is asked ---------------------------------------------------------------


def program(folder: Path, body: str) -> tuple[str, str]:
    """Stands in for `python -m cotenant.agent.gpus.held_probe`; `turn` counts its runs from 1."""
    path = folder / "probe.py"
    count = folder / "count"
    count.write_text("")
    path.write_text(
        "import json, sys, time\n"
        f"with open({str(count)!r}, 'a+') as file:\n"
        "    file.write('x'); file.seek(0); turn = len(file.read())\n"
        "def answer(used_mib, *holders):\n"
        "    print(json.dumps({'devices': [{'uuid': u, 'used_mib': used_mib, 'holders': list(holders)}"
        " for u in sys.argv[1:]]}))\n" + body + "\n"
    )
    return (sys.executable, str(path))


def released(program: tuple[str, str], *, patience_s: float, events: int) -> list[AnyAgentEvent]:
    async def wait() -> list[AnyAgentEvent]:
        posted: asyncio.Queue[AnyAgentEvent] = asyncio.Queue()
        release = Release(posted.put_nowait, program=program, patience_s=patience_s, held_period_s=0.01)
        release.watch(JobId("7"), AttemptNo(1), (GPU,))
        try:
            async with asyncio.timeout(30.0):
                return [await posted.get() for _ in range(events)]
        finally:
            await release.leave()

    return asyncio.run(wait())


def test_memory_that_comes_back_within_a_moment_is_waited_for(tmp_path: Path) -> None:
    [event] = released(program(tmp_path, "answer(9600 if turn == 1 else 600)"), patience_s=30.0, events=1)
    assert event == MemoryFree(**KEY)
    assert len((tmp_path / "count").read_text()) == 2


def test_memory_that_stays_is_said_with_its_holder_and_asked_about_until_it_is_free(tmp_path: Path) -> None:
    zombie = {"pid": 7, "used_mib": 9000, "state": "Z", "name": "python"}
    body = f"answer(9600, {zombie!r}) if turn < 3 else answer(600)"
    held, freed = released(program(tmp_path, body), patience_s=0.0, events=2)
    assert isinstance(held, MemoryHeld)
    assert "process 7 (python), a zombie" in held.holders["GPU-a"]
    assert freed == DeviceFreed(uuid="GPU-a")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("print('nonsense')", "asking NVML failed (exit 0)"),
        ("sys.exit(3)", "exit 3"),
        ("print('{}')", "not list it"),
    ],
)
def test_an_answer_that_makes_no_sense_does_not_free_a_device(tmp_path: Path, body: str, says: str) -> None:
    [event] = released(program(tmp_path, body), patience_s=0.0, events=1)
    assert isinstance(event, MemoryHeld) and says in event.holders["GPU-a"]


def test_a_program_that_cannot_be_started_does_not_free_a_device() -> None:
    [event] = released(("/no/such/program", ""), patience_s=0.0, events=1)
    assert isinstance(event, MemoryHeld) and "cannot start" in event.holders["GPU-a"]


# --- The program itself, on a library of our own ------------------------------------------------------


def probed(*uuids: str) -> Answer:
    done = subprocess.run([*PROGRAM, *uuids], capture_output=True, check=True)
    return msgspec.json.decode(done.stdout, type=Answer)


def test_each_process_is_listed_once_and_one_that_is_gone_is_known(gpus: MockGpus) -> None:
    me, gone = os.getpid(), 2**22 + 7
    gpus.say("gpu 0 used 1000", f"process 0 {me} 300 M", f"process 0 {me} 5 G", f"process 0 {gone} 9 C")
    [gpu] = probed(ONE).devices
    here, nobody = gpu.holders
    assert (gpu.used_mib, here.pid, here.used_mib) == (1000, me, 300)
    assert here.runs and here.name
    assert (nobody.pid, nobody.state, nobody.runs) == (gone, "", False)


def test_a_lost_gpu_is_a_problem_and_the_others_answer(gpus: MockGpus) -> None:
    gpus.say("gpu 1 rc 15")
    one, two = probed(ONE, TWO).devices
    assert one.problem == ""
    assert "fallen off the bus" in two.problem
    gpus.say("init 9")
    assert "driver is not loaded" in probed(ONE).problem


def test_an_old_driver_is_asked_in_its_own_words(
    gpus: MockGpus, old_nvml_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(old_nvml_library))
    gpus.say("gpu 0 used 1000", f"process 0 {os.getpid()} 300 C")
    [gpu] = probed(ONE).devices
    assert [(each.pid, each.used_mib) for each in gpu.holders] == [(os.getpid(), 300)]
