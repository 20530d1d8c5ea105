"""A batch size that nobody said: how it becomes known to the engine, and who overrules it."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.domain import events as ev
from cotenant.controller.performance import Profile, SeenBatch
from tests.controller.building import Desk, profile, report

TYPE = next(iter(report().devices)).type
SEEN = SeenBatch(rows=8, note="read from its loader, train.py line 41")
PARTS = profile(8, (1, 1.0, 600.0), (2, 1.1, 300.0), duty=0.2)
LIKE = msgspec.structs.replace(PARTS, batch=SEEN)
CODE: dict[str, Any] = {"argv": ("python", "x.py"), "code_sha256": "c", "expected_s": 1000.0}


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


def test_a_job_that_refuses_parts_nobody_asked_for_goes_on_whole_and_so_does_its_like() -> None:
    desk = Desk("castor")
    desk.run(1, **CODE, profile=LIKE)
    desk.submit(2, **{**CODE, "expected_s": 100.0}, profile=LIKE)
    desk.start(2)
    detail = "exit code 1: cotenant.gradaccum.exactness.Refused: the loss uses something else"
    desk.end(2, "user-failed", exit_code=1, detail=detail)
    job = desk.job(2)
    assert (job.phase, job.can_accumulate, job.counts.user_failures) == ("queued", False, 0)
    assert job.reason.code == "unsplit"


def test_who_said_how_large_a_batch_is_hears_of_the_refusal() -> None:
    desk = Desk("castor")
    desk.run(1, **CODE, profile=LIKE, batch_size=8)
    detail = "exit code 1: cotenant.gradaccum.exactness.Refused: the loss uses something else"
    desk.end(1, "user-failed", exit_code=1, detail=detail)
    assert desk.phase(1) == "failed"


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
