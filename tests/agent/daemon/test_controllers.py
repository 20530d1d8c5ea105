"""Several controllers, of which one leads: which one the agent greets, and when it goes to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.agent.daemon.core.edge import AgentTicked, Booted, LinkChanged, Reconnect, Say, StartSupervisor
from cotenant.agent.daemon.core.registration import ANSWER_S, REST_S, STAND_BY_S, UNSURE_S
from cotenant.controller.domain import Epoch
from cotenant.controller.wire import (
    CommandDelivery,
    Heartbeat,
    Hello,
    NotFollowed,
    NotLeading,
    Renew,
    Welcome,
)
from tests.agent.daemon.test_state import Agent, only, sent, start

A: Final = "tcp://a:7070"
B: Final = "tcp://b:7070"
C: Final = "tcp://c:7070"
FIRST: Final = Epoch(number=1, token="one")
SECOND: Final = Epoch(number=2, token="two")


def welcome(epoch: Epoch = FIRST) -> Welcome:
    return Welcome(session="s1", lease_s=300.0, reports_seen=0, journal="j", epoch=epoch)


def agent_of(*controllers: str) -> Agent:
    """An agent that the first of the controllers has welcomed."""
    agent = Agent(controllers=controllers)
    agent.say(Booted())
    agent.hear(welcome(), Renew(beat=1))
    return agent


def closed(endpoint: str) -> LinkChanged:
    return LinkChanged(endpoint=endpoint, is_open=False)


def opened(endpoint: str) -> LinkChanged:
    return LinkChanged(endpoint=endpoint, is_open=True)


def ways(effects: Sequence[Any]) -> list[str]:
    """Where the agent goes."""
    return [effect.endpoint for effect in only(Reconnect, effects)]


def beside_a_standby(agent: Agent, leader: str, seconds: float) -> list[Any]:
    """It answers every hello."""
    effects = agent.hear(NotLeading(leader=leader))
    for _ in range(round(seconds)):
        effects += agent.wait(1.0)
        effects += agent.hear(NotLeading(leader=leader)) if not ways(effects) else []
    return effects


def test_a_closed_connection_leads_to_the_next_controller_at_once() -> None:
    agent = agent_of(A, B)
    effects = agent.say(closed(A))
    assert (ways(effects), len(sent(Hello, effects))) == ([B], 1)
    assert [effect.text for effect in only(Say, effects)] == [f"the connection to {A} was closed"]
    assert len(sent(Hello, agent.say(opened(B)))) == 1, "the hello before was sent to nobody"
    effects = agent.hear(welcome(SECOND))
    assert len(sent(Heartbeat, effects)) == 1
    assert ways(agent.wait(60.0, answered=True)) == []


def test_it_waits_with_a_standby_and_greets_it_every_second_until_that_leads() -> None:
    agent = agent_of(A, B)
    agent.say(closed(A), opened(B))
    effects = beside_a_standby(agent, A, 5.0)
    assert (ways(effects), len(sent(Hello, effects))) == ([], 5)
    assert len(sent(Heartbeat, agent.hear(welcome(SECOND)))) == 1


def test_after_a_while_it_looks_for_the_leader_again() -> None:
    agent = agent_of(A, B)
    agent.say(closed(A), opened(B))
    assert ways(beside_a_standby(agent, A, STAND_BY_S)) == [A]
    assert ways(agent.say(closed(A))) == [B], "refused: back to the standby"


def test_a_redirect_is_followed_at_once_and_only_once() -> None:
    agent = agent_of(A, B, C)
    assert ways(agent.hear(NotLeading(leader=C))) == [C]
    assert ways(beside_a_standby(agent, A, STAND_BY_S)) == [B]


@pytest.mark.parametrize(("leader", "wait_s"), [("", UNSURE_S), ("tcp://stranger:7070", STAND_BY_S)])
def test_a_redirect_to_a_stranger_is_not_followed(leader: str, wait_s: float) -> None:
    agent = agent_of(A, B)
    assert ways(beside_a_standby(agent, leader, wait_s)) == [B]


def test_a_leader_that_names_nobody_is_left_at_once() -> None:
    """It cannot reach the database, and its successor may lead by now."""
    agent = agent_of(A, B)
    agent.say(opened(A))
    agent.hear(welcome(FIRST))
    assert ways(agent.hear(NotLeading())) == [B]


def test_a_silent_controller_is_left_after_three_heartbeats_and_a_silent_successor_sooner() -> None:
    agent = agent_of(A, B)
    assert ways(agent.wait(3.9)) == []
    assert ways(agent.wait(0.2)) == [B]
    assert ways(agent.wait(ANSWER_S - 0.3)) == []
    assert ways(agent.wait(0.4)) == [A]


def test_there_is_a_rest_when_all_have_refused() -> None:
    agent = agent_of(A, B)
    assert ways(agent.say(closed(A), closed(B))) == [B]
    assert ways(agent.say(closed(B))) == []
    assert ways(agent.wait(REST_S)) == [A]
    assert ways(agent.say(closed(A))) == [B]


def test_what_an_old_connection_says_late_changes_nothing() -> None:
    agent = agent_of(A, B)
    agent.say(closed(A))
    assert ways(agent.say(closed(A), closed(A))) == []


def test_a_leader_that_wakes_in_an_earlier_epoch_is_refused_and_left_for_its_successor() -> None:
    agent = agent_of(A, B)
    agent.say(closed(A), opened(B))
    agent.hear(welcome(SECOND))
    agent.say(closed(B), opened(A))
    late = CommandDelivery(command=start(), epoch=FIRST.token)
    effects = agent.hear(late)
    assert only(StartSupervisor, effects) == [] and len(sent(NotFollowed, effects)) == 1
    effects = agent.hear(welcome(FIRST))
    assert ways(effects) == [B] and sent(Heartbeat, effects) == []
    agent.say(opened(B))
    assert len(sent(Heartbeat, agent.hear(welcome(SECOND)))) == 1
    assert agent.state.memory.epoch == SECOND


class World:
    """Controllers that refuse connections, say nothing, stand by or lead; and an agent of them."""

    def __init__(self) -> None:
        self.agent = Agent(controllers=(A, B, C))
        self.roles = {A: "leads", B: "stands by", C: "refuses"}
        self.said_leader = A
        self.epoch = 1
        self.at = A
        self.act([*self.agent.say(Booted()), *self.agent.say(opened(A))])

    def act(self, effects: Sequence[Any]) -> None:
        """What becomes of the agent's effects, and of those that follow."""
        while effects:
            self.at = [self.at, *ways(effects)][-1]
            role = self.roles[self.at]
            moved, hello = ways(effects) != [], sent(Hello, effects) != []
            effects = []
            if moved and role == "refuses":
                effects = self.agent.say(closed(self.at))
            elif moved and role != "is silent":
                effects = self.agent.say(opened(self.at))
            elif hello and role == "stands by":
                effects = self.agent.hear(NotLeading(leader=self.said_leader))
            elif hello and role == "leads":
                effects = self.agent.hear(welcome(Epoch(number=self.epoch, token=f"e{self.epoch}")))

    def become(self, endpoint: str, role: str) -> None:
        self.roles[endpoint] = role
        if endpoint == self.at and role in ("refuses", "is silent"):
            self.act(self.agent.say(closed(endpoint)) if role == "refuses" else [])

    def wait(self, seconds: float) -> None:
        until_s = self.agent.now_s + seconds
        while self.agent.state.next_alarm_s <= until_s:
            self.agent.now_s = max(self.agent.now_s, self.agent.state.next_alarm_s)
            effects = self.agent.say(AgentTicked())
            if self.roles[self.at] == "leads":
                self.agent.hear(*(Renew(beat=beat.beat) for beat in sent(Heartbeat, effects)))
            self.act(effects)
        self.agent.now_s = until_s


