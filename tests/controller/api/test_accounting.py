"""`usage`, `history`, `requeue` of ended jobs and `set`, asked of a real desk; and after a restart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cotenant.controller.domain import AttemptNo, Dependency, HostId, JobId, Launch, Phase
from cotenant.controller.domain import events as ev
from cotenant.controller.system.keys import Identity
from cotenant.controller.wire import clients
from tests.controller.station import ALICE, BOB, Station, job, run_one


def three(station: Station) -> list[JobId]:
    """Two of Alice's and one of Bob's have run, 10 s each, one after the other."""
    address = station.join()
    jobs = [
        station.submit(who, organisation=organisation)
        for who, organisation in ((ALICE, "vision"), (BOB, ""), (ALICE, "speech"))
    ]
    for job_id in jobs:
        run_one(station, address, job_id, until="step")
        station.tick(10.0)
        run_one(station, address, job_id)
    return jobs


def test_usage_adds_up_to_the_report_by_whatever_it_is_divided(stations: Callable[..., Station]) -> None:
    station = stations()
    three(station)
    held_s = station.ask(clients.GetReport()).report.held_device_s
    expected = {"user": ["alice", "bob"], "organisation": ["", "speech", "vision"], "kind": None}
    for by, names in expected.items():
        reply = station.ask(clients.GetUsage(by=by), ALICE)  # type: ignore[arg-type]
        assert sum(row.held_device_s for row in reply.rows) == pytest.approx(held_s)
        assert names is None or [row.name for row in reply.rows] == names
    rows = station.ask(clients.GetUsage()).rows
    assert [(row.name, row.jobs, row.attempts) for row in rows] == [("alice", 2, 2), ("bob", 1, 1)]
    assert [row.wait_s for row in rows] == [20.0, 10.0]
    assert station.ask(clients.GetUsage(since_s=0.0)).rows[0].held_device_s == pytest.approx(0.0)


def test_pages_of_usage_and_history_are_the_whole(stations: Callable[..., Station]) -> None:
    station = stations()
    jobs = three(station)
    first = station.ask(clients.GetUsage(page=1))
    second = station.ask(clients.GetUsage(page=1, after=first.next))
    assert (first.rows + second.rows, second.next) == (station.ask(clients.GetUsage()).rows, None)
    seen, after = [], 0
    for _ in jobs:
        reply = station.ask(clients.ListPastJobs(page=1, after=after))
        seen += [job.job_id for job in reply.jobs]
        after = reply.next
    assert (seen, after) == (jobs, 0)
    limited = station.ask(clients.ListPastJobs(limit=2))
    assert (len(limited.jobs), limited.more, limited.next) == (2, 1, 0)


def test_history_filters_as_queue_does_and_by_when_they_ended(stations: Callable[..., Station]) -> None:
    station = stations()
    jobs = three(station)
    waiting = station.submit(hold=True)
    station.ask(clients.ChangeJobs(verb="cancel", job_ids=(waiting,)))

    def found(**filters: object) -> list[JobId]:
        reply = station.ask(clients.ListPastJobs(**filters))  # type: ignore[arg-type]
        return [job.job_id for job in reply.jobs]

    assert found() == [*jobs, waiting]
    assert found(user="bob") == [jobs[1]]
    assert found(states=(Phase.CANCELLED,)) == [waiting]
    assert found(since_s=5.0) == [jobs[2], waiting]
    assert found(job_ids=(jobs[0],)) == [jobs[0]]
    (view,) = station.ask(clients.ListPastJobs(job_ids=(jobs[0],))).jobs
    assert (view.attempts, view.held_device_s, view.organisation) == (1, 10.0, "vision")


def test_an_ended_job_is_queued_again_and_the_answer_says_from_where(
    stations: Callable[..., Station],
) -> None:
    station = stations()
    jobs = three(station)
    (line,) = station.ask(clients.ChangeJobs(verb="requeue", job_ids=(jobs[0],)), ALICE).lines
    assert line == "job 1 (done) queues again as attempt 2, from its beginning: there is no save"
    assert station.ask(clients.ChangeJobs(verb="requeue", job_ids=(jobs[1],)), ALICE).code == "not-allowed"
    assert station.core.state.engine.jobs[jobs[0]].attempt.number == 2
    again = stations(wall_s=station.wall_s + station.time_s)
    job = again.core.state.engine.jobs[jobs[0]]
    assert (job.phase, job.attempt.number) == (Phase.LOADING, 2), "a restart comes to the same"


def test_one_whose_secrets_are_gone_is_not(stations: Callable[..., Station]) -> None:
    station = stations()
    launch = Launch(argv=("python",), workdir="/tmp", env={"API_TOKEN": "x"})
    job_id = station.submit(launch=launch)
    station.ask(clients.ChangeJobs(verb="cancel", job_ids=(job_id,)))
    refused = station.ask(clients.ChangeJobs(verb="requeue", job_ids=(job_id,)))
    assert (refused.code, "API_TOKEN" in refused.message) == ("refused", True)


def test_requeue_names_the_jobs_that_were_cancelled_because_of_it(stations: Callable[..., Station]) -> None:
    station = stations()
    parent = station.submit()

    def after(job_id: JobId, who: Identity = ALICE) -> JobId:
        return station.submit(who, after=(Dependency(job_id=job_id),))

    child, others = after(parent), after(parent, BOB)
    grandchild, twin = after(child), after(parent)
    station.ask(clients.ChangeJobs(verb="cancel", job_ids=(parent,)))
    assert {station.core.state.engine.jobs[each].phase for each in (child, grandchild)} == {Phase.CANCELLED}
    _, line = station.ask(clients.ChangeJobs(verb="requeue", job_ids=(parent, twin)), ALICE).lines[1:]
    assert line.endswith(f"not queued again: `cotenant requeue {child} {grandchild}` queues these too"), (
        others
    )
    lines = station.ask(clients.ChangeJobs(verb="requeue", job_ids=(child, grandchild)), ALICE).lines
    assert len(lines) == 2 and "queues again" in lines[0]


def test_options_are_set_and_stay_set_after_a_restart(stations: Callable[..., Station]) -> None:
    station = stations()
    job_id = station.submit(priority=-5)
    asked = clients.SetJobs(job_ids=(job_id,), changes={"priority": -1, "expect": 60.0, "time": None})
    (line,) = station.ask(asked, ALICE).lines
    assert line == "job 1: priority -5 -> -1, expect - -> 60"
    assert station.ask(asked, ALICE).lines == ("job 1: it is so already",)
    again = stations(wall_s=station.wall_s)
    job = again.core.state.engine.jobs[job_id]
    assert (job.spec.priority, job.spec.expected_s, job.estimate.remaining_s) == (-1, 60.0, 60.0)
    notes = [note.what for note in again.core.state.history.notes(job_id, 10)]
    assert notes == ["set"]


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"priority": 5}, "not-allowed", "up to 0, not for 5"),
        ({"priority": "high"}, "usage", "priority: Expected `int`, got `str`"),
        ({"priority": 5000}, "usage", "priority must be -1000 to 1000"),
        ({"user": "bob"}, "usage", "user cannot be set"),
        ({"gpus": 99}, "never-fits", "needs 99 devices"),
        ({"iterations": 0}, "usage", "iterations must be positive"),
        ({"class": "vip"}, "usage", "class: Invalid enum value"),
        ({"gpus": None}, "usage", "gpus: Expected `int`"),
        ({}, "usage", "nothing was to be set"),
    ],
)
def test_what_cannot_be_set_changes_nothing(
    stations: Callable[..., Station], changes: dict[str, str | int | None], code: str, says: str
) -> None:
    station = stations()
    station.join()
    station.submit()
    jobs = (station.submit(), station.submit())
    entries = station.journal.last_seq
    refused = station.ask(clients.SetJobs(job_ids=jobs, changes={**changes}), ALICE)
    assert (refused.code, says in refused.message) == (code, True), refused
    assert station.journal.last_seq == entries


def test_what_a_running_job_was_started_with_and_jobs_of_others_are_left_alone(
    stations: Callable[..., Station],
) -> None:
    station = stations()
    station.join()
    running, waiting = station.submit(), station.submit(BOB)
    for jobs, code in (
        ((running,), "refused"),
        ((waiting,), "not-allowed"),
        ((running, waiting), "not-allowed"),
    ):
        assert station.ask(clients.SetJobs(job_ids=jobs, changes={"mem": 100}), ALICE).code == code
    refused = station.ask(clients.SetJobs(job_ids=(running,), changes={"mem": 100}), ALICE)
    assert "its mem can be set while it waits; now only time, priority, idle, name, notify" in refused.message
    assert station.ask(clients.SetJobs(job_ids=(waiting,), changes={"priority": 5})).lines, "an admin may"


def test_the_time_limit_of_a_running_job_goes_down_by_its_owner_and_up_by_an_admin(
    stations: Callable[..., Station],
) -> None:
    station = stations()
    station.join()
    job_id = station.submit(time_limit_s=3600.0)

    def set_time(to_s: float | None, *who: Any) -> Any:
        return station.ask(clients.SetJobs(job_ids=(job_id,), changes={"time": to_s}), *who)

    station.tick(100.0)
    for longer_s in (7200.0, None):
        refused = set_time(longer_s, ALICE)
        assert (
            refused.code == "not-allowed" and "only an admin may lengthen its time limit" in refused.message
        )
    assert set_time(1800.0, ALICE).lines == (f"job {job_id}: time 3600 -> 1800",)
    for who in ((ALICE,), ()):
        refused = set_time(90.0, *who)
        assert (refused.code, "has run for 1m40s: a time limit of 1m30s" in refused.message) == (
            "refused",
            True,
        )
    assert set_time(7200.0).lines, "an admin may"
    assert set_time(None).lines
    assert set_time(600.0, ALICE).lines, "from none to one is shorter"
    again = stations(wall_s=station.wall_s)
    found = again.core.state.engine.jobs[job_id]
    assert (found.phase, found.spec.time_limit_s) == (Phase.LOADING, 600.0)
    assert [note.what for note in again.core.state.history.notes(job_id, 10)][:4] == ["set"] * 4
    again.time_s += 601.0
    again.core.happen(ev.AlarmRang())
    assert found.phase is Phase.STOPPING
    refused = again.ask(clients.SetJobs(job_ids=(job_id,), changes={"time": 7200.0}))
    assert refused.message == f"job {job_id} has reached its time limit and leaves its devices"


def test_name_messages_and_idle_rule_of_a_running_job_are_its_owners_to_change(
    stations: Callable[..., Station],
) -> None:
    station = stations()
    station.join()
    job_id = station.submit()
    changes: dict[str, str | int] = {"name": "b", "notify": "a@x.org,fail", "idle": "warn:1h", "priority": -2}
    (line,) = station.ask(clients.SetJobs(job_ids=(job_id,), changes={**changes}), ALICE).lines
    said = ("name job -> b", "notify - -> fail,a@x.org", "idle warn:30m -> warn:1h", "priority 0 -> -2")
    assert line == f"job {job_id}: {', '.join(said)}"
    wrong = station.ask(clients.SetJobs(job_ids=(job_id,), changes={"notify": "nap"}), ALICE)
    assert (wrong.code, "notify: must be of start, end" in wrong.message) == ("usage", True)
    (line,) = station.ask(clients.SetJobs(job_ids=(job_id,), changes={"notify": None}), ALICE).lines
    assert line == f"job {job_id}: notify fail,a@x.org -> -"


def test_an_arrays_number_is_its_tasks_that_wait_else_those_that_run(
    stations: Callable[..., Station],
) -> None:
    station = stations()
    station.join(devices=2)
    specs = tuple(job(job_id=JobId(f"new-{at}")) for at in range(3))
    ids = station.ask(clients.Submit(specs=specs, array_indices=(0, 1, 2)), ALICE).job_ids
    asked = clients.SetJobs(job_ids=(JobId("1"),), changes={"name": "x"})
    assert [line.split(":")[0] for line in station.ask(asked, ALICE).lines] == [f"job {ids[2]}"]
    station.ask(clients.ChangeJobs(verb="cancel", job_ids=ids[2:]), ALICE)
    assert [line.split(":")[0] for line in station.ask(asked, ALICE).lines] == [
        f"job {each}" for each in ids[:2]
    ]
    one = clients.SetJobs(job_ids=ids[1:2], changes={"time": 60.0})
    assert station.ask(one, ALICE).lines == ("job 1_1: time - -> 60",)


def test_the_number_of_devices_stays_that_of_a_save(stations: Callable[..., Station]) -> None:
    station = stations()
    address = station.join()
    job_id, other = station.submit(resumable=True), station.submit()
    run_one(station, address, job_id, until="step")
    host = HostId("h1")
    station.core.happen(ev.CheckpointDurable(job_id=job_id, attempt=AttemptNo(1), host_id=host, step=7))
    run_one(station, address, job_id)
    (line,) = station.ask(clients.ChangeJobs(verb="requeue", job_ids=(job_id,))).lines
    assert "queues again as attempt 2, from its save at step 7" in line
    assert station.core.state.engine.jobs[other].phase is Phase.LOADING
    refused = station.ask(clients.SetJobs(job_ids=(job_id,), changes={"gpus": 1, "expect": 5.0}))
    assert (refused.code, "a save at step 7" in refused.message) == ("refused", True)
