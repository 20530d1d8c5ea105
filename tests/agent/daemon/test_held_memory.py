"""Memory that is still held after a job: who is named, who waits for it, and when a device goes back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cotenant.agent.daemon.core.edge import (
    AgentTicked,
    AwaitMemory,
    Connected,
    DevicesChanged,
    EndCame,
    FoundAttempt,
    MemoryFree,
    MemoryHeld,
    StatusCame,
)
from cotenant.agent.daemon.core.memory import AgentMemory
from cotenant.agent.daemon.core.remembered import AttemptKey
from cotenant.agent.gpus.causes import UNASKED
from cotenant.agent.gpus.health import Health
from cotenant.agent.gpus.held_memory import who_holds
from cotenant.agent.gpus.probe_results import OwnerKind, ProbeResult, Process, ProcessOwner
from cotenant.controller.domain import HELD_MIB_MIN, AttemptNo, JobId
from cotenant.controller.domain import events as ev
from cotenant.controller.wire import Hello, Welcome
from tests.agent.daemon.test_state import (
    HOST,
    KEY,
    Agent,
    only,
    reported,
    sent,
    start,
    status,
    stop,
    welcomed,
)
from tests.building.hosts import gpu, host
from tests.building.orders import gang
from tests.building.results import result

GPU, OTHER = (gpu(f"h1/gpu-{name}", f"GPU-{name}", reserve_mib=600) for name in "ab")
RESERVE_MIB = 600
MINE: AttemptKey = (JobId("7"), AttemptNo(1))
BESIDE: AttemptKey = (JobId("8"), AttemptNo(1))


def probe(used_mib: int, *processes: Process, **facts: Any) -> ProbeResult:
    return ProbeResult(uuid="GPU-a", used_mib=used_mib, processes=processes, **facts)


def process(
    pid: int,
    used_mib: int | None,
    state: str = "S",
    *,
    kind: OwnerKind = "foreign",
    of: AttemptKey | None = None,
) -> Process:
    owner = ProcessOwner(kind=kind, command="python")
    if of is not None:
        owner = ProcessOwner(kind="attempt", command="python", job_id=of[0], attempt=of[1])
    return Process(pid=pid, used_mib=used_mib, state=state, owner=owner)


NOBODY = "9000 MiB are still held by no process that can be seen here"
# fmt: off
HELD: list[tuple[str, ProbeResult, set[AttemptKey], str]] = [
    ("back at the reserve", probe(600), set(), ""),
    ("a little more than that", probe(600 + HELD_MIB_MIN - 1), set(), ""),
    ("just enough", probe(600 + HELD_MIB_MIN), set(), f"{HELD_MIB_MIN} MiB are still held"),
    ("less than the reserve", probe(500), set(), ""),
    ("a co-tenant's", probe(20_600, process(7, 20_000, of=BESIDE)), {BESIDE}, ""),
    ("a stranger's", probe(20_600, process(7, 20_000)), set(), ""),
    ("our MPS server's", probe(1_600, process(7, 1_000, kind="mps")), set(), ""),
    ("nobody's", probe(9_600), set(), NOBODY),
    ("partly a co-tenant's", probe(13_600, process(7, 4_000, of=BESIDE)), {BESIDE}, NOBODY),
    ("a zombie's", probe(9_600, process(7, 9_000, "Z")), set(), "process 7 (python), a zombie"),
    ("one in the kernel's", probe(9_600, process(7, 9_000, "D", of=MINE)), set(), "stuck in the kernel"),
    ("a job's that has ended", probe(9_600, process(7, 9_000, of=MINE)), {BESIDE}, "of a job that has ended"),
    ("a co-tenant's that waits for a disk", probe(9_600, process(7, 9_000, "D", of=BESIDE)), {BESIDE}, ""),
    ("a job's of which nobody is listed", probe(9_600), {BESIDE}, ""),
    ("one we cannot see", probe(9_600, process(7, 9_000, "", kind="hidden")), set(), "not visible from here"),
    ("one we cannot see's, beside a job", probe(9_600, process(7, 9_000, "", kind="hidden")), {BESIDE}, ""),
    ("the driver does not say whose", probe(9_600, process(7, None)), set(), ""),
    ("it does not say, and there is a zombie", probe(9_600, process(7, None), process(8, None, "Z")), set(),
     "memory is still held by process 8"),
    ("a zombie that holds nothing", probe(600, process(7, 0, "Z")), set(), ""),
]
# fmt: on


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (probe(20_600), ""),
        (probe(20_600, process(33, None, "", kind="hidden")), ""),
        (probe(20_600, process(8, None, "Z")), "memory is still held by process 8"),
    ],
    ids=("nobody's", "one we cannot see", "a zombie's"),
)
def test_where_others_use_the_memory_unlisted_only_a_process_is_proof(seen: ProbeResult, says: str) -> None:
    """Windows under WSL2, the kernel's own pages (GH200); also where a driver has no list at all."""
    unlisted = msgspec.structs.replace(seen, lists_computing=False)
    for held in (who_holds(seen, None, ()), who_holds(unlisted, RESERVE_MIB, ())):
        assert (held is None) == (says == "")
        assert held is None or says in held.text


