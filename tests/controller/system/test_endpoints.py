"""Where an agent finds its controller: where it is told, else where every other verb looks."""

from __future__ import annotations

import pytest

from cotenant.controller.system import paths
from cotenant.controller.system.endpoint import user_endpoint
from cotenant.controller.system.sections import AgentSettings, ControllerSettings, Settings


@pytest.mark.parametrize(
    ("controller", "agent", "wanted"),
    [
        ("tcp://head:7070", "", "tcp://head:7070"),
        ("tcp://0.0.0.0:7070", "", "tcp://127.0.0.1:7070"),
        ("tcp://head:7070", "tcp://other:7071", "tcp://other:7071"),
        ("", "", None),
    ],
)
def test_an_agent_reads_the_controllers_endpoint(controller: str, agent: str, wanted: str | None) -> None:
    settings = Settings(
        controller=ControllerSettings(endpoint=controller), agent=AgentSettings(controller=agent)
    )
    assert paths.agent_endpoints(settings) == (wanted or user_endpoint(),)
