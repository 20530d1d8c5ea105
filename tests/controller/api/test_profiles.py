"""Kept profiles over the wire: reported by an agent, journalled, read back, shown and forgotten by whom it
belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import asdict, replace

from cotenant.controller.domain import HostId, JobId, Phase
from cotenant.controller.domain import events as ev
from cotenant.controller.performance import Profile, ProfilePoint
from cotenant.controller.wire import agents, clients, profile_view
from tests.controller.station import ADMIN, ALICE, BOB, Station, run_one

MEASURED = Profile(
    points=(ProfilePoint(sub_batch=8, accumulation_steps=1, step_s=2.0, memory_mib=300.0),),
    duty_cycle=0.5,
    source="in place",
)


def measured(
    station: Station,
    address: bytes,
    who: Any = ALICE,
    code: str = "c0de",
    meanwhile: Callable[[], object] = lambda: None,
) -> JobId:
    """A job of theirs runs and is profiled."""
    job_id = station.submit(who, code_sha256=code, batch_size=8)
    run_one(station, address, job_id, until="step")
    meanwhile()
    job = station.core.state.engine.jobs[job_id]
    learned = ev.ProfileLearned(
        job_id=job_id, profile=MEASURED, attempt=job.attempt.number, host_id=HostId("h1"), device_type="cpu"
    )
    sequence = station.journal.reports()[HostId("h1")] + 1
    assert station.agent_says(address, agents.Report(sequence=sequence, event=learned))
    return job_id


def keys(station: Station, who: Any) -> list[str]:
    return [known.key for known in station.ask(clients.ListProfiles(), who).profiles]


def test_a_user_sees_and_forgets_their_own_and_an_admin_all(station: Station) -> None:
    address = station.join("h1", devices=2)
    measured(station, address, ALICE)
    measured(station, address, BOB)
    [hers], [his] = keys(station, ALICE), keys(station, BOB)
    assert hers != his, "the same command of two users is two kinds"
    kinds = {known.kind for known in station.ask(clients.ListProfiles(), ADMIN).profiles}
    assert len(kinds) == 2 and "" not in kinds
    assert keys(station, ADMIN) == [hers, his]
    answer = station.ask(clients.ForgetProfiles(keys=(his,)), ALICE)
    assert isinstance(answer, clients.Failure) and answer.code == "not-found"
    assert station.ask(clients.ForgetProfiles(keys=(hers,)), ALICE).lines == (f"profile {hers} is forgotten",)
    assert keys(station, ADMIN) == [his]
    assert station.ask(clients.ForgetProfiles(), ALICE).lines == ()
    station.ask(clients.ForgetProfiles(), ADMIN)
    assert keys(station, ADMIN) == []


def test_what_was_learned_and_forgotten_is_read_back_from_the_journal(
    stations: Callable[..., Station],
) -> None:
    station = stations()
    address = station.join("h1", devices=3)
    measured(station, address, ALICE)
    measured(station, address, ALICE, code="beef")
    first, second = keys(station, ALICE)
    station.ask(clients.ForgetProfiles(keys=(first,)), ALICE)
    station = stations()
    [known] = station.ask(clients.ListProfiles(), ALICE).profiles
    assert (known.key, known.device_type, known.user) == (second, "cpu", "alice")
    assert asdict(profile_view(MEASURED)).items() <= asdict(known).items()


def test_show_has_the_jobs_profile_and_says_whether_it_was_given(station: Station) -> None:
    address = station.join("h1", devices=2)
    job_id = measured(station, address)
    shown = station.ask(clients.ShowJob(job_id=job_id), ALICE).job
    assert shown.profile == profile_view(MEASURED) and not shown.profile_given
    like = station.submit(ALICE, code_sha256="c0de", batch_size=8)
    shown = station.ask(clients.ShowJob(job_id=like), ALICE).job
    assert shown.profile == profile_view(MEASURED) and shown.profile_given


def test_what_waits_since_before_gets_the_profile_of_its_like(station: Station) -> None:
    address, waiting = station.join("h1", devices=1), list[JobId]()

    def submit() -> None:
        waiting.append(station.submit(ALICE, code_sha256="c0de", batch_size=8))
        waiting.append(station.submit(ALICE, code_sha256="beef", batch_size=8))

    measured(station, address, meanwhile=submit)
    like, other = (station.ask(clients.ShowJob(job_id=each), ALICE).job for each in waiting)
    assert like.phase is Phase.QUEUED and like.profile == profile_view(MEASURED) and like.profile_given
    assert other.profile is None


def test_a_job_is_submitted_with_what_a_view_shows() -> None:
    assert profile_view(MEASURED).as_profile() == replace(MEASURED, throughput=None)


def test_the_list_says_how_long_a_profile_takes_here(station: Station) -> None:
    reply = station.ask(clients.ListProfiles(), ALICE)
    assert (reply.profile_s, reply.more) == (0.0, 0) and reply.load_s > 0
