"""What a job's library says that it can do has the same names and types in every record on its way."""

from __future__ import annotations

import msgspec
import pytest

from cotenant.agent.daemon.core.memory import Attempt
from cotenant.agent.ipc.records import Status
from cotenant.agent.supervisor.core.rank_messages import RankHello
from cotenant.controller.domain.events import CapabilitiesSeen
from cotenant.controller.domain.job import Capabilities, Job
from cotenant.controller.wire.clients import JobView


def types(kind: type[msgspec.Struct]) -> dict[str, type]:
    """Without the limits that some set."""
    found = msgspec.inspect.type_info(kind)
    assert isinstance(found, msgspec.inspect.StructType)
    return {field.name: type(field.type) for field in found.fields}


@pytest.mark.parametrize("kind", [RankHello, Status, Attempt, CapabilitiesSeen, Job, JobView])
def test_every_record_has_them(kind: type[msgspec.Struct]) -> None:
    assert types(Capabilities).items() <= types(kind).items()
