"""What the agent tells supervisors where a job bounds what sharing may cost it."""

from __future__ import annotations

from typing import Any

from cotenant.agent.daemon.core.edge import AgentTicked, Connected, EndCame, MemoryFree, StatusCame, Tell
from cotenant.agent.ipc.channel import PaceNow
from cotenant.agent.ipc.records import StepClock
from cotenant.controller.domain import AttemptNo, JobId, Launch
from cotenant.controller.performance import ShareBound
from tests.agent.daemon.test_held_memory import ON_GPU, REPORT
from tests.agent.daemon.test_state import KEY, Agent, start, status, welcomed
from tests.building.results import result

GUEST: dict[str, Any] = {"job_id": JobId("8"), "attempt": AttemptNo(1)}
WAITS = Launch(argv=("python", "x.py"), workdir="/w", zero_code=("progress",), uid=1000, gid=1000)


def sharing() -> Agent:
    """A job with a bound, and a guest; both train."""
    agent = welcomed(report=REPORT)
    bound = ShareBound(max=1.1, is_own=True)
    agent.obey(start(gang=ON_GPU, launch=WAITS, share_bound=bound))
    agent.obey(start("8", command=2, gang=ON_GPU, launch=WAITS, memory_cap_mib=1000))
    agent.say(Connected(**KEY), Connected(**GUEST))
    step(agent, "7", 0)
    step(agent, "8", 0)
    return agent


def step(agent: Agent, job: str, steps: int, *, slower_from: int = 1_000) -> list[Any]:
    """A step took 0.1 s, and from some step on twice as long."""
    clock = StepClock(steps=steps, elapsed_s=0.1 * (steps + max(0, steps - slower_from)))
    effects: list[Any] = agent.say(StatusCame(status=status(job, started=True, first_step=1, clock=clock)))
    return effects


def pace_of(effects: list[Any], job: str) -> float | None:
    """The pace that the supervisor of the job was told last; None: nothing."""
    tells = (each for each in effects if isinstance(each, Tell) and each.job_id == job)
    paces = [each.message.pace for each in tells if isinstance(each.message, PaceNow)]
    return paces[-1] if paces else None


def test_a_pace_that_is_the_same_is_told_no_more() -> None:
    agent = sharing()
    for steps in range(1, 20):
        agent.now_s += 0.2
        step(agent, "7", steps)
        step(agent, "8", steps)
    assert pace_of(step(agent, "8", 20), "8") is None and pace_of(step(agent, "8", 21), "8") is None


def test_a_guest_rests_at_first_waits_for_the_bound_and_is_free_when_the_other_leaves() -> None:
    agent = sharing()
    said: list[float] = []
    for steps in range(1, 150):
        agent.now_s += 0.2
        for effects in (step(agent, "7", steps, slower_from=20), step(agent, "8", steps)):
            pace = pace_of(effects, "8")
            said += [] if pace is None else [pace]
    assert 1.0 in said and 0.0 < min(each for each in said if each) < 1.0, said
    gone = agent.say(EndCame(result=result("7")), MemoryFree(**KEY), AgentTicked())
    assert pace_of(gone, "8") == 1.0