@pytest.mark.parametrize(("name", "seen", "live", "says"), HELD, ids=[row[0] for row in HELD])
def test_who_holds_memory_is_named(name: str, seen: ProbeResult, live: set[AttemptKey], says: str) -> None:
    held = who_holds(seen, RESERVE_MIB, live)
    assert (held is None) == (says == ""), name
    assert held is None or says in held.text


def test_many_holders_are_counted() -> None:
    held = who_holds(probe(60_000, *(process(pid, 5_000, "Z") for pid in range(10, 16))), RESERVE_MIB, ())
    assert held is not None
    assert "process 12" in held.text and "process 13" not in held.text and held.text.endswith("and 3 more")


# --- After an end ------------------------------------------------------------------------------------


HIS = process(7, 9_000, of=BESIDE)
# fmt: off
WAITS: list[tuple[str, ProbeResult, set[AttemptKey], set[AttemptKey], set[AttemptKey], str]] = [
    # name, probe, who holds GPU-a, who of them has ended, who holds GPU-b alone, why it is not free
    ("a look before the end", probe(600, at_s=99.9), {MINE}, {MINE}, set(), UNASKED),
    ("a look that began at the end", probe(600, at_s=100.0), {MINE}, {MINE}, set(), ""),
    ("its own process", probe(9_600, process(7, 9_000, of=MINE), at_s=101.0), {MINE}, {MINE}, set(),
     "9000 MiB are still held by process 7 (python), of a job that has ended"),
    ("a co-tenant's process", probe(9_600, HIS, at_s=101.0), {MINE, BESIDE}, {MINE}, set(), ""),
    ("a co-tenant's that has ended too", probe(9_600, HIS, at_s=101.0), {MINE, BESIDE}, {MINE, BESIDE}, set(),
     "9000 MiB are still held by process 7 (python), of a job that has ended"),
    ("that of a job that was given another GPU", probe(9_600, HIS, at_s=101.0), {MINE}, {MINE}, {BESIDE}, ""),
    ("no answer", probe(0, code=999, problem="it has a problem", at_s=102.0), {MINE}, {MINE}, set(),
     "its memory cannot be asked for: it has a problem"),
    ("it is lost", probe(0, code=15, problem="gone", at_s=102.0), {MINE}, {MINE}, set(), ""),
]
# fmt: on


@pytest.mark.parametrize(
    ("name", "seen", "live", "ended", "elsewhere", "why"), WAITS, ids=[r[0] for r in WAITS]
)
def test_an_end_waits_for_what_the_job_left_behind_and_for_nobody_else(
    name: str, seen: ProbeResult, live: set[AttemptKey], ended: set[AttemptKey], elsewhere: set[AttemptKey],
    why: str,
) -> None:  # fmt: skip
    health = Health({"GPU-a": RESERVE_MIB, "GPU-b": RESERVE_MIB})
    here, there = {key: ["GPU-a"] for key in live}, {key: ["GPU-b"] for key in elsewhere}
    health.surroundings(here | there, (), 99.0)
    health.note_probe(seen, 103.0)
    assert health.not_free(["GPU-a"], 100.0, ended) == ({"GPU-a": why} if why else {}), name


# --- The agent ---------------------------------------------------------------------------------------

REPORT = host(HOST, GPU, OTHER, cpus=4)
ON_GPU = gang((GPU.device_id,))


