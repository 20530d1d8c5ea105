"""What events teach about ends, and how what was told is compared with what comes."""

from __future__ import annotations

import math

import msgspec
import pytest

from cotenant.controller.domain import EtaInterval, JobId, ToldEta, ToldInterval
from cotenant.controller.domain import events as ev
from cotenant.controller.history import EtaBook, SavedEtas, question_of
from tests.controller.building import Desk, profile


class Watched(Desk):
    """A desk beside which a book is kept."""

    def __init__(self, policy: str = "fifo") -> None:
        self.book = EtaBook()
        super().__init__(policy)

    def tell(self, event: ev.AnyEvent, after_s: float = 0.0) -> list:  # type: ignore[type-arg]
        commands = super().tell(event, after_s)
        self.book.observe(self.engine, event)
        return commands

    def promise(
        self, job_id: int, p10_s: float, p50_s: float, p90_s: float, kind: str = "submission"
    ) -> None:
        interval = EtaInterval(p10_s, p50_s, p90_s)
        told = ToldEta(
            job_id=JobId(str(job_id)),
            kind=kind,  # type: ignore[arg-type]
            finish=ToldInterval(interval, interval),
            is_calibrated=True,
        )
        self.tell(ev.EtasTold(at_s=self.now_s, etas=(told,)))

    def errors(self, policy: str = "fifo", kind: str = "submission") -> list[tuple[bool, float]]:
        found = self.book.pools.errors_of(policy, kind)  # type: ignore[arg-type]
        return [(each.hit, each.actual_s) for each in found]


def test_a_job_that_ends_well_teaches_how_long_its_estimate_was() -> None:
    desk = Watched()
    desk.run(1, expected_s=100.0)
    desk.wait(250)
    desk.end(1)
    desk.run(2)
    desk.wait(10)
    desk.end(2)
    desk.run(3, expected_s=5.0)
    desk.end(3, "user-failed")
    (seen,) = desk.book.pools.lengths
    assert (seen.source, seen.told_s, seen.true_s) == ("user", 100.0, 250.0)
    assert desk.book.pools.run_times == [250.0, 10.0]
    assert not desk.book.claims


def test_each_source_is_judged_by_what_it_said_first() -> None:
    desk = Watched()
    desk.run(1, expected_s=100.0, iterations=100, batch_size=8, profile=profile(8, (1, 1.0, 1.0)))
    desk.wait(20)
    desk.progress(1, 10, 2.0)
    desk.wait(30)
    desk.progress(1, 25, 2.0)
    desk.wait(150)
    desk.end(1, step=100)
    assert [tuple(msgspec.structs.astuple(seen)) for seen in desk.book.pools.lengths] == [
        ("user", 100.0, 200.0),
        ("measured", 200.0, 200.0),
    ]


def test_what_a_job_of_unknown_length_has_had_is_nobodys_estimate() -> None:
    desk = Watched()
    for job in (1, 2):
        desk.run(job, argv=("x", str(job)))
        desk.wait(30)
        desk.end(job)
    desk.submit(3, argv=("y",))
    assert desk.job(3).estimate.source == "unknown length"
    assert desk.book.claims[JobId("3")] == []
    assert desk.book.pools.arrivals[-1].told_s is None


def test_arrivals_are_kept_with_their_gaps_and_without_what_launches_them() -> None:
    desk = Watched()
    desk.submit(1, expected_s=9.0)
    desk.wait(40)
    desk.submit(2, hold=True)
    first, second = desk.book.pools.arrivals
    assert (first.gap_s, first.told_s, second.gap_s, second.told_s) == (0.0, 9.0, 40.0, None)
    assert (second.spec.hold, second.spec.launch.uid) == (False, 0)


def test_what_was_told_is_compared_with_what_comes() -> None:
    desk = Watched()
    desk.run(1, expected_s=100.0)
    desk.promise(1, 50.0, 100.0, 200.0)
    desk.wait(60)
    desk.promise(1, 10.0, 20.0, 30.0, "revisit")
    desk.wait(60)
    desk.end(1)
    assert desk.errors() == [(True, 120.0)]
    assert desk.errors(kind="revisit") == [(False, 60.0)]
    assert desk.book.told_of == frozenset()


def test_the_error_of_a_job_that_begins_later_is_that_of_what_follows_its_begin() -> None:
    desk = Watched()
    desk.submit(1, expected_s=100.0, begin_s=9_000.0)
    start, finish = (EtaInterval(*(9_000.0 + after_s,) * 3) for after_s in (10.0, 110.0))
    told = ToldEta(
        job_id=JobId("1"),
        kind="submission",
        finish=ToldInterval(finish, finish, 9_000.0),
        start=ToldInterval(start, start, 9_000.0),
    )
    desk.tell(ev.EtasTold(at_s=0.0, etas=(told,)))
    desk.wait(9_000.0)
    desk.start(1)
    desk.wait(220.0)
    desk.end(1)
    (error,) = desk.book.pools.errors_of("fifo", "submission")
    assert error.start == pytest.approx((math.log(1.0 / 10.0),) * 3)
    assert error.finish == pytest.approx((math.log(220.0 / 110.0),) * 3)


def test_what_was_told_under_another_policy_is_nobodys_error() -> None:
    desk = Watched()
    desk.run(1, expected_s=100.0)
    desk.promise(1, 50.0, 100.0, 200.0)
    desk.tell(ev.PolicyChanged(name="sjf"))
    desk.wait(500)
    desk.end(1)
    assert desk.errors() == desk.errors("sjf") == []


@pytest.mark.parametrize("outcome", ["user-failed", "cancelled"])
def test_a_job_that_does_not_end_well_is_not_scored(outcome: str) -> None:
    desk = Watched()
    desk.run(1, expected_s=100.0)
    desk.promise(1, 50.0, 100.0, 200.0)
    if outcome == "cancelled":
        desk.tell(ev.CancelRequested(job_id=JobId("1"), by="ann"))
        outcome = "stopped"
    desk.end(1, outcome)
    assert desk.errors() == []
    assert desk.book.told_of == frozenset()


def test_a_revisit_counts_when_half_of_what_was_told_has_passed() -> None:
    desk = Watched()
    desk.run(1, expected_s=100.0)
    job = desk.job(1)
    assert desk.book.kind_due(job, desk.now_s) == "submission"
    assert desk.book.kind_due(job, desk.now_s + 1e4) is None, "too late to be told at submission"
    desk.promise(1, 50.0, 100.0, 200.0)
    assert desk.book.kind_due(job, desk.now_s + 49.0) is None
    assert desk.book.kind_due(job, desk.now_s + 50.0) == "revisit"
    for _ in range(3):
        desk.promise(1, 50.0, 100.0, 200.0, "revisit")
    assert desk.book.kind_due(job, desk.now_s + 1e4) is None, "of one job so many are enough"


def test_no_policy_is_asked_about_what_was_told_and_the_book_is_a_value() -> None:
    desk = Watched("srtf")
    desk.run(1, expected_s=100.0)
    before = question_of(desk.engine, desk.book, seed=1).image
    desk.promise(1, 50.0, 100.0, 200.0)
    assert desk.commands == []
    assert question_of(desk.engine, desk.book, seed=1).image == before
    saved = msgspec.msgpack.encode(desk.book.save())
    again = EtaBook(msgspec.msgpack.decode(saved, type=SavedEtas))
    assert msgspec.msgpack.encode(again.save()) == saved
