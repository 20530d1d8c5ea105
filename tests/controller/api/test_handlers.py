"""What command lines are answered: views, changes, refusals, who may do what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest

from cotenant.controller.api.arrivals import Arrivals
from cotenant.controller.api.changes import Changing
from cotenant.controller.api.etas import EtaRequests
from cotenant.controller.api.handlers import answers_of
from cotenant.controller.api.job_settings import JobSettings
from cotenant.controller.api.leading import LeadershipRequests
from cotenant.controller.api.past import AccountingRequests, ProfileRequests, TimelineRequests
from cotenant.controller.api.permissions import BURST, Rates
from cotenant.controller.api.queries import Queries, StatusRequests
from cotenant.controller.api.reservations import ReservationRequests
from cotenant.controller.api.shadow import ShadowRequests
from cotenant.controller.api.trees import TreeRequests
from cotenant.controller.domain import HostId, JobId, Launch
from cotenant.controller.notices import OwnerRequests
from cotenant.controller.policies import registry
from cotenant.controller.present.jobs import describe_left, left_text
from cotenant.controller.slurm.alloc.requests import AllocationRequests
from cotenant.controller.system.keys import Identity
from cotenant.controller.wire import Heartbeat, LogReply, ReadLog, clients
from tests.controller.station import ADMIN, ALICE, BOB, Station, job, run_one

AGENT = Identity(name="agent@h1", role="agent", uid=65534, gid=65534, host="h1")


def test_every_request_has_an_answer(station: Station) -> None:
    """But for those that may wait for one."""
    kinds = (
        Arrivals, Queries, Changing, ProfileRequests, EtaRequests, AccountingRequests, JobSettings,
        ShadowRequests, TimelineRequests, AllocationRequests, LeadershipRequests, ReservationRequests,
        OwnerRequests, TreeRequests, StatusRequests,
    )  # fmt: skip
    answered = answers_of(*map(object.__new__, kinds), station.notifier)
    waiting = {clients.WaitJobs, clients.ReadJobLog, clients.ForeseeArrival, clients.ForeseeWidths}
    waiting |= {clients.UseStream}
    assert {*answered, *waiting, clients.Stop} == set(get_args(clients.AnyRequest))


def refused(answer: Any, code: str, why: str) -> None:
    assert isinstance(answer, clients.Failure), answer
    assert answer.code == code, answer
    assert why in answer.message, answer


# --- Submitting ------------------------------------------------------------------------------------


def test_a_repeated_submission_gets_the_first_ones_numbers(stations: Callable[..., Station]) -> None:
    station = stations()
    request = clients.Submit(specs=(job(),), idempotency_key="k")
    first, again = station.post(request, ALICE), station.post(request, ALICE)
    station.settle()
    assert station.answers(first)[0].job_ids == station.answers(again)[0].job_ids == ("1",)
    assert station.ask(request, ALICE).job_ids == ("1",)
    assert station.ask(request, BOB).job_ids == ("2",), "a key is its user's own"
    station = stations()
    assert station.ask(request, ALICE).job_ids == ("1",)
    assert len(station.core.state.engine.jobs) == 2


def test_what_can_never_run_here_is_refused(station: Station) -> None:
    station.join("h1", devices=2)
    refused(station.ask(clients.Submit(specs=(job(gpus_min=3, gpus_max=3),))), "never-fits", "3 devices")
    refused(station.ask(clients.Submit(specs=(job(gpu_type="H200"),))), "never-fits", "H200")
    refused(station.ask(clients.Submit(specs=(job(memory_mib=9_000),))), "never-fits", "9000 MiB")
    assert not station.core.state.engine.jobs


def test_what_would_fit_if_hosts_could_reach_each_other_is_told_so(station: Station) -> None:
    station.join("h1", devices=2)
    station.join("h2", devices=2)
    for gpus, asked_for in ((4, True), (5, False)):
        answer = station.ask(clients.Submit(specs=(job(gpus_min=gpus, gpus_max=gpus),)))
        refused(answer, "never-fits", f"needs {gpus} devices")
        assert ("agent.address" in answer.hint) is asked_for, answer


def test_before_any_host_has_joined_jobs_are_accepted_with_a_note(station: Station) -> None:
    answer = station.ask(clients.Submit(specs=(job(gpus_min=64, gpus_max=64),)))
    assert "no host has joined yet" in answer.notes[0]


def test_device_memory_that_nothing_holds_is_said_to_be_planned_only(station: Station) -> None:
    station.join("h1", devices=2)
    kinds = {device.kind for device in station.core.state.engine.hosts[HostId("h1")].report.devices}
    said = [station.ask(clients.Submit(specs=(job(memory_mib=mib),))).notes for mib in (500, None)]
    assert [any("on CPU slots --mem is planned with" in note for note in notes) for notes in said] == [
        kinds == {"cpu"}, False,
    ]  # fmt: skip


def test_a_dry_run_changes_nothing(station: Station) -> None:
    station.join("h1")
    entries = station.journal.last_seq
    assert station.ask(clients.Submit(specs=(job(),), dry_run=True)).job_ids == ()
    refused(
        station.ask(clients.Submit(specs=(job(gpus_min=9, gpus_max=9),), dry_run=True)), "never-fits", "9"
    )
    assert station.journal.last_seq == entries


# --- Reading ---------------------------------------------------------------------------------------


def test_a_listing_is_filtered_limited_and_says_what_is_left_out(station: Station) -> None:
    for who in (ALICE, BOB, ALICE):
        station.submit(who)
    station.ask(clients.ChangeJobs(verb="cancel", job_ids=(JobId("1"),)))

    def listed(**filters: Any) -> list[str]:
        return [view.job_id for view in station.ask(clients.ListJobs(**filters)).jobs]

    assert listed() == ["2", "3"]
    assert listed(include_ended=True) == ["1", "2", "3"]
    assert listed(user="alice") == ["3"]
    assert listed(states=("cancelled", "running")) == ["1"], "a state in which jobs have ended lists those"
    assert listed(job_ids=("1",)) == ["1"], "a job that is named is shown, ended or not"
    answer = station.ask(clients.ListJobs(include_ended=True, limit=2))
    assert len(answer.jobs) == 2 and answer.more == 1
    refused(station.ask(clients.ListJobs(job_ids=(JobId("9"),))), "not-found", "no job 9")


def test_a_listing_that_would_be_too_large_is_cut_and_says_so(station: Station) -> None:
    specs = tuple(job("\N{GRINNING FACE}" * 128, job_id=JobId(f"new-{at}")) for at in range(5_000))
    station.ask(clients.Submit(specs=specs))
    answer = station.ask(clients.ListJobs())
    assert len(answer.jobs) > 1_000 and len(answer.jobs) + answer.more == 5_000


def test_pages_show_each_job_once_whatever_ends_and_comes_between_them(station: Station) -> None:
    for _ in range(5):
        station.submit()
    first = station.ask(clients.ListJobs(page=2))
    assert [view.job_id for view in first.jobs] == ["1", "2"] and (first.more, first.next) == (3, 2)
    station.ask(clients.ChangeJobs(verb="cancel", job_ids=(JobId("2"), JobId("3"))))
    station.submit()
    second = station.ask(clients.ListJobs(page=2, after=first.next))
    assert [view.job_id for view in second.jobs] == ["4", "5"] and (second.more, second.next) == (1, 5)
    third = station.ask(clients.ListJobs(page=2, after=second.next))
    assert [view.job_id for view in third.jobs] == ["6"] and (third.more, third.next) == (0, 0)
    whole = station.ask(clients.ListJobs(page=4))
    assert len(whole.jobs) == 4 and whole.next == 0, "nothing is left for another page"


def test_the_last_page_of_a_limited_listing_says_what_it_left_out(station: Station) -> None:
    for _ in range(5):
        station.submit()
    answer = station.ask(clients.ListJobs(page=2, limit=3))
    assert (len(answer.jobs), answer.next) == (2, 2)
    answer = station.ask(clients.ListJobs(page=2, limit=1, after=2))
    assert (len(answer.jobs), answer.more, answer.next) == (1, 2, 0)


def test_a_page_that_would_be_too_large_goes_on_where_it_was_cut(station: Station) -> None:
    specs = tuple(job("\N{GRINNING FACE}" * 128, job_id=JobId(f"new-{at}")) for at in range(5_000))
    station.ask(clients.Submit(specs=specs))
    seen, answer = 0, station.ask(clients.ListJobs(page=5_000))
    while answer.next:
        seen += len(answer.jobs)
        answer = station.ask(clients.ListJobs(page=5_000, after=answer.next))
    assert seen < 5_000 and seen + len(answer.jobs) == 5_000


def test_a_waiting_jobs_reason_is_the_present_one(station: Station) -> None:
    address = station.join("h1")
    for _ in range(3):
        station.submit()
    (_, second, third) = station.ask(clients.ListJobs()).jobs
    assert "needs 1 device, and 0 are free" in second.reason
    assert third.reason == "behind job 2" and third.reason_jobs == ((11, 12),)
    station.submit()
    (*_, last) = station.ask(clients.ListJobs()).jobs
    assert last.reason == "behind job 2 and 1 more", "the first in the queue, and how many others"
    station.ask(clients.ChangeJobs(verb="cancel", job_ids=(last.job_id,)))
    run_one(station, address, JobId("1"))
    (second, third) = station.ask(clients.ListJobs()).jobs
    assert second.phase == "loading" and "needs 1 device, and 0 are free" in third.reason


def test_times_of_a_running_job_include_the_present_phase(station: Station) -> None:
    address = station.join("h1")
    station.tick(2.0)
    job_id = station.submit()
    station.time_s += 3.0
    run_one(station, address, job_id, until="step")
    station.time_s += 5.0
    (view,) = station.ask(clients.ListJobs()).jobs
    assert (view.wait_s, view.load_s, view.run_s) == (0.0, 3.0, 5.0)


def test_a_shared_device_shows_on_both_jobs_and_in_both_histories(stations: Callable[..., Station]) -> None:
    station = stations(policy="castor")
    address = station.join("h1")
    fields: dict[str, Any] = {"batch_size": 8, "memory_mib": 2_000, "expected_s": 1_000.0, "resumable": True}
    first = station.submit(**fields)
    run_one(station, address, first, until="step")
    second = station.submit(**{**fields, "expected_s": 900.0})
    views = {view.job_id: view for view in station.ask(clients.ListJobs()).jobs}
    if views[second].phase != "loading":
        pytest.skip("castor did not share these two")
    assert views[first].co_tenants == (second,) and views[second].co_tenants == (first,)
    for job_id, partner in ((first, second), (second, first)):
        (attempt,) = station.ask(clients.ShowJob(job_id=job_id)).attempts
        assert attempt.co_tenants == (partner,)
    lines = station.ask(clients.Explain(job_id=second)).explanation.lines
    assert any("sharing with job 1 pays" in line for line in lines)


def test_others_see_a_job_but_not_its_environment(station: Station) -> None:
    launch = Launch(argv=("x",), workdir="/", env={"DATA": "/private"})
    station.ask(clients.Submit(specs=(job(launch=launch),)), ALICE)
    mine = station.ask(clients.ShowJob(job_id=JobId("1")), ALICE)
    theirs = station.ask(clients.ShowJob(job_id=JobId("1")), BOB)
    assert mine.job.spec.launch.env == {"DATA": "/private"} and theirs.job.spec.launch.env == {}


def test_explain_tells_a_job_that_waits_what_change_would_help(station: Station) -> None:
    station.join("h1", devices=2)
    first = station.submit()
    wide = station.submit(gpus_min=2, gpus_max=2)
    assert station.ask(clients.Explain(job_id=first)).explanation.ahead == ()
    ahead = station.ask(clients.Explain(job_id=wide)).explanation.ahead
    assert ahead[-1] == "it would fit on what is free now after `cotenant set 2 gpus=1`"


def test_explain_tells_the_present_first_then_what_was_decided(station: Station) -> None:
    address = station.join("h1")
    job_id = station.submit()
    run_one(station, address, job_id)
    lines = station.ask(clients.Explain(job_id=job_id)).explanation.lines
    assert lines[0] == "finished"
    assert [line.partition(": ")[2] for line in lines[1:]] == [
        "attempt 1 finished",
        "place on h1/0: next in fifo order and 1 free device is enough",
    ]
    decisions = station.ask(clients.GetDecisions()).decisions
    assert [decision.event for decision in decisions] == ["AttemptEnded", "JobArrived"]


def test_an_arrays_number_is_a_hint_where_one_job_is_asked_for(station: Station) -> None:
    tasks = tuple(job(job_id=JobId(f"new-{at}")) for at in range(2))
    station.ask(clients.Submit(specs=tasks, array_indices=(0, 1)))
    answer = station.ask(clients.ShowJob(job_id=JobId("1")))
    refused(answer, "not-found", "no job 1")
    assert "1_0" in answer.hint


def test_nodes_show_who_is_where_and_what_is_planned(station: Station) -> None:
    station.join("h1", devices=2)
    station.submit(memory_mib=3_000)
    (node,) = station.ask(clients.ListNodes()).nodes
    told = [(each.device_id, each.jobs, each.planned_mib) for each in node.devices]
    assert told == [("h1/0", ("1",), 3_000), ("h1/1", (), 0)]
    assert node.heartbeat_age_s == 0.0 and node.state == "ok"


def test_status_counts(station: Station) -> None:
    station.join("h1", devices=2)
    station.submit()
    status = station.ask(clients.GetStatus())
    assert status.jobs_by_phase == {"loading": 1} and (status.hosts, status.devices) == (1, 2)
    assert status.counters["events"] == 3 and status.policy == "fifo" and status.version == "1.2.3"


# --- Changing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["cancel", "hold", "release", "checkpoint"])
def test_a_user_touches_only_their_own_jobs(station: Station, verb: Any) -> None:
    job_id = station.submit(ALICE)
    entries = station.journal.last_seq
    answer = station.ask(clients.ChangeJobs(verb=verb, job_ids=(job_id,)), BOB)
    refused(answer, "not-allowed", f"you cannot {verb} job 1: it belongs to alice")
    assert station.journal.last_seq == entries
    assert station.journal.audit()[0][1:4] == ("bob", 1002, "not-allowed")


@pytest.mark.parametrize(
    "request_",
    [
        clients.ChangeJobs(verb="preempt", job_ids=(JobId("1"),)),
        clients.ChangeNode(verb="drain", host_id=HostId("h1")),
        clients.SetPolicy(name="sjf"),
        clients.Stop(),
    ],
    ids=lambda each: type(each).__name__,
)
def test_some_things_are_for_admins(station: Station, request_: Any) -> None:
    station.join("h1")
    station.submit(ALICE)
    refused(station.ask(request_, ALICE), "not-allowed", "only admins may")
    assert station.stopped is False


def test_an_agents_key_asks_nothing(station: Station) -> None:
    refused(station.ask(clients.ListJobs(), AGENT), "not-allowed", "an agent's")


def test_a_batch_with_one_foreign_job_changes_nothing(station: Station) -> None:
    mine, theirs = station.submit(ALICE), station.submit(BOB)
    answer = station.ask(clients.ChangeJobs(verb="cancel", job_ids=(mine, theirs)), ALICE)
    refused(answer, "not-allowed", "belongs to bob")
    assert station.core.state.engine.jobs[mine].phase == "queued"


def test_every_change_is_in_the_audit_log(station: Station) -> None:
    station.join("h1")
    job_id = station.submit(ALICE)
    station.ask(clients.ChangeJobs(verb="cancel", job_ids=(job_id,)), ALICE)
    station.ask(clients.ChangeNode(verb="drain", host_id=HostId("h1")))
    station.ask(clients.SetPolicy(name="srtf"))
    log = [(who, verb, target) for _, who, _, verb, target, _ in reversed(station.journal.audit())]
    assert log == [
        ("alice", "submit", "1"),
        ("alice", "cancel", "1"),
        ("root", "drain", "h1"),
        ("root", "policy", "srtf"),
    ]


@pytest.mark.parametrize(
    ("verb", "why"),
    [
        ("release", "job 1 is loading: only held jobs can be released"),
        ("hold", "job 1 is loading: only waiting jobs can be held"),
        ("checkpoint", "job 1 is loading: only running jobs can be saved"),
        (
            "preempt",
            "job 1 cannot resume: no optimizer of torch was seen to step in it, and it has not said so",
        ),
    ],
)
def test_a_verb_that_means_nothing_now_says_why(station: Station, verb: Any, why: str) -> None:
    station.join("h1")
    job_id = station.submit()
    refused(station.ask(clients.ChangeJobs(verb=verb, job_ids=(job_id,))), "refused", why)


def test_a_job_that_saves_by_itself_is_not_saved_while_it_goes_on(station: Station) -> None:
    """Its library cannot: the word that it can resume is its user's."""
    address = station.join("h1")
    job_id = station.submit(resumable=True)
    run_one(station, address, job_id, until="step", says_no=True)
    answer = station.ask(clients.ChangeJobs(verb="checkpoint", job_ids=(job_id,)))
    refused(answer, "refused", "job 1 saves by itself when it is asked to leave, and cannot be saved before")
    assert station.ask(clients.ChangeJobs(verb="preempt", job_ids=(job_id,))).lines == (
        "job 1 saves its state and makes room",
    )