def ended(**changes: Any) -> tuple[Agent, list[Any]]:
    """An attempt has run on a GPU, and no process of it is left."""
    agent = welcomed(report=REPORT, **changes)
    agent.obey(start(gang=ON_GPU))
    agent.say(Connected(**KEY), StatusCame(status=status(started=True)))
    return agent, agent.say(EndCame(result=result()))


def ends(effects: list[Any]) -> list[ev.AttemptEnded]:
    return [each for each in reported(effects) if isinstance(each, ev.AttemptEnded)]


def test_the_end_is_held_back_until_the_memory_is_back() -> None:
    agent, effects = ended()
    assert only(AwaitMemory, effects) == [
        AwaitMemory(job_id=JobId("7"), attempt=AttemptNo(1), devices=(GPU,), failed=False)
    ]
    assert ends(effects) == []
    assert [each.job_id for each in agent.state.running] == ["7"], "its devices are not given out"
    again = agent.say(EndCame(result=result()), AgentTicked())
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
    suspect = msgspec.structs.replace(GPU, state="suspect", healthy=False, note="suspect: held by process 7")
    [hello] = sent(Hello, agent.say(DevicesChanged(devices=(suspect, OTHER))))
    assert hello.report.devices == (suspect, OTHER)
    effects = agent.say(MemoryHeld(**KEY, holders={"GPU-a": "held by process 7"}))
    assert ends(effects) == [], "not before the controller knows the device"
    effects = agent.hear(Welcome(session="s1", lease_s=None, reports_seen=0, journal="j"))
    assert len(ends(effects)) == 1
    assert agent.state.running == ()
    agent.obey(start("8", command=5, gang=ON_GPU))
    assert len(agent.state.running) == 0, "nothing starts there"


def test_an_agent_that_starts_anew_asks_again() -> None:
    agent, _ = ended()
    again, effects = agent.restarted(
        FoundAttempt(job_id=JobId("7"), attempt=AttemptNo(1), alive=False, result=result()), report=REPORT
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


def test_a_doubt_outlives_the_agent_and_ends_with_a_step_after_it() -> None:
    agent = beside()
    agent.say(EndCame(result=result(unclean=True)), MemoryFree(**KEY))
    found = FoundAttempt(job_id=JobId("8"), attempt=AttemptNo(1), alive=True)
    assert AgentMemory(agent.state.memory.as_notes()).quarantined == agent.state.memory.quarantined, (
        "compacted as well"
    )
    again, effects = agent.restarted(found, report=REPORT)
    hellos = sent(Hello, effects)
    assert hellos and all(hello.report.devices[0].state == "suspect" for hello in hellos), (
        "from the first word on"
    )
    other: dict[str, Any] = {"job_id": JobId("8"), "attempt": AttemptNo(1)}
    again.hear(Welcome(session="s2", lease_s=None, reports_seen=0, journal="j"))
    again.say(Connected(**other), StatusCame(status=status("8", started=True, first_step=1, step=40)))
    assert again.state.config.report.devices[0].state == "suspect"
    again.say(StatusCame(status=status("8", started=True, first_step=1, step=41)))
    assert again.state.config.report.devices == (GPU, OTHER)
    assert again.state.memory.quarantined == {}


def test_a_doubt_does_not_outlive_those_it_waits_for() -> None:
    agent = beside()
    agent.say(EndCame(result=result(unclean=True)), MemoryFree(**KEY))
    again, _ = agent.restarted(report=REPORT)
    assert again.state.config.report.devices == (GPU, OTHER), "a boot, say: nobody is left"


def test_a_second_kill_keeps_what_the_first_one_waits_for() -> None:
    roomy = msgspec.structs.replace(GPU, max_tenants=3)
    agent = welcomed(report=host(HOST, roomy, cpus=4))
    for number, job in enumerate(("7", "8", "9"), 1):
        agent.obey(start(job, command=number, gang=ON_GPU))
    for job in ("7", "8", "9"):
        agent.say(StatusCame(status=status(job, started=True, first_step=1, step=4)))
    agent.say(EndCame(result=result("7", unclean=True)), EndCame(result=result("8", unclean=True)))
    [doubt] = agent.state.memory.quarantined.values()
    assert {each.key[0] for each in doubt.waits} == {"8", "9"}
