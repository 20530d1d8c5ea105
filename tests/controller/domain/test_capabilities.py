"""What a job's library says that it can do is one value from the supervisor to the job."""

from __future__ import annotations

from typing import get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.agent.daemon.core.remembered import Attempt
from cotenant.agent.ipc.records import Status
from cotenant.agent.supervisor.core.rank_messages import RankHello
from cotenant.controller.domain import Capabilities, JobProgress, shared_by_all
from cotenant.controller.domain.events import CapabilitiesSeen
from cotenant.controller.wire import clients as wire

SAID = st.builds(
    Capabilities,
    resumable_note=st.sampled_from(("", "an open file")),
    accumulates=st.booleans(),
    accumulates_note=st.sampled_from(("", "BatchNorm")),
)


@pytest.mark.parametrize("kind", [Status, Attempt, CapabilitiesSeen, JobProgress])
def test_every_record_holds_the_value_whole(kind: type[msgspec.Struct]) -> None:
    hint = get_type_hints(kind)["capabilities"]
    assert hint is Capabilities or hint == Capabilities | None


@given(can=SAID)
def test_what_a_rank_says_in_one_message_is_the_value(can: Capabilities) -> None:
    said = msgspec.structs.asdict(can)
    assert RankHello(v=1, rank=0, world_size=1, resumable=True, step=0, **said).capabilities == can


@given(said=st.lists(SAID, min_size=1, max_size=4))
def test_a_gang_can_what_all_its_ranks_can(said: list[Capabilities]) -> None:
    found = shared_by_all(said)
    assert found.accumulates == all(each.accumulates for each in said)
    assert bool(found.accumulates_note) == any(each.accumulates_note for each in said)
    assert bool(found.resumable_note) == any(each.resumable_note for each in said)


def test_in_a_view_what_was_not_said_is_null() -> None:
    hints = get_type_hints(wire.JobView)
    assert (hints["resumable_note"], hints["accumulates"]) == (str | None, bool)
