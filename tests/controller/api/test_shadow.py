"""`policy shadow`, asked of a real desk: set, followed, told, kept over a restart, and off."""

from __future__ import annotations

from collections.abc import Callable

from cotenant.controller.sim.past.shadowing import Shadowing
from cotenant.controller.wire import clients
from tests.controller.building import profile
from tests.controller.station import ALICE, Station, run_one

ALONE = profile(8, (1, 0.1, 100.0), duty=0.4)


def follow(station: Station, child: Shadowing) -> None:
    """What the worker does."""
    station.settle()
    question = station.desk.shadow.question()
    assert question is not None
    station.desk.shadow.note_answer(question, child.answer(question))


def busy(station: Station) -> None:
    """A long job trains, and a short one waits for its device."""
    address = station.join()
    for length_s in (1000.0, 10.0):
        job_id = station.submit(expected_s=length_s, profile=ALONE, batch_size=8)
        if length_s > 10.0:
            run_one(station, address, job_id, until="step")
    station.tick(60.0)


def test_it_tells_from_its_beginning_on_and_changes_nothing(stations: Callable[..., Station]) -> None:
    station = stations()
    station.ask(clients.SetShadow(name="castor"))
    busy(station)
    state = station.core.state.save()
    child = Shadowing()
    follow(station, child)
    view = station.ask(clients.GetShadow(), ALICE).shadow
    assert (view.policy, view.in_force, view.set_by, view.behind_entries) == ("castor", "fifo", "root", 0)
    assert view.differing == {"starts": 1} and view.decisions >= 2
    assert (view.last[0].job_id, view.last[0].instead) == ("2", "share on h1/0")
    assert (view.simulated, view.is_simulating, view.failed, view.unfollowed) == (None, False, "", 0)
    assert station.core.state.save() == state


def test_a_simulation_is_made_when_asked_for_and_says_why_not(stations: Callable[..., Station]) -> None:
    station = stations()
    station.ask(clients.SetShadow(name="castor"))
    busy(station)
    child = Shadowing()
    assert station.ask(clients.GetShadow(simulate=True), ALICE).code == "not-allowed"
    assert station.ask(clients.GetShadow(simulate=True)).shadow.is_simulating
    follow(station, child)
    view = station.ask(clients.GetShadow()).shadow
    assert (view.is_simulating, view.simulated) == (False, None)
    assert "no job that arrived in this part of the journal has trained (2 not ended yet)" in view.why_not
    run_one(station, b"agent-h1", station.core.state.engine.ledger.running.jobs_by_end()[0].job_id)
    station.ask(clients.GetShadow(simulate=True))
    follow(station, child)
    view = station.ask(clients.GetShadow()).shadow
    assert view.simulated is not None and view.simulated_to is not None
    assert [run["policy"] for run in view.simulated["runs"]] == ["fifo", "castor"]


def test_it_outlives_restarts_and_a_new_child_comes_to_the_same(stations: Callable[..., Station]) -> None:
    station = stations()
    station.ask(clients.SetShadow(name="castor"))
    busy(station)
    follow(station, Shadowing())
    before = station.ask(clients.GetShadow()).shadow
    station.core.snapshot()
    station = stations(wall_s=station.wall_s + station.time_s)
    follow(station, Shadowing())
    after = station.ask(clients.GetShadow()).shadow
    assert (after.policy, after.differing, after.decisions) == (
        before.policy, before.differing, before.decisions,
    )  # fmt: skip
    station.ask(clients.SetShadow())
    assert station.desk.shadow.question() is None
    assert station.ask(clients.GetShadow()).code == "not-found"
    assert station.ask(clients.SetShadow()).code == "refused"


def test_it_is_for_admins_and_for_policies_that_exist(stations: Callable[..., Station]) -> None:
    station = stations()
    assert station.ask(clients.SetShadow(name="srtf"), ALICE).code == "not-allowed"
    assert station.ask(clients.SetShadow(name="srtf", parameters={"nonsense": 1})).code == "usage"
    assert station.desk.shadow.question() is None
