"""What the live page offers is what the controller takes: of whom, in which phase."""

from __future__ import annotations

import pytest

from cotenant.controller.api.changes import EVENTS
from cotenant.controller.api.job_settings import SETTABLE
from cotenant.controller.domain import CHANGEABLE, ChangeVerb, JobId, Phase
from cotenant.controller.submission.options import BY_KEY
from cotenant.controller.system.keys import Identity
from cotenant.controller.web.pages.changing import consequence
from cotenant.controller.wire import clients
from tests.controller.cli import replies
from tests.controller.station import ADMIN, ALICE, BOB, Station, run_one


@pytest.mark.parametrize("phase", list(Phase))
def test_each_change_that_means_something_has_a_consequence(phase: Phase) -> None:
    job = replies.job_view(phase=phase)
    for verb, phases in CHANGEABLE.items():
        assert phase not in phases or consequence(verb, job)


def test_all_that_can_be_asked_for() -> None:
    assert set(CHANGEABLE) == set(EVENTS)


@pytest.mark.parametrize("who", [ADMIN, ALICE, BOB], ids=lambda who: who.name)
@pytest.mark.parametrize("state", ["waits", "held", "loads", "runs", "ended"])
@pytest.mark.parametrize("verb", CHANGEABLE)
def test_a_change_is_offered_exactly_to_those_whom_the_controller_obeys(
    station: Station, who: Identity, state: str, verb: ChangeVerb
) -> None:
    """Alice's job; only the controller's answer decides whether an offer was right."""
    address = station.join("h1") if state not in ("waits", "held") else b""
    job_id = station.submit(ALICE, resumable=True)
    if state == "held":
        station.ask(clients.ChangeJobs(verb="hold", job_ids=(job_id,)), ALICE)
    elif state != "waits":
        run_one(station, address, job_id, until={"loads": "start", "runs": "step", "ended": "end"}[state])
    offered = station.ask(clients.ShowJob(job_id=job_id), who).job.verbs
    answer = station.ask(clients.ChangeJobs(verb=verb, job_ids=(job_id,)), who)
    assert (verb in offered) == isinstance(answer, clients.Done), (offered, answer)


@pytest.mark.parametrize("who", [ADMIN, ALICE, BOB], ids=lambda who: who.name)
def test_options_are_offered_to_those_who_may_set_them(station: Station, who: Identity) -> None:
    job_id = station.submit(ALICE, gpus_min=1, gpus_max=2, batch_size=8, priority=0)
    settable = station.ask(clients.ShowJob(job_id=job_id), who).job.settable
    answer = station.ask(clients.SetJobs(job_ids=(job_id,), changes={"name": "other"}), who)
    assert bool(settable) == isinstance(answer, clients.Done)
    if settable:
        assert set(settable) == set(SETTABLE) and set(settable) <= set(BY_KEY)
        assert (settable["priority"], settable["gpus"]) == (0, "1-2")


def test_of_a_job_that_runs_what_is_safe_is_offered_and_of_one_that_has_ended_nothing(
    station: Station,
) -> None:
    address = station.join("h1")
    job_id = station.submit(ALICE)
    run_one(station, address, job_id, until="step")
    settable = station.ask(clients.ShowJob(job_id=job_id), ALICE).job.settable
    assert set(settable) == {"time", "priority", "idle", "name", "notify"}
    run_one(station, address, job_id)
    assert station.ask(clients.ShowJob(job_id=job_id), ALICE).job.settable == {}


def test_the_controller_says_who_asks(station: Station) -> None:
    told = [station.ask(clients.GetStatus(), who) for who in (ADMIN, ALICE)]
    assert [(each.asker, each.asker_is_admin) for each in told] == [("root", True), ("alice", False)]


def test_explain_tells_first_how_a_job_has_its_devices_now(station: Station) -> None:
    address = station.join("h1")
    job_id = station.submit()
    run_one(station, address, job_id, until="step")
    found = station.ask(clients.Explain(job_id=JobId(job_id))).explanation
    placed = "when it was placed: next in fifo order and 1 free device is enough"
    assert found.lines[:2] == ("alone on its devices", placed) and found.lines_now >= 2
    assert found.reason == "alone on its devices" and found.reason_code == "holds-alone"