def test_ended_jobs_are_left_alone_and_the_others_are_not(station: Station) -> None:
    one, two = station.submit(), station.submit()
    station.ask(clients.ChangeJobs(verb="cancel", job_ids=(one,)))
    answer = station.ask(clients.ChangeJobs(verb="cancel", job_ids=(one, two)))
    assert answer.lines == ("job 1 has already ended (cancelled)", "job 2 is cancelled")


def test_hold_and_release(station: Station) -> None:
    job_id = station.submit(ALICE)
    station.ask(clients.ChangeJobs(verb="hold", job_ids=(job_id,)), ALICE)
    station.join("h1")
    assert station.core.state.engine.jobs[job_id].phase == "held"
    station.ask(clients.ChangeJobs(verb="release", job_ids=(job_id,)), ALICE)
    assert station.core.state.engine.jobs[job_id].phase == "loading"


def test_a_host_that_answers_cannot_be_declared_lost(station: Station) -> None:
    address = station.join("h1")
    lost = clients.ChangeNode(verb="lost", host_id=HostId("h1"))
    refused(station.ask(lost), "refused", "its jobs would run twice")
    for _ in range(8):
        station.tick(2.0)
    assert station.ask(lost).lines == ("host h1 is lost",)
    station.agent_says(address, Heartbeat(beat=1, session="s1"))
    assert station.core.state.engine.hosts[HostId("h1")].lost, "it has to join again"


