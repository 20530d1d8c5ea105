"""`policy set --preview`: what a policy would do at once, asked of a real desk, which stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cotenant.controller.wire import clients
from tests.controller.building import profile
from tests.controller.station import ALICE, Station, run_one

ALONE = profile(8, (1, 0.1, 100.0), duty=0.4)


def busy(station: Station) -> None:
    """A long job trains, and a short one waits for its device."""
    address = station.join()
    known: dict[str, Any] = {"profile": ALONE, "batch_size": 8}
    run_one(station, address, station.submit(expected_s=1000.0, name="long", **known), until="step")
    station.submit(expected_s=10.0, name="short", **known)


def test_a_preview_says_what_would_be_decided_with_reasons(stations: Callable[..., Station]) -> None:
    station = stations(policy="fifo")
    busy(station)
    preview = station.ask(clients.PreviewPolicy(name="castor")).preview
    (action,) = preview.actions
    assert (action.job_id, action.name, action.what) == ("2", "short", "share on h1/0")
    assert action.reason.startswith("sharing with job 1 pays: on average")
    assert (preview.policy, preview.queued, preview.more) == ("castor", 1, 0)
    assert station.ask(clients.PreviewPolicy(name="sjf")).preview.actions == (), (
        "it would wait under that as well"
    )


def test_nothing_is_changed_by_it(stations: Callable[..., Station]) -> None:
    station = stations(policy="fifo")
    busy(station)
    before, entries = station.core.state.save(), station.journal.last_seq
    station.ask(clients.PreviewPolicy(name="castor"))
    assert station.journal.last_seq == entries
    assert station.core.state.save() == before
    assert station.core.state.engine.current.name == "fifo"


def test_it_is_for_those_who_may_set_one_and_for_policies_that_exist(
    stations: Callable[..., Station],
) -> None:
    station = stations()
    assert station.ask(clients.PreviewPolicy(name="srtf"), ALICE).code == "not-allowed"
    wrong = station.ask(clients.PreviewPolicy(name="castor", parameters={"observations": 0}))
    assert (wrong.code, "observations" in wrong.message) == ("usage", True)
