"""What a job's library says that it can do has the same names and types in every record on its way."""

from __future__ import annotations

from typing import get_type_hints

import msgspec
import pytest

from cotenant.agent.daemon.core import Attempt
from cotenant.agent.ipc import Status
from cotenant.agent.supervisor.core import RankHello
from cotenant.controller.domain.events import CapabilitiesSeen
from cotenant.controller.domain.job import NOTES, Capabilities, Job
from cotenant.controller.wire import clients as wire


def types(kind: type[msgspec.Struct]) -> dict[str, type]:
    """Without the limits that some set."""
    found = msgspec.inspect.type_info(kind)
    assert isinstance(found, msgspec.inspect.StructType)
    return {field.name: type(field.type) for field in found.fields}


@pytest.mark.parametrize("kind", [RankHello, Status, Attempt, CapabilitiesSeen, Job])
def test_every_record_has_them(kind: type[msgspec.Struct]) -> None:
    assert types(Capabilities).items() <= types(kind).items()


def test_in_a_view_what_was_not_said_is_null() -> None:
    wanted = {
        name: (str | None if name in NOTES else kind) for name, kind in get_type_hints(Capabilities).items()
    }
    assert wanted.items() <= get_type_hints(wire.JobView).items()