def test_an_unknown_policy_or_parameter_says_what_there_is(station: Station) -> None:
    refused(station.ask(clients.SetPolicy(name="best")), "usage", "there are fifo")
    refused(station.ask(clients.SetPolicy(name="fifo", parameters={"x": 1})), "usage", "no parameter x")
    assert station.ask(clients.GetPolicy()).current.policy == "fifo"


def test_a_change_of_policy_says_what_is_different_now(station: Station) -> None:
    def lines(name: str, **parameters: Any) -> tuple[str, ...]:
        found: tuple[str, ...] = station.ask(clients.SetPolicy(name=name, parameters=parameters)).lines
        return found

    assert lines("srtf") == ("policy is srtf (it was fifo)",)
    assert lines("srtf") == ("policy is srtf, as before; no parameter has changed",)
    first = registry.defaults("interval")["interval_s"]
    assert lines("interval", interval_s=90.0) == (
        "policy is interval (it was srtf)",
        f"  interval_s: {first:g} -> 90",
    )
    assert lines("interval") == (
        "policy is interval, as before",
        f"  interval_s: 90 -> {first:g} (its default)",
    )


def test_what_is_left_and_expected_is_told_of_open_jobs_only(station: Station) -> None:
    address = station.join("h1")
    job_id = station.submit(ALICE)
    run_one(station, address, job_id)
    job = station.ask(clients.ShowJob(job_id=job_id)).job
    assert job.ended_at is not None
    assert (job.left_s, job.left_source, job.expected_load_s) == (None, None, None)


