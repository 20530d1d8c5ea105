"""A job that started alone and without a limit is held to what newcomers leave, as long as they are there."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cotenant.agent.daemon.core.edge import ClientsCounted, Connected, Disconnected, EndCame, MemoryFree
from cotenant.agent.ipc.channel import CoTenantsChanged
from cotenant.agent.supervisor.core.edge import TellRank
from cotenant.controller.domain import AttemptNo, JobId
from tests.agent.daemon.test_held_memory import GPU, ON_GPU, REPORT
from tests.agent.daemon.test_state import KEY, Agent, start, told, welcomed
from tests.agent.supervisor.test_supervision import Story
from tests.building.results import result

NEWCOMER: dict[str, Any] = {"job_id": JobId("8"), "attempt": AttemptNo(1)}
CAP_MIB = 20_000
LEFT_MIB = GPU.usable_mib - CAP_MIB


def incumbent(**changes: Any) -> Agent:
    agent = welcomed(report=REPORT)
    agent.obey(start(gang=ON_GPU, **changes))
    agent.say(Connected(**KEY))
    return agent


def newcomer(**changes: Any) -> Any:
    return start("8", command=2, gang=ON_GPU, **{"memory_cap_mib": CAP_MIB, **changes})


def test_its_supervisor_hears_what_the_newcomer_leaves_and_that_it_has_gone() -> None:
    agent = incumbent()
    assert told(CoTenantsChanged, agent.obey(newcomer())) == [
        CoTenantsChanged(alone=False, room_mib=LEFT_MIB)
    ]
    again = agent.say(Disconnected(**KEY), Connected(**KEY))
    assert told(CoTenantsChanged, again) == [CoTenantsChanged(alone=False, room_mib=LEFT_MIB)]
    assert told(CoTenantsChanged, agent.say(Connected(**NEWCOMER))) == [CoTenantsChanged(alone=False)], (
        "it has a limit"
    )
    gone = agent.say(EndCame(result=result("8")), MemoryFree(**NEWCOMER))
    assert CoTenantsChanged(alone=True) in told(CoTenantsChanged, gone)


def test_each_of_several_processes_gets_its_part() -> None:
    agent = incumbent()
    agent.say(ClientsCounted(**KEY, processes=2))
    assert told(CoTenantsChanged, agent.obey(newcomer())) == [
        CoTenantsChanged(alone=False, room_mib=LEFT_MIB // 2)
    ]


@pytest.mark.parametrize(
    ("own_mib", "other_mib"), [(30_000, CAP_MIB), (None, None)], ids=["it has a limit", "nobody has one"]
)
def test_otherwise_nothing_is_said_of_room(own_mib: int | None, other_mib: int | None) -> None:
    agent = incumbent(memory_cap_mib=own_mib)
    effects = agent.obey(newcomer(memory_cap_mib=other_mib))
    assert told(CoTenantsChanged, effects) == [CoTenantsChanged(alone=False)]


def test_the_supervisor_passes_it_on_to_each_rank_once() -> None:
    story = Story(2).runs()

    def passed_on(word: CoTenantsChanged) -> list[tuple[int, Any]]:
        said = story.of(TellRank, story.happens(word))
        return [(each.rank, msgspec.json.decode(each.data)) for each in said]

    room = {"v": 1, "m": "room", "memory_mib": 500}
    assert passed_on(CoTenantsChanged(alone=False, room_mib=500)) == [(0, room), (1, room)]
    assert passed_on(CoTenantsChanged(alone=False, room_mib=500)) == []
    gone = {**room, "memory_mib": None}
    assert passed_on(CoTenantsChanged(alone=True)) == [(0, gone), (1, gone)]
