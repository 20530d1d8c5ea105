"""What `cotenant` adds to the cost of a preemption because a resume may come out wrong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.domain import AttemptNo, Capabilities, CheckpointRecord, HostId, Job, JobId, because
from cotenant.controller.domain import events as ev
from cotenant.controller.knowledge import Resumes
from cotenant.controller.policies.resume_risk import MISMATCH_PRIOR, ResumeRisk, unproven_s
from tests.controller.building import Desk, report, spec
from tests.controller.policies.test_cotenant import EARNED_S, HEAVY, LIGHT, MILD, job
from tests.controller.policies.test_whole_queue import planned

KIND: dict[str, Any] = {"argv": ("python", "long.py")}
RESUMES = st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=12)
"""The kind that was resumed, and whether that was proven."""
HAD_S = 4000.0


def trained(kind: str, *, step: int = 0, proven: int = 0, **more: Any) -> Job:
    """A job that has trained for `HAD_S`."""
    asked = spec(1, argv=("python", f"{kind}.py"), **more)
    made = Job(spec=asked, number=1, submitted_s=0.0, reason=because("submitted", "ann"))
    made.spent.run_s, made.progress.step = HAD_S, step
    if proven:
        newest = CheckpointRecord(attempt=AttemptNo(1), step=proven, domain="", proven=2)
        made.progress.checkpoints = (newest,)
    return made


def priced(resumes: Resumes, one: Job, prior: float = MISMATCH_PRIOR) -> tuple[float, bool]:
    """The price of its resume, and whether the job is spared."""
    view = SimpleNamespace(resumes=resumes, now_s=0.0)
    risk = ResumeRisk(cast(Any, view), prior)
    return risk.price_s(one), risk.spares(one)


def seen(resumes: list[tuple[str, bool]]) -> Resumes:
    table = Resumes()
    for kind, is_proven in resumes:
        table.note(trained(kind), is_proven=is_proven)
    return table


def test_without_any_resume_it_is_the_prior_times_all_that_was_trained() -> None:
    assert priced(Resumes(), trained("a")) == pytest.approx((0.05 * HAD_S, False))


def test_after_a_proven_resume_it_is_half_of_what_all_kinds_say() -> None:
    assert priced(seen([("a", True)]), trained("a"))[0] == pytest.approx((1 / 21) / 2 * HAD_S)


def test_only_what_was_trained_since_the_proven_checkpoint_is_at_risk() -> None:
    assert unproven_s(trained("a", step=100, proven=75), 0.0) == pytest.approx(HAD_S / 4)
    assert unproven_s(trained("a", step=75, proven=75), 0.0) == 0.0
    assert unproven_s(trained("a"), 0.0) == HAD_S


def test_a_refuted_kind_is_spared_and_others_cost_more() -> None:
    table = seen([("a", False)])
    assert priced(table, trained("a"))[1]
    assert priced(table, trained("b")) == pytest.approx(((2 / 21) * HAD_S, False))


def test_a_job_whose_user_vouches_for_it_has_no_price_and_is_not_spared() -> None:
    assert priced(seen([("a", False)]), trained("a", resumable=True)) == (0.0, False)


def test_with_a_prior_of_0_nothing_costs_more_before_a_resume_has_failed() -> None:
    assert priced(seen([("a", True), ("b", True)]), trained("c"), 0.0) == (0.0, False)
    assert priced(seen([("a", True), ("b", False)]), trained("c"), 0.0)[0] > 0.0


@given(before=RESUMES, kind=st.sampled_from("abc"), mine=st.sampled_from("abc"))
def test_one_more_proven_resume_never_raises_the_price_and_a_mismatch_never_lowers_it(
    before: list[tuple[str, bool]], kind: str, mine: str
) -> None:
    now_s, is_spared = priced(seen(before), trained(mine))
    proven_s, spared_then = priced(seen([*before, (kind, True)]), trained(mine))
    refuted_s, spared_later = priced(seen([*before, (kind, False)]), trained(mine))
    assert proven_s <= now_s <= refuted_s
    assert (spared_then, spared_later) == (is_spared, is_spared or kind == mine)


# --- What the policy makes of it -----------------------------------------------------------------


def resume(desk: Desk, name: str, how: str) -> None:
    """A job of this kind is preempted, and its resume is proven or refuted; then it is cancelled."""
    desk.run(name, **job(10_000, LIGHT, **KIND))
    desk.durable(name, 5)
    desk.tell(ev.PreemptRequested(job_id=JobId(name), by="root"))
    desk.end(name, "stopped", step=5)
    assert desk.phase(name) == "loading"
    desk.start(name)
    if how == "refuted":
        desk.end(name, "user-failed", detail="after step 5 x differs", went_otherwise=True)
    else:
        of: dict[str, Any] = {"job_id": JobId(name), "attempt": AttemptNo(2), "host_id": HostId("a")}
        can = Capabilities(proven=2)
        desk.tell(ev.CapabilitiesSeen(**of, resumable=True, step=5, exact=True, capabilities=can))
    desk.tell(ev.CancelRequested(job_id=JobId(name), by="ann"))
    desk.end(name, "stopped")


def long_one(*resumes: str, left_s: float, like: object = LIGHT) -> Desk:
    """Job 1, of a kind that was resumed like this, has trained for `HAD_S` and has so much left."""
    desk = Desk("cotenant", report("a", 1), ageing_s=1e9)
    for number, how in enumerate(resumes):
        resume(desk, f"s{number}", how)
    desk.run(1, **job(HAD_S + left_s, like, **KIND))
    desk.wait(HAD_S)
    return desk


NEWCOMER: dict[str, Any] = job(100, share="never")
"""It needs 110 s, and a change costs 20 s; the resume of job 1, unproven, 200 s more."""


@pytest.mark.parametrize(
    ("resumes", "left_s", "is_preempted"),
    [
        ((), 300.0, False),
        ((), 340.0, True),
        (("proven",), 300.0, True),  # 95 s more.
        (("proven",), 200.0, False),
        (("proven",) * 4, 200.0, True),  # 38 s more.
        (("refuted",), 100_000.0, False),
        (("proven", "refuted"), 100_000.0, False),
    ],
)
def test_a_victim_must_have_more_left_than_its_resume_costs_too(
    resumes: tuple[str, ...], left_s: float, is_preempted: bool
) -> None:
    desk = long_one(*resumes, left_s=left_s)
    desk.submit(9, **NEWCOMER)
    assert planned(desk) == (["preempt 1 for 9", "place 9 on a/cpu0"] if is_preempted else [])


def test_what_was_seen_of_a_kind_counts_after_a_restart() -> None:
    desk = long_one("refuted", left_s=100_000.0)
    desk.restart()
    desk.submit(9, **NEWCOMER)
    assert planned(desk) == []


def test_with_a_prior_of_0_it_decides_as_if_every_resume_were_exact() -> None:
    desk = long_one(left_s=140.0)
    desk.tell(ev.PolicyChanged(name="cotenant", parameters={"mismatch_prior": 0.0}))
    desk.submit(9, **NEWCOMER)
    assert planned(desk) == ["preempt 1 for 9", "place 9 on a/cpu0"]


def test_a_share_comes_before_the_preemption_of_a_kind_that_is_not_proven() -> None:
    newcomer = job(100, HEAVY)  # Beside job 1 both would end 160 s later.
    proven = long_one(*["proven"] * 8, left_s=900.0, like=HEAVY)
    proven.submit(9, **newcomer)
    assert planned(proven) == ["preempt 1 for 9", "place 9 on a/cpu0"]
    unproven = long_one(left_s=900.0, like=HEAVY)
    unproven.submit(9, **newcomer)
    assert planned(unproven) == ["share 9 on a/cpu0 with s=1"]


def test_patient_decides_as_before() -> None:
    desk = long_one("refuted", left_s=300.0)
    desk.tell(ev.PolicyChanged(name="patient", parameters={}))
    desk.submit(9, **NEWCOMER)
    assert planned(desk) == ["preempt 1 for 9", "place 9 on a/cpu0"]


@pytest.mark.parametrize(("resumes", "phase"), [((), "checkpointing"), (("refuted",), "running")])
def test_not_even_a_late_job_preempts_a_refuted_kind(resumes: tuple[str, ...], phase: str) -> None:
    desk = Desk("cotenant", report("a", 1), ageing_s=150.0)
    for how in resumes:
        resume(desk, "s", how)
    desk.run(1, **job(100_000, **KIND))
    desk.submit(9, **job(200_000, share="never"))
    desk.wait(200.0)
    assert (desk.job(9).aged, desk.phase(1)) == (True, phase)


@pytest.mark.parametrize(("resumes", "is_parted"), [((), True), (("refuted",), False)])
def test_no_job_of_a_refuted_kind_is_stopped_to_part_a_pair(
    resumes: tuple[str, ...], is_parted: bool
) -> None:
    desk = Desk("cotenant", report("a", 1))
    for how in resumes:
        resume(desk, "s", how)
    desk.run(1, **job(900, MILD, **KIND))
    desk.submit(2, **job(900, MILD, **KIND))
    desk.start(2)
    desk.wait(EARNED_S)
    for _ in range(2):
        desk.tell(ev.PairObserved(first=JobId("1"), second=JobId("2"), first_xi=2.5, second_xi=2.5))
    assert ("checkpointing" in (desk.phase(1), desk.phase(2))) == is_parted


@given(
    resumes=st.lists(st.sampled_from(("proven", "refuted")), max_size=4),
    left_s=st.sampled_from((150.0, 250.0)),
)
def test_the_same_resumes_lead_to_the_same_decision_also_after_a_restart(
    resumes: list[str], left_s: float
) -> None:
    def decision(*, is_restarted: bool) -> list[str]:
        desk = long_one(*resumes, left_s=left_s)
        if is_restarted:
            desk.restart()
        desk.submit(9, **NEWCOMER)
        return planned(desk)

    assert decision(is_restarted=False) == decision(is_restarted=False) == decision(is_restarted=True)