def test_a_guess_is_told_as_one(station: Station) -> None:
    station.join("h1")
    guessed, known = station.submit(ALICE), station.submit(ALICE, expected_s=40.0)
    jobs = [station.ask(clients.ShowJob(job_id=job_id)).job for job_id in (guessed, known)]
    assert [job.left_s for job in jobs] == [None, 40.0]
    assert jobs[0].left == clients.LeftView(
        likely_s=300.0, low_s=300.0 / 9.0, high_s=2700.0, source="unknown length", is_guess=True
    )
    assert jobs[1].left == clients.LeftView(
        likely_s=40.0, low_s=40.0, high_s=40.0, source="user", is_guess=False
    )
    shown = [(left_text(job), describe_left(job)) for job in jobs]
    assert shown == [
        ("5 min (guess)", "about 5 min (a guess: nothing is known yet)"),
        ("40s", "40s of training (as its user expects)"),
    ]


def test_stop_is_answered_before_it_happens(station: Station) -> None:
    client = station.post(clients.Stop())
    assert (station.stopped, station.answers(client)) == (False, [])
    station.settle()
    assert isinstance(station.answers(client)[0], clients.Done)
    assert station.stopped


# --- Waiting and logs ------------------------------------------------------------------------------


def test_waiting_ends_with_the_job(station: Station) -> None:
    address = station.join("h1")
    job_id = station.submit()
    client = station.post(clients.WaitJobs(job_ids=(job_id,), timeout_s=50.0))
    station.tick(2.0)
    assert station.answers(client) == []
    run_one(station, address, job_id)
    assert station.answers(client)[0].jobs[0].phase == "done"


