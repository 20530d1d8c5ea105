"""Profiles in the controller: who is measured, what follows from it, what is kept for the next job, and for
whom."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.domain import (
    AttemptNo,
    Capabilities,
    ExitVerdict,
    HostId,
    JobId,
    StartAttempt,
    StopAttempt,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.knowledge.profiles import PROFILES_MAX, Profiles, StoredProfile, base_key, key_of
from cotenant.controller.performance import Profile
from tests.controller.building import Desk, profile, report, spec

T_PROF_S = 60.0
CODE = "c0de" * 16
MEASURED = profile(8, (1, 2.0, 300.0), (2, 2.2, 200.0), duty=0.4, source="in place")


def desk(policy: str = "fifo", *hosts: Any, profile_s: float = T_PROF_S) -> Desk:
    """A desk whose engine profiles."""
    return Desk(policy, *hosts, profile_s=profile_s)


def learned(desk: Desk, job_id: int | str, measured: Profile = MEASURED, **more: Any) -> ev.ProfileLearned:
    attempt = AttemptNo(desk.job(job_id).attempt.number)
    fields: dict[str, Any] = {"device_type": "cpu", "host_id": HostId("a"), "attempt": attempt, **more}
    return ev.ProfileLearned(job_id=JobId(str(job_id)), profile=measured, **fields)


def starts(desk: Desk) -> list[StartAttempt]:
    return [command for command in desk.commands if isinstance(command, StartAttempt)]


def runs(desk: Desk, job_id: int | str, **fields: Any) -> None:
    """Submitted, placed, and past its first step."""
    desk.submit(job_id, **fields)
    step(desk, job_id)


def step(desk: Desk, job_id: int | str, *, accumulates: bool = True) -> None:
    job = desk.job(job_id)
    for host_id in job.attempt.hosts_left:
        names = {"job_id": job.job_id, "attempt": job.attempt.number, "host_id": host_id}
        desk.tell(
            ev.CapabilitiesSeen(
                **names, resumable=True, capabilities=Capabilities(accumulates=accumulates), step=0
            )
        )
        desk.tell(ev.FirstStepDone(**names, step=1), after_s=1.0)


def ends(desk: Desk, job_id: int | str, outcome: Any = "finished") -> None:
    job = desk.job(job_id)
    for host_id in job.attempt.hosts_left:
        desk.tell(
            ev.AttemptEnded(
                job_id=job.job_id,
                attempt=job.attempt.number,
                host_id=host_id,
                verdict=ExitVerdict(outcome=outcome),
            ),
            1.0,
        )


LIKE: dict[str, Any] = {"argv": ("python", "train.py"), "code_sha256": CODE, "batch_size": 8}

# --- Who is measured ------------------------------------------------------------------------------


def test_the_first_attempt_alone_is_profiled_for_t_prof() -> None:
    made = desk()
    made.submit(1, **LIKE)
    assert [each.profile_s for each in starts(made)] == [T_PROF_S]


@pytest.mark.parametrize("more", [{"profiling": "never"}, {"profile": MEASURED}])
def test_a_job_that_says_never_or_brings_its_profile_is_not(more: dict[str, Any]) -> None:
    made = desk()
    made.submit(1, **LIKE, **more)
    assert [each.profile_s for each in starts(made)] == [0.0]


def test_a_second_attempt_is_not_measured() -> None:
    made = desk()
    runs(made, 1, **LIKE)
    made.tell(ev.PreemptRequested(job_id=JobId("1"), by="root"))
    ends(made, 1, "stopped")
    step_ = starts(made)
    assert [(each.attempt, each.profile_s) for each in step_] == [(2, 0.0)]


def test_a_job_that_starts_beside_another_is_not_measured() -> None:
    made = desk("castor")
    runs(made, 1, memory_mib=300, expected_s=1000.0, profile=profile(8, (1, 1.0, 300.0), duty=0.2))
    made.submit(2, memory_mib=300, expected_s=100.0)
    assert made.phase(2) == "loading" and made.engine.partners(JobId("2")) == ("1",)
    assert [each.profile_s for each in starts(made)] == [0.0]


# --- What follows ---------------------------------------------------------------------------------


def test_a_measured_peak_is_what_the_running_job_takes_from_now_on() -> None:
    made = desk()
    runs(made, 1, **LIKE)
    assert made.job(1).placement.memory_mib is None
    made.tell(learned(made, 1))
    assert made.job(1).placement.memory_mib == 300
    assert made.job(1).measured.solo_step_s == 2.0
    assert made.job(1).can_accumulate


def test_a_peak_without_step_times_makes_the_memory_known_too() -> None:
    made = desk()
    runs(made, 1, **LIKE)
    made.tell(learned(made, 1, Profile(memory_mib_peak=123.4, source="from outside")))
    assert made.job(1).placement.memory_mib == 123


def test_a_job_beside_which_nobody_could_come_can_be_shared_once_it_is_measured() -> None:
    """It never said what memory it needs: until it ran alone for T_prof it has its device to itself."""
    made = desk("castor")
    runs(made, 1, **LIKE, expected_s=5000.0)
    made.submit(2, memory_mib=300, expected_s=100.0)
    assert made.phase(2) == "queued"
    said = " ".join(str(each) for each in made.engine.explain(JobId("2"), made.now_s))
    assert "the peak memory of job 1 is not known; it is known about a minute after" in said
    made.tell(learned(made, 1), after_s=T_PROF_S)
    assert made.phase(2) == "loading", "the profile itself is an occasion to share"
    assert made.engine.partners(JobId("2")) == ("1",)


def test_a_job_that_never_ran_alone_and_declared_nothing_is_never_put_beside_another() -> None:
    made = desk("castor")
    runs(made, 1, memory_mib=300, expected_s=5000.0)
    made.submit(2, expected_s=100.0)
    assert made.phase(2) == "queued"
    said = " ".join(str(each) for each in made.engine.explain(JobId("2"), made.now_s))
    assert "the memory that job 2 needs is not known" in said


def test_a_job_that_never_ran_alone_is_shared_with_default_ratios_if_it_declared_its_memory() -> None:
    made = desk("castor")
    runs(made, 1, memory_mib=300, expected_s=5000.0)
    made.submit(2, memory_mib=300, expected_s=100.0)
    assert made.phase(2) == "loading"
    assert "source: default" in str(made.job(2).reason)


def test_while_others_share_its_device_a_planned_memory_is_not_changed_under_them() -> None:
    made = desk("castor")
    runs(made, 1, memory_mib=300, expected_s=5000.0)
    made.submit(2, memory_mib=300, expected_s=100.0)
    assert made.engine.partners(JobId("1")) == ("2",)
    made.tell(learned(made, 1, profile(8, (1, 2.0, 900.0))))
    assert made.job(1).placement.memory_mib == 300


def test_what_refused_to_accumulate_is_never_asked_to_again_nor_is_its_like() -> None:
    """Its hello says that it could, each time: it was seen not to."""
    made = desk("fifo", report("a", 2))
    runs(made, 1, **LIKE)
    refuses = msgspec.structs.replace(profile(8, (1, 2.0, 300.0)), accumulates=False)
    made.tell(learned(made, 1, refuses))
    assert made.job(1).progress.capabilities.accumulates and not made.job(1).can_accumulate
    runs(made, 2, **LIKE)
    assert made.job(2).progress.capabilities.accumulates and not made.job(2).can_accumulate


# --- What is kept ---------------------------------------------------------------------------------


def kept_from_first(**like: Any) -> Desk:
    made = desk("fifo", report("a", 2))
    runs(made, 1, **{**LIKE, **like})
    made.tell(learned(made, 1))
    ends(made, 1)
    return made


def test_the_next_job_of_the_kind_has_the_profile_and_is_not_measured_again() -> None:
    made = kept_from_first()
    made.submit(2, **LIKE, iterations=100)
    assert made.job(2).measured.profile == MEASURED
    assert [each.profile_s for each in starts(made)] == [0.0]
    assert made.job(2).estimate.remaining_s == 200.0 and made.job(2).estimate.source == "profile"
    assert made.job(2).placement.memory_mib == 300, "learned before, so it can be shared from the start"


@pytest.mark.parametrize(
    "other",
    [
        {"argv": ("python", "train.py", "--lr", "1")},
        {"code_sha256": "0" * 64},
        {"code_sha256": ""},
        {"batch_size": 16},
        {"gpus": 2},
    ],
)
def test_another_command_code_batch_or_number_of_devices_is_another_kind(other: dict[str, Any]) -> None:
    made = kept_from_first()
    made.submit(2, **{**LIKE, **other})
    assert made.job(2).measured.profile is None
    assert {each.profile_s for each in starts(made)} == {T_PROF_S}


def test_another_type_of_device_is_another_kind_and_so_is_one_that_is_not_known_yet() -> None:
    made = kept_from_first()
    made.tell(ev.HostJoined(report=report("t4", 1, type="NVIDIA-T4", kind="cuda")))
    made.submit(2, **LIKE)
    assert made.job(2).measured.profile is None, "it could be placed on either"
    made.submit(3, **LIKE, gpu_type="cpu")
    assert made.job(3).measured.profile == MEASURED
    made.submit(4, **LIKE, gpu_type="NVIDIA-T4")
    assert made.job(4).measured.profile is None


WHOLE = profile(8, (1, 2.0, 300.0), duty=0.4, source="in place")


@pytest.mark.parametrize("measured", [WHOLE, Profile(step_s=2.0, memory_mib_peak=300.0)], ids=str)
def test_an_unfinished_profile_is_known_as_far_as_it_goes_and_measured_anew(measured: Profile) -> None:
    made = desk("fifo", report("a", 2))
    runs(made, 1, **LIKE)
    made.tell(learned(made, 1, measured, is_complete=False))
    assert [known.is_complete for known in made.engine.ledger.profiles.known.values()] == [False]
    made.submit(2, **LIKE)
    assert made.job(2).measured.profile == measured
    assert [each.profile_s for each in starts(made)] == [T_PROF_S]
    step(made, 2)
    made.tell(learned(made, 2))
    assert made.job(2).measured.profile == MEASURED and not made.job(2).measured.profile_given
    made.tell(learned(made, 1, profile(8, (1, 9.0, 9.0)), is_complete=False))
    assert [known.profile for known in made.engine.ledger.profiles.known.values()] == [MEASURED]


def test_an_unfinished_profile_that_does_not_know_the_whole_batch_is_nobodys() -> None:
    made = desk("fifo", report("a", 2))
    runs(made, 1, **LIKE)
    made.tell(learned(made, 1, profile(8, (2, 2.2, 200.0)), is_complete=False))
    made.submit(2, **LIKE)
    assert made.job(2).measured.profile is None


def test_of_two_unfinished_profiles_the_one_that_says_more_stays() -> None:
    made = desk("fifo", report("a", 2))
    for job_id in (1, 2):
        runs(made, job_id, **LIKE)
    for job_id, measured in ((1, WHOLE), (2, MEASURED), (1, WHOLE)):
        made.tell(learned(made, job_id, measured, is_complete=False))
    assert [known.profile for known in made.engine.ledger.profiles.known.values()] == [MEASURED]


def test_a_waiting_job_shares_whole_or_in_parts_as_soon_as_these_were_measured() -> None:
    """Its like runs beside nobody meanwhile, and goes on measuring."""
    whole, part = profile(8, (1, 2.0, 600.0), duty=0.2), (2, 2.2, 300.0)
    made = desk("castor")
    runs(made, 1, **LIKE, expected_s=5000.0)
    made.submit(2, **LIKE, expected_s=100.0)
    made.tell(learned(made, 1, whole, is_complete=False), after_s=6.0)
    assert made.job(2).measured.profile == whole and made.phase(2) == "queued"
    said = " ".join(str(each) for each in made.engine.explain(JobId("2"), made.now_s))
    assert "a sub-batch of 8 does not fit" in said, "no other is offered"
    made.tell(learned(made, 1, profile(8, (1, 2.0, 600.0), part, duty=0.2)), after_s=T_PROF_S)
    assert made.phase(2) == "loading" and made.job(2).placement.accumulation_steps == 2
    [kept] = made.engine.ledger.profiles.known.values()
    assert kept.used == 1


def test_a_short_job_that_did_all_it_had_to_do_alone_is_known() -> None:
    made = desk("fifo", report("a", 2))
    for job_id, outcome in ((1, "user-failed"), (2, "finished")):
        made.submit(job_id, **LIKE, retries=0)
        step(made, job_id, accumulates=False)
        if job_id == 2:
            made.submit(3, **LIKE, gpus=2)
            made.submit(4, **LIKE)
        made.tell(learned(made, job_id, is_complete=False))
        ends(made, job_id, outcome)
        assert [known.is_complete for known in made.engine.ledger.profiles.known.values()] == [job_id == 2]
    assert made.job(3).measured.profile is None  # of two devices nothing is known
    assert made.job(4).measured.profile == MEASURED


def test_the_next_of_an_unmodified_script_is_compared_with_its_like_alone() -> None:
    """No batch was said, so there are no points: the step time itself is what sharing is judged by."""
    made = desk("fifo", report("a", 1))
    pace = Profile(step_s=0.25, memory_mib_peak=300.0, source="in place")
    made.submit(1, **{**LIKE, "batch_size": None}, profile=pace)
    assert made.job(1).measured.solo_step_s == 0.25


def test_so_is_one_whose_batch_could_be_split_had_there_been_time() -> None:
    made = desk("fifo", report("a", 1))
    runs(made, 1, **LIKE)
    made.tell(learned(made, 1, WHOLE, is_complete=False))
    ends(made, 1)
    made.submit(2, **LIKE)
    assert made.job(2).measured.profile == WHOLE and not made.job(2).can_accumulate
    assert [each.profile_s for each in starts(made)] == [0.0], "it would end as early"


def test_what_is_forgotten_is_measured_anew() -> None:
    made = kept_from_first()
    [key] = made.engine.ledger.profiles.known
    made.tell(ev.ProfilesForgotten(keys=(key, "unheard-of"), by="ann"))
    made.submit(2, **LIKE)
    assert made.job(2).measured.profile is None


def test_kept_profiles_outlive_the_controller() -> None:
    made = kept_from_first()
    kept = made.engine.ledger.profiles.known
    made.restart()
    assert made.engine.ledger.profiles.known == kept and kept
    made.submit(2, **LIKE)
    assert made.job(2).measured.profile == MEASURED


def test_variables_of_a_shell_are_no_configuration_and_others_are() -> None:
    def base(**env: str) -> str:
        one = spec(1, **LIKE)
        return base_key(msgspec.structs.replace(one, launch=msgspec.structs.replace(one.launch, env=env)))

    assert base(TERM="xterm", SSH_TTY="/dev/1") == base(TERM="dumb") == base()
    assert base(COTENANT_PROFILING="1") == base()
    assert base(CUDNN_BENCHMARK="1") != base()
    assert base(VIRTUAL_ENV="/a") != base(VIRTUAL_ENV="/b")


def test_without_code_or_type_there_is_no_key() -> None:
    assert key_of(spec(1, argv=("a",)), 1, "cpu") == ""
    assert key_of(spec(1, **LIKE), 1, "") == ""


@given(uses=st.lists(st.integers(0, PROFILES_MAX + 19), max_size=60))
def test_the_store_is_bounded_and_what_was_used_longest_ago_goes(uses: list[int]) -> None:
    store = Profiles()
    for number in range(PROFILES_MAX + 20):
        store.keep(str(number), known())
    for number in uses:
        store.use(str(number))
    assert len(store.known) == PROFILES_MAX
    used = [str(n) for n in uses if n >= 20]
    newest = list(dict.fromkeys(reversed(used)))
    assert list(reversed(store.known))[: len(newest)] == newest
    store.keep("one more", known())
    assert set(used) <= store.known.keys() or len(set(used)) == PROFILES_MAX


def known() -> StoredProfile:
    return StoredProfile(
        base="b",
        user="ann",
        name="n",
        command=("a",),
        gpus=1,
        hosts=1,
        device_type="cpu",
        batch_size=8,
        profile=MEASURED,
        learned_s=0.0,
        job_id=JobId("1"),
    )


# --- Jobs that run to be measured -----------------------------------------------------------------


def test_a_job_that_runs_to_be_measured_ends_when_it_is() -> None:
    made = desk()
    runs(made, 1, **LIKE, profiling="only")
    made.tell(learned(made, 1, is_complete=False))
    assert made.phase(1) == "running"
    stops = made.tell(learned(made, 1))
    assert [type(each) for each in stops if isinstance(each, StopAttempt)] == [StopAttempt]
    ends(made, 1, "stopped")
    assert made.phase(1) == "done" and made.job(1).reason.code == "profiled"


def test_the_job_behind_a_series_gets_the_profile_of_its_own_configuration() -> None:
    from cotenant.controller.domain import Dependency

    made = desk("fifo", report("a", 2))
    runs(made, 1, **LIKE, profiling="only", share="never")
    made.submit(2, **LIKE, after=(Dependency(job_id=JobId("1"), need="any"),), iterations=10)
    assert made.phase(2) == "blocked" and made.job(2).measured.profile is None
    made.tell(learned(made, 1))
    ends(made, 1, "stopped")
    assert made.phase(2) == "loading"
    assert made.job(2).measured.profile == MEASURED and made.job(2).estimate.remaining_s == 20.0
    assert [each.profile_s for each in starts(made)] == [0.0]


def test_nobody_is_preempted_for_a_job_that_only_runs_to_be_measured() -> None:
    made = desk("srtf")
    runs(made, 1, **LIKE, expected_s=5000.0)
    made.submit(2, **LIKE, profiling="only", expected_s=70.0)
    assert (made.phase(1), made.phase(2)) == ("running", "queued")
    assert [each.code for each in made.engine.refusals] == ["refused-profiling"] * 2
    made.submit(3, expected_s=60.0)
    assert made.phase(1) == "checkpointing", "a real job of that length would have been let in"
