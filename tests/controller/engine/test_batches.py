"""A batch size that nobody said: how it becomes known to the engine, and who overrules it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.checkpoint.talk.protocol import ENV_ACCUMULATION_SCHEDULE, ENV_PROFILING
from cotenant.controller.client.profile_series import measured_only
from cotenant.controller.domain import Launch, StartAttempt
from cotenant.controller.domain import events as ev
from cotenant.controller.performance import Profile, SeenBatch
from tests.controller.building import Desk, profile, report, spec

TYPE = next(iter(report().devices)).type
SEEN = SeenBatch(rows=8, note="read from its loader, train.py line 41")
PARTS = profile(8, (1, 1.0, 600.0), (2, 1.1, 300.0), duty=0.2)
LIKE = msgspec.structs.replace(PARTS, batch=SEEN)
SEEN_WHOLE = msgspec.structs.replace(
    profile(8, (1, 1.0, 600.0), duty=0.2), batch=SEEN, accumulates=True, static_mib=100.0
)
CODE: dict[str, Any] = {"argv": ("python", "x.py"), "code_sha256": "c", "expected_s": 1000.0}
UNSPLIT = "exit code 1: cotenant.gradaccum.Refused: the loss uses something else"


def sees(desk: Desk, number: int, batch: SeenBatch, step: int = 1) -> None:
    job = desk.job(number)
    seen = ev.ProgressSeen(job_id=job.job_id, attempt=job.attempt.number, step=step, step_s=1.0, batch=batch)
    desk.tell(seen)


def test_it_is_known_from_the_first_report_on_and_for_the_next_of_its_kind() -> None:
    desk = Desk("castor")
    desk.run(1, **CODE)
    assert desk.job(1).batch_size is None
    sees(desk, 1, SEEN)
    assert desk.job(1).batch_size == 8
    sees(desk, 1, SeenBatch(), step=2)
    assert desk.job(1).measured.batch == SEEN, "another attempt that has not seen it yet takes nothing back"
    desk.tell(ev.ProfileLearned(job_id=desk.job(1).job_id, profile=LIKE, device_type=TYPE))
    desk.submit(2, **CODE)
    assert (desk.job(2).batch_size, desk.job(2).measured.batch, desk.job(2).spec.batch_size) == (
        8,
        SEEN,
        None,
    )


def test_a_newcomer_of_a_known_kind_starts_beside_a_co_tenant_with_a_part_of_its_batch() -> None:
    desk = Desk("castor")
    desk.run(1, **CODE, profile=LIKE)
    desk.submit(2, **{**CODE, "expected_s": 100.0}, profile=LIKE)
    desk.start(2)
    placement = desk.job(2).placement
    assert placement is not None
    assert (placement.accumulation_steps, placement.sub_batch, placement.beside) == (2, 4, ("1",))


def test_it_stays_whole_while_its_size_is_not_known() -> None:
    desk = Desk("castor")
    desk.run(1, **CODE, profile=PARTS)
    desk.submit(2, **{**CODE, "expected_s": 100.0}, profile=PARTS)
    assert desk.phase(2) == "queued"
    assert "its whole batch does not fit" in desk.why(2)


@pytest.mark.parametrize("said", [{}, {"batch_size": 8}])
def test_a_job_that_refuses_parts_nobody_asked_for_goes_on_whole_and_so_does_its_like(
    said: dict[str, int],
) -> None:
    desk = Desk("castor")
    desk.run(1, **CODE, profile=LIKE)
    desk.submit(2, **{**CODE, "expected_s": 100.0}, profile=LIKE, **said)
    desk.start(2)
    desk.end(2, "user-failed", exit_code=1, detail=UNSPLIT)
    job = desk.job(2)
    assert (job.phase, job.can_accumulate, job.counts.user_failures) == ("queued", False, 0)
    assert job.reason.code == "unsplit"


def test_a_job_with_a_batch_size_goes_on_whole_too_and_from_its_last_checkpoint() -> None:
    desk = Desk("castor")
    desk.run(1, **CODE, profile=LIKE)
    desk.submit(2, **{**CODE, "expected_s": 100.0}, profile=LIKE, batch_size=8)
    desk.start(2)
    placement = desk.job(2).placement
    assert placement is not None and placement.accumulation_steps > 1
    desk.durable(2, 40)
    desk.end(2, "user-failed", exit_code=1, detail=UNSPLIT)
    job = desk.job(2)
    assert (job.phase, job.must_stay_whole, job.progress.step) == ("queued", True, 40)


def test_it_goes_on_whole_although_its_word_that_it_cannot_be_split_came_first() -> None:
    desk = Desk("castor")
    desk.run(1, **CODE, profile=LIKE)
    desk.submit(2, **{**CODE, "expected_s": 100.0}, profile=LIKE)
    desk.start(2)
    job = desk.job(2)
    desk.tell(
        ev.CapabilitiesSeen(
            job_id=job.job_id,
            attempt=job.attempt.number,
            host_id=desk.hosts(2)[0],
            resumable=True,
            capabilities=job.progress.capabilities.forbid_splitting("the loss uses something else"),
            step=0,
        )
    )
    assert not job.can_accumulate
    desk.end(2, "user-failed", exit_code=1, detail=UNSPLIT)
    assert desk.phase(2) == "queued"


def test_parts_that_a_script_asks_for_itself_are_its_own_failure() -> None:
    desk = Desk("castor")
    desk.run(1, **CODE, profile=LIKE)
    desk.end(1, "user-failed", exit_code=1, detail=UNSPLIT)
    assert desk.phase(1) == "failed"


def test_a_job_that_is_there_to_be_measured_is_measured_whole_when_it_refuses_parts() -> None:
    desk = Desk("castor")
    desk.tell(ev.JobArrived(spec=measured_only(spec(1, batch_size=8), 60.0)))
    assert ENV_ACCUMULATION_SCHEDULE in started(desk).env
    desk.start(1)
    seen = msgspec.structs.replace(profile(8, (1, 1.0, 600.0)), accumulates=False)
    found = ev.ProfileLearned(job_id=desk.job(1).job_id, profile=seen, device_type=TYPE, is_complete=False)
    desk.tell(found)
    desk.end(1, "user-failed", exit_code=1, detail=UNSPLIT)
    assert desk.job(1).attempt.number == 2
    assert ENV_ACCUMULATION_SCHEDULE not in started(desk).env and ENV_PROFILING in started(desk).env
    desk.start(1)
    desk.end(1, "user-failed", exit_code=1, detail=UNSPLIT)
    assert desk.phase(1) == "failed", "what it refuses now it has asked for itself"


def started(desk: Desk) -> Launch:
    (start,) = (each for each in desk.commands if isinstance(each, StartAttempt))
    return start.launch


# --- Parts that nobody has measured -----------------------------------------------------------------


def modelled_pair(**more: Any) -> Desk:
    """A newcomer whose like was only seen with its whole batch, of which two do not fit."""
    desk = Desk("castor", profile_s=60.0)
    desk.run(1, **CODE, profile=SEEN_WHOLE)
    desk.submit(2, **{**CODE, "expected_s": 100.0, **more}, profile=SEEN_WHOLE)
    return desk


def test_a_newcomer_starts_in_parts_of_which_the_needs_are_modelled_and_that_is_said() -> None:
    desk = modelled_pair()
    placement = desk.job(2).placement
    assert placement is not None
    assert (placement.accumulation_steps, placement.memory_mib) == (2, 350)
    assert "sub-batch 4 as modelled from s = 1, 2 accumulation steps" in str(placement.reason)
    assert [each.profile_s for each in desk.commands if isinstance(each, StartAttempt)] == [60.0]


def test_one_that_refuses_to_be_split_waits() -> None:
    whole = msgspec.structs.replace(SEEN_WHOLE, accumulates=False)
    desk = Desk("castor")
    desk.run(1, **CODE, profile=whole)
    desk.submit(2, **{**CODE, "expected_s": 100.0}, profile=whole)
    assert desk.phase(2) == "queued"


def test_what_is_measured_of_parts_stands_beside_what_was_known_of_the_whole() -> None:
    desk = modelled_pair()
    desk.start(2)
    seen = profile(8, (2, 1.4, 420.0), duty=0.9)
    desk.tell(ev.ProfileLearned(job_id=desk.job(2).job_id, profile=seen, device_type=TYPE))
    known = desk.job(2).measured.profile
    assert known is not None and known.duty_cycle == SEEN_WHOLE.duty_cycle
    assert [(p.accumulation_steps, p.step_s, p.memory_mib) for p in known.points] == [
        (1, 1.0, 600.0),
        (2, 1.4, 420.0),
    ]
    assert desk.job(2).split_slowdown(2) == 1.4
    nothing = Profile(accumulates=False, duty_cycle=0.9)
    desk.tell(ev.ProfileLearned(job_id=desk.job(2).job_id, profile=nothing, device_type=TYPE))
    after = desk.job(2).measured.profile
    assert after is not None and (after.points, after.accumulates) == (known.points, False)


def test_a_kind_keeps_its_parts_when_one_of_it_is_measured_whole() -> None:
    desk = Desk("castor")
    desk.run(1, **CODE)
    desk.submit(2, **CODE)
    for number, found in ((1, PARTS), (2, SEEN_WHOLE)):
        job_id = desk.job(number).job_id
        desk.tell(ev.ProfileLearned(job_id=job_id, profile=found, device_type=TYPE, is_complete=True))
    (kept,) = desk.engine.ledger.profiles.known.values()
    assert kept.profile.points == desk.job(2).measured.profile.points == PARTS.points


def test_a_model_that_promised_too_much_is_believed_no_more() -> None:
    desk = modelled_pair()
    desk.start(2)
    desk.end(2, "user-failed", exit_code=1, out_of_memory=True)
    job = desk.job(2)
    assert (job.phase, job.reason.code, job.counts.crowded) == ("queued", "outmodelled", 0)
    assert job.needed_mib(2) == job.needed_mib(1) == 600


def test_what_parts_cost_is_taken_from_kinds_that_were_measured_in_parts() -> None:
    desk = Desk("castor")
    desk.run(1, **CODE)
    desk.tell(ev.ProfileLearned(job_id=desk.job(1).job_id, profile=LIKE, device_type=TYPE, is_complete=True))
    desk.end(1)
    desk.run(2, **{**CODE, "code_sha256": "d"})
    whole = profile(8, (1, 3.0, 600.0))
    desk.tell(ev.ProfileLearned(job_id=desk.job(2).job_id, profile=whole, device_type=TYPE))
    known = desk.job(2).measured.profile
    assert known is not None and known.part_share == pytest.approx(0.1)


def test_an_elastic_job_that_refuses_parts_has_its_whole_batch_on_fewer_devices() -> None:
    desk = Desk("fifo", report("a", 1))
    desk.run(1, batch_size=8, gpus_min=1, gpus_max=4)
    placement = desk.job(1).placement
    assert placement is not None and (placement.accumulation_steps, placement.sub_batch) == (4, 8)
    desk.end(1, "user-failed", exit_code=1, detail=UNSPLIT)
    desk.start(1)
    placement = desk.job(1).placement
    assert placement is not None and (placement.accumulation_steps, placement.sub_batch) == (1, 32)


def test_a_step_time_without_a_size_is_still_that_of_a_step() -> None:
    desk = Desk("fifo")
    desk.run(1)
    sees(desk, 1, SEEN)
    blind = Profile(step_s=0.5, memory_mib_peak=100.0, batch=SEEN)
    desk.tell(ev.ProfileLearned(job_id=desk.job(1).job_id, profile=blind))
    assert desk.job(1).measured.solo_step_s == 0.5


SIZES = st.none() | st.integers(1, 64)


@given(said=SIZES, words=st.lists(st.tuples(SIZES, st.sampled_from(["", "why"])), max_size=6))
def test_the_users_number_wins_and_a_number_stays_known(
    said: int | None, words: list[tuple[int | None, str]]
) -> None:
    desk = Desk("fifo")
    desk.run(1, batch_size=said)
    known: int | None = None
    for step, (rows, note) in enumerate(words, start=1):
        sees(desk, 1, SeenBatch(rows=rows, note=note), step=step)
        known = rows or known
        assert desk.job(1).batch_size == (said or known)
        assert desk.job(1).spec.batch_size == said