def test_waiting_for_the_first_ends_with_it_and_names_it_alone(station: Station) -> None:
    address = station.join("h1", devices=1)
    jobs = station.submit(), station.submit()
    client = station.post(clients.WaitJobs(job_ids=jobs, timeout_s=50.0, first=True))
    station.tick(2.0)
    assert station.answers(client) == []
    run_one(station, address, jobs[0])
    assert [job.job_id for job in station.answers(client)[0].jobs] == [jobs[0]]
    nobody = station.post(clients.WaitJobs(job_ids=jobs[1:], timeout_s=3.0, first=True))
    station.tick(4.0)
    assert station.answers(nobody)[0].jobs == ()


def test_waiting_ends_with_its_time(station: Station) -> None:
    job_id = station.submit()
    client = station.post(clients.WaitJobs(job_ids=(job_id,), timeout_s=3.0))
    station.tick(2.0)
    assert station.answers(client) == []
    station.tick(2.0)
    assert station.answers(client)[0].jobs[0].phase == "queued"


def test_a_repeated_question_is_answered_once_and_does_not_wait_longer(station: Station) -> None:
    station.join("h1", devices=1)
    jobs = (station.submit(), station.submit())
    bodies: tuple[clients.AnyRequest, ...] = (
        clients.WaitJobs(job_ids=jobs, timeout_s=9.0),
        clients.ReadJobLog(job_id=jobs[0], wait_s=9.0),
        clients.ReadJobLog(job_id=jobs[1], wait_s=9.0),
    )
    for _ in range(12):
        for request_id, body in enumerate(bodies):
            station.desk.ask(b"patient", ALICE, clients.Request(request_id=request_id, body=body))
        station.tick(2.0)
        if len(station.answers(b"patient")) >= 2:
            break
    answered = sorted(answer.request_id for answer in station.answers(b"patient"))
    assert answered == [0, 2], (
        "the wait and the log of the waiting job; the agent is asked once for the other"
    )
    assert len(station.told(b"agent-h1", ReadLog)) == 1


