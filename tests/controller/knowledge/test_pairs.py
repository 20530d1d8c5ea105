"""What was seen of pairs: counted, fading, one way each, and trusted above every rule."""

from __future__ import annotations

import pytest

from cotenant.controller.domain import Job, JobId, JobMeasurements, because
from cotenant.controller.domain import events as ev
from cotenant.controller.knowledge.pairs import COUNT_MAX, PairTable, signature
from cotenant.controller.performance import Profile
from tests.controller.building import Desk, profile, report, spec


def job(name: str, duty: float | None = None) -> Job:
    return Job(
        spec=spec(name, argv=("python", f"{name}.py")),
        number=1,
        submitted_s=0.0,
        reason=because("submitted", "ann"),
        measured=JobMeasurements(profile=None if duty is None else Profile(duty_cycle=duty)),
    )


def test_the_same_command_batch_workers_and_type_are_the_same_kind_whoever_submits_it() -> None:
    one, two = spec(1, argv=("python", "x.py")), spec(2, argv=("python", "x.py"))
    assert signature(one) == signature(two)
    for other in ({"argv": ("python", "y.py")}, {"batch_size": 8}, {"gpus": 2}, {"gpu_type": "T4"}):
        assert signature(spec(3, **{"argv": ("python", "x.py"), **other})) != signature(one)
    assert signature(spec(1, argv=("a", "b"))) != signature(spec(1, argv=("a b",)))


def test_observations_are_averaged_and_old_ones_fade() -> None:
    table, x, y = PairTable(), job("x"), job("y")
    for xi in (1.2, 1.4, 1.6):
        table.observe(x, y, xi)
    seen = table.interference(x, y)
    assert seen.first == pytest.approx(1.4)
    assert seen.source == "observed"
    for _ in range(10 * COUNT_MAX):
        table.observe(x, y, 2.0)
    assert table.interference(x, y).first == pytest.approx(2.0, abs=0.01)


def test_below_one_is_noise() -> None:
    table, x, y = PairTable(), job("x"), job("y")
    table.observe(x, y, 0.7)
    assert table.interference(x, y).first == 1.0


def test_a_side_that_was_never_seen_comes_from_the_rule() -> None:
    table, x, y = PairTable(), job("x", 0.9), job("y", 0.9)
    table.observe(x, y, 1.1)
    there, back = table.interference(x, y), table.interference(y, x)
    assert there.first == back.second == 1.1
    assert there.second == back.first == pytest.approx(1.8)


def test_jobs_that_share_teach_the_engine_their_ratio_and_later_decisions_use_it() -> None:
    desk = Desk("castor")
    light = profile(8, (1, 1.0, 100.0), duty=0.2)
    desk.run(1, profile=light, batch_size=8, expected_s=500.0, argv=("python", "x.py"))
    desk.run(2, profile=light, batch_size=8, expected_s=400.0, argv=("python", "y.py"))
    desk.wait(120)  # The medians of both are of this company.
    desk.progress(1, 10, 3.0)
    desk.progress(2, 10, 3.5)
    seen = desk.engine.ledger.pairs.interference(desk.job(1), desk.job(2))
    assert (seen.first, seen.second, seen.source) == (3.0, 3.5, "observed")
    desk.end(2)
    desk.progress(1, 20, 1.0)
    desk.submit(3, profile=light, batch_size=8, expected_s=400.0, argv=("python", "y.py"))
    assert desk.phase(3) == "queued"
    assert desk.why(3).startswith("sharing with 1 does not pay")


def test_a_pair_that_nobody_knows_teaches_nothing() -> None:
    desk = Desk("fifo", report("a", 2))
    desk.run(1)
    desk.tell(ev.PairObserved(first=JobId("1"), second=JobId("9"), first_xi=2.0, second_xi=2.0))
    assert desk.engine.ledger.pairs.interference(desk.job(1), desk.job(1)).source == "default"
