"""The energy of a GPU, divided among the attempts on it: nothing is lost, and nothing counts twice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.agent.daemon.core.edge import (
    AgentTicked,
    Connected,
    EndCame,
    EnergyRead,
    FoundAttempt,
    MemoryFree,
    StatusCame,
)
from cotenant.agent.daemon.core.energy import EnergyMeter
from cotenant.agent.daemon.core.notes import Metered
from cotenant.agent.daemon.core.remembered import AttemptKey
from cotenant.controller.domain import AttemptNo, JobId
from cotenant.controller.domain import events as ev
from cotenant.controller.wire import Heartbeat, Renew
from tests.agent.daemon.test_state import HOST, KEY, Agent, sent, start, status, welcomed
from tests.building.hosts import gpu, host
from tests.building.orders import gang
from tests.building.results import result

GPUS = ("GPU-a", "GPU-b")
A, B = (gpu(f"h1/gpu-{uuid}", uuid) for uuid in GPUS)
REPORT = host(HOST, A, B)
ON_A = gang((A.device_id,))


def key(job: int) -> AttemptKey:
    return JobId(str(job)), AttemptNo(1)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.sampled_from(GPUS), st.integers(0, 900_000)),
        st.tuples(st.just("reset"), st.sampled_from(GPUS), st.integers(0, 900_000)),
        st.tuples(st.just("start"), st.sets(st.sampled_from(GPUS), min_size=1), st.floats(0.0, 1.0)),
        st.tuples(st.just("end"), st.integers(1, 6), st.none()),
        st.tuples(st.just("wait"), st.floats(0.0, 90.0), st.none()),
        st.tuples(st.just("killed"), st.none(), st.none()),
    ),
    max_size=40,
)


@given(STEPS)
def test_all_that_the_counters_gained_is_somebodys_whatever_happens(steps: list[Any]) -> None:
    """Job 0 holds both GPUs all the time; others come and go, and the agent is killed between any two
    notes."""
    meter, kept, now_s = EnergyMeter(), Metered(), 0.0
    said, gained = dict.fromkeys(GPUS, 5_000_000), 0
    held: dict[AttemptKey, tuple[set[str], float]] = {key(0): (set(GPUS), 1.0)}
    told_j = 0.0
    unread: set[str] = set()
    for count, (kind, what, amount) in enumerate([*(("read", uuid, 0) for uuid in GPUS), *steps]):
        if kind in ("read", "reset"):
            falls = kind == "reset" and amount < said[what] and what not in unread
            said[what] = amount if falls else said[what] + amount
            unread.discard(what)
            gained += amount
            meter.take(what, said[what], {k: duty for k, (uuids, duty) in held.items() if what in uuids})
            kept = meter.to_keep(None if count < 2 else now_s) or kept
        elif kind == "start":
            held[key(count)] = (what, amount)
        elif kind == "end" and len(held) > 1:
            ended = sorted(held.keys() - {key(0)})[what % (len(held) - 1)]
            kept = meter.to_keep(None) or kept
            told_j += meter.used_j(ended, held.pop(ended)[0]) or 0.0
            meter.forget((ended,))
        elif kind == "wait":
            now_s += what
        elif kind == "killed":
            meter = EnergyMeter(kept)
            meter.forget(meter.known - held.keys())
            unread = set(GPUS)  # A reset that no agent sees hides what was used since the last note.
    for uuid in GPUS:  # What was gained since the last note of one that was killed.
        meter.take(uuid, said[uuid], {k: duty for k, (uuids, duty) in held.items() if uuid in uuids})
    left_j = sum(meter.used_j(each, uuids) or 0.0 for each, (uuids, _) in held.items())
    assert told_j + left_j == pytest.approx(gained / 1000.0)


def test_duties_divide_and_nobody_with_any_shares_equally() -> None:
    meter = EnergyMeter()
    meter.take("GPU-a", 1000, {key(1): 1.0, key(2): 0.25})
    meter.take("GPU-a", 6000, {key(1): 1.0, key(2): 0.25})
    assert (meter.used_j(key(1), GPUS[:1]), meter.used_j(key(2), GPUS[:1])) == (4.0, 1.0)
    meter.take("GPU-a", 8000, {key(1): 0.0, key(2): 0.0})
    assert (meter.used_j(key(1), GPUS[:1]), meter.used_j(key(2), GPUS[:1])) == (5.0, 2.0)
    assert meter.used_j(key(1), GPUS) is None, "of the other GPU nothing is known"
    assert meter.used_j(key(1), ()) is None


def test_what_was_used_before_a_job_came_is_not_its_own() -> None:
    meter = EnergyMeter(Metered(counters={"GPU-a": 1000}))
    meter.take("GPU-a", 901_000, {key(1): 1.0})
    assert meter.used_j(key(1), GPUS[:1]) == 0.0


# --- The agent -------------------------------------------------------------------------------------


def read(agent: Agent, counter_mj: int) -> None:
    agent.now_s += 2.0
    agent.say(EnergyRead(uuid="GPU-a", counter_mj=counter_mj))


def energy_told(agent: Agent) -> float | None:
    """What the next heartbeat says."""
    effects: list[Any] = agent.say(StatusCame(status=status(started=True)))
    agent.now_s += 2.0
    effects += agent.say(AgentTicked())
    beats = [message for message in sent(Heartbeat, effects) if message.progress]
    agent.hear(Renew(beat=beats[-1].beat))
    return beats[-1].progress[0].energy_j


def on_a_gpu() -> Agent:
    agent = welcomed(report=REPORT)
    agent.obey(start(gang=ON_A))
    agent.say(Connected(**KEY), StatusCame(status=status(started=True)))
    return agent


def test_heartbeats_and_the_end_say_what_a_job_has_used() -> None:
    agent = on_a_gpu()
    assert energy_told(agent) is None, "no counter was read"
    read(agent, 10_000)
    read(agent, 25_000)
    assert energy_told(agent) == 15.0
    agent.say(EndCame(result=result()))
    read(agent, 27_000)
    agent.say(MemoryFree(**KEY))
    [ended] = [each for each in agent.state.memory.pending.values() if isinstance(each, ev.AttemptEnded)]
    assert ended.energy_j == 17.0


def test_an_agent_that_was_killed_goes_on_where_it_stopped() -> None:
    agent = on_a_gpu()
    for counter_mj in (10_000, 25_000, 30_000):
        read(agent, counter_mj)
    agent, _ = agent.restarted(FoundAttempt(**KEY, alive=True), report=REPORT)
    agent.say(Connected(**KEY), StatusCame(status=status(started=True)))
    read(agent, 60_000)
    assert agent.state.tenants.energy_j(agent.state.running[0]) == 50.0


def test_slots_of_the_cpu_have_no_counter() -> None:
    agent = welcomed()
    agent.obey(start())
    agent.say(Connected(**KEY), StatusCame(status=status(started=True)))
    assert energy_told(agent) is None