def test_a_log_is_read_where_it_is(station: Station) -> None:
    address = station.join("h1", devices=2)
    job_id = station.submit(ALICE, gpus_min=2, gpus_max=2)
    request = clients.ReadJobLog(job_id=job_id, rank=1, offset=7, limit=100, wait_s=5.0)
    client = station.post(request, ALICE)
    (read,) = station.told(address, ReadLog)
    assert (read.attempt, read.rank, read.offset, read.limit, read.wait_s) == (1, 1, 7, 100, 5.0)
    assert station.answers(client) == []
    station.agent_says(
        address, LogReply(request=read.request, data=b"hello", next_offset=12, at_end=True, closed=False)
    )
    (part,) = station.answers(client)
    assert (part.data, part.next_offset, part.attempts, part.ranks, part.closed) == (
        b"hello",
        12,
        (1,),
        2,
        False,
    )


def test_another_host_cannot_answer_for_it(station: Station) -> None:
    address = station.join("h1")
    other = station.join("h2")
    job_id = station.submit()
    client = station.post(clients.ReadJobLog(job_id=job_id))
    (read,) = station.told(address, ReadLog)
    station.agent_says(
        other, LogReply(request=read.request, data=b"lies", next_offset=4, at_end=True, closed=True)
    )
    assert station.answers(client) == []


