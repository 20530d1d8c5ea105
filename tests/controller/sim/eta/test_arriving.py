"""What would follow if a job came now: known answers, and whom it can never delay."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.history import ArrivalEffect, EtaAnswer, EtaBook, image_of, question_of
from cotenant.controller.policies import registry
from cotenant.controller.sim.eta import answer_arrival
from tests.controller.building import Desk, report, spec

OVERHEADS = {"load_s": 5.0, "pause_s": 2.0}


def would(desk: Desk, number: int, count: int = 2, **more: object) -> tuple[EtaAnswer, ArrivalEffect]:
    coming = spec(number, **{**OVERHEADS, **more})
    question = question_of(desk.engine, EtaBook(), seed=1, count=count, arriving=(coming,), is_exact=True)
    found = answer_arrival(question, registry.make)
    assert found.arrival is not None
    return found, found.arrival


def two(policy: str) -> Desk:
    """Job 1 has 100 s left, and job 2 waits with 50 s."""
    desk = Desk(policy, report("a", 1))
    desk.run(1, expected_s=100.0, **OVERHEADS)
    desk.submit(2, expected_s=50.0, **OVERHEADS)
    return desk


def test_a_short_job_passes_a_longer_one_and_delays_it_by_what_it_takes() -> None:
    desk = two("sjf")
    before = image_of(desk.engine)
    found, effect = would(desk, 3, expected_s=10.0)
    (eta,) = found.etas
    assert eta.start is not None and eta.finish is not None
    assert round(eta.start.told.p50_s) == 100
    assert round(eta.finish.told.p50_s) == 100 + 5 + 10
    (delay,) = effect.delays
    assert (delay.job_id, round(delay.by.p50_s), round(delay.by.p90_s)) == ("2", 15, 15)
    assert (effect.at_once, effect.ahead, effect.waits_for) == (False, (), ("1",))
    assert image_of(desk.engine) == before, "nothing is changed"


def test_in_order_of_arrival_it_waits_for_all_and_delays_nobody() -> None:
    _, effect = would(two("fifo"), 3, expected_s=10.0)
    assert (effect.ahead, effect.waits_for, effect.delays) == (("2",), ("1",), ())
    assert any("2" in reason for reason in effect.reasons)
    assert not any("submitted" in reason for reason in effect.reasons), "who asks knows"


def test_what_is_free_is_taken_at_once() -> None:
    desk = Desk("fifo", report("a", 2))
    desk.run(1, expected_s=100.0, **OVERHEADS)
    found, effect = would(desk, 2, expected_s=10.0)
    assert effect.at_once and not effect.delays and not effect.waits_for
    assert found.etas[0].finish is not None and round(found.etas[0].finish.told.p50_s) == 15


def test_an_empty_cluster_and_a_job_of_unknown_length() -> None:
    found, effect = would(Desk("fifo", report("a", 1)), 1)
    assert effect.at_once and effect.delays == ()
    assert [eta.is_length_known for eta in found.etas] == [False]


@given(
    jobs=st.lists(
        st.tuples(st.sampled_from((5.0, 60.0, 300.0, None)), st.integers(1, 3), st.integers(0, 40)),
        max_size=6,
    ),
    length_s=st.sampled_from((1.0, 100.0, None)),
    gpus=st.integers(1, 3),
)
@settings(max_examples=10)
def test_under_fifo_nobody_who_is_there_is_delayed_by_who_comes(
    jobs: list[tuple[float | None, int, int]], length_s: float | None, gpus: int
) -> None:
    desk = Desk("fifo", report("a", 3))
    for number, (expected_s, width, wait_s) in enumerate(jobs, 1):
        desk.submit(number, gpus=width, expected_s=expected_s, **OVERHEADS)
        if desk.phase(number) == "loading":
            desk.start(number)
        desk.wait(float(wait_s))
    _, effect = would(desk, 99, expected_s=length_s, gpus=gpus, count=1)
    assert effect.delays == ()