ROLES: Final = ("refuses", "is silent", "stands by")
WITHIN_S: Final = 4.0 + 2 * (STAND_BY_S + ANSWER_S)
"""Three heartbeats of silence, and two rounds with a controller that stands by and one that is silent."""


@given(
    changes=st.lists(
        st.tuples(st.sampled_from((A, B, C)), st.sampled_from(ROLES), st.floats(0.0, 10.0)), max_size=8
    ),
    leader=st.sampled_from((A, B, C)),
    said=st.sampled_from((A, B, C, "")),
)
def test_whatever_happened_before_the_agent_finds_the_leader(
    changes: list[tuple[str, str, float]], leader: str, said: str
) -> None:
    world = World()
    world.said_leader = said
    for endpoint, role, wait_s in changes:
        world.become(endpoint, role)
        world.wait(wait_s)
    world.epoch += 1
    for each in (A, B, C):
        if each != leader and world.roles[each] == "leads":
            world.become(each, "stands by")
    world.become(leader, "leads")
    world.wait(WITHIN_S)
    assert world.agent.state.registration.welcomed and world.at == leader


def test_an_agent_of_one_controller_stays_with_it() -> None:
    agent = agent_of(A)
    effects = [*agent.say(closed(A), opened(A)), *beside_a_standby(agent, B, 60.0)]
    assert ways(effects) == [] and len(sent(Hello, effects)) <= 61
    agent.hear(welcome(SECOND))
    assert agent.state.registration.welcomed