def test_a_lost_hosts_part_is_named_as_missing(station: Station) -> None:
    station.join("h1")
    job_id = station.submit()
    station.gone.add(b"agent-h1")
    part = station.ask(clients.ReadJobLog(job_id=job_id))
    assert part.missing == "host h1 is not connected" and not part.closed


def test_an_agent_that_does_not_answer_is_not_waited_for_for_ever(station: Station) -> None:
    station.join("h1")
    client = station.post(clients.ReadJobLog(job_id=station.submit(), wait_s=1.0))
    for _ in range(6):
        station.tick(2.0)
    assert station.answers(client)[0].missing == "host h1 does not answer"


def test_logs_of_a_job_that_has_not_started_are_waited_for(station: Station) -> None:
    job_id = station.submit()
    client = station.post(clients.ReadJobLog(job_id=job_id, wait_s=20.0))
    station.tick(2.0)
    assert station.answers(client) == []
    address = station.join("h1")
    assert len(station.told(address, ReadLog)) == 1
    never = station.submit()
    station.ask(clients.ChangeJobs(verb="cancel", job_ids=(never,)))
    part = station.ask(clients.ReadJobLog(job_id=never))
    assert part.closed and part.missing == "it never started"


def test_an_agent_that_has_not_made_the_log_yet_is_asked_again(station: Station) -> None:
    address = station.join("h1")
    client = station.post(clients.ReadJobLog(job_id=station.submit(), wait_s=20.0))

    def agent_answers(missing: str, data: bytes) -> None:
        read = station.told(address, ReadLog)[-1]
        end = len(data)
        station.agent_says(
            address,
            LogReply(
                request=read.request, data=data, next_offset=end, at_end=True, closed=False, missing=missing
            ),
        )

    agent_answers("no such attempt here", b"")
    assert station.answers(client) == []
    station.tick(0.5)
    assert len(station.told(address, ReadLog)) == 2
    agent_answers("", b"first line")
    assert station.answers(client)[0].data == b"first line"


def test_logs_are_their_owners(station: Station) -> None:
    job_id = station.submit(ALICE)
    refused(station.ask(clients.ReadJobLog(job_id=job_id), BOB), "not-allowed", "read the log of job 1")
    assert isinstance(station.ask(clients.ReadJobLog(job_id=job_id), ADMIN), clients.LogPart)


@pytest.mark.parametrize(("attempt", "rank"), [(2, 0), (1, 1), (1, -1)])
def test_there_is_no_such_log(station: Station, attempt: int, rank: int) -> None:
    station.join("h1")
    job_id = station.submit()
    answer = station.ask(clients.ReadJobLog(job_id=job_id, attempt=attempt, rank=rank))
    refused(answer, "not-found", "job 1 has")


# --- Bounds ----------------------------------------------------------------------------------------


def test_a_reader_has_a_few_questions_open_at_most(station: Station) -> None:
    station.join("h1")
    job_id = station.submit()
    for request_id in range(20):
        request = clients.Request(request_id=request_id, body=clients.ReadJobLog(job_id=job_id))
        station.desk.ask(b"greedy", ADMIN, request)
    station.settle()
    failures = [a for a in station.answers(b"greedy") if isinstance(a, clients.Failure)]
    assert len(failures) == 12 and "too many logs" in failures[0].message


def test_a_users_rate_is_bounded_and_refills() -> None:
    rates = Rates(per_second=2.0, burst=3.0)
    assert [rates.allow("alice", 0.0, 1) for _ in range(4)] == [True, True, True, False]
    assert rates.allow("bob", 0.0, 1)
    assert [rates.allow("alice", 1.0, 1) for _ in range(3)] == [True, True, False]


def test_a_flood_of_one_user_is_refused_and_others_are_heard(station: Station) -> None:
    whole = clients.Submit(specs=tuple(job(job_id=JobId(f"new-{at}")) for at in range(int(BURST))))
    assert isinstance(station.ask(whole, ALICE), clients.Submitted)
    refused(station.ask(clients.ListJobs(), ALICE), "refused", "too many requests")
    assert isinstance(station.ask(clients.ListJobs(limit=1), BOB), clients.Jobs)
    assert isinstance(station.ask(clients.ListJobs(limit=1), ADMIN), clients.Jobs)
