"""A guest whose pace alone nobody knows: its slowdown is compared when it has run alone, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from cotenant.controller.api import pair_views
from cotenant.controller.knowledge import OBSERVATIONS
from tests.controller.building import Desk, profile

PROFILED = {"profile": profile(8, (1, 1.0, 300.0), duty=0.2), "batch_size": 8}


def shared() -> Desk:
    """1 was profiled; 2, which declared its memory, has shared from its first step on."""
    desk = Desk("sjf-ffs")
    desk.run(1, argv=("python", "x.py"), expected_s=100.0, **PROFILED)
    desk.submit(2, argv=("python", "y.py"), expected_s=500.0, memory_mib=300, iterations=1000)
    desk.start(2)
    assert desk.devices(1) == desk.devices(2)
    desk.wait(60)
    for step in (10, 20):
        desk.progress(1, step, 1.5)
    desk.progress(2, 10, 0.5)
    desk.progress(2, 20, 0.7)
    return desk


def alone(desk: Desk, step: int, step_s: float) -> None:
    desk.end(1)
    desk.wait(60)
    desk.progress(2, step, step_s)


def seen(desk: Desk) -> Any:
    (pair,) = pair_views(desk.engine.ledger.pairs.list_seen(), 3)
    return pair if pair.first == "python x.py, batch 8" else _swapped(pair)


def _swapped(pair: Any) -> Any:
    other = {"first": "second", "second": "first"}
    told = {name: getattr(pair, name) for name in pair.__struct_fields__}
    for name in pair.__struct_fields__:
        head, _, rest = name.partition("_")
        if head in other:
            told[name] = getattr(pair, "_".join(filter(None, (other[head], rest))))
    return type(pair)(**told)


def test_until_it_has_run_alone_the_pair_says_so() -> None:
    pair = seen(shared())
    assert (pair.first_xi, pair.first_never_alone) == (1.5, False)
    assert (pair.second_xi, pair.second_count, pair.second_never_alone) == (None, 0, True)
    assert (pair.benefit, pair.verdict) == (None, "unsure")


def test_its_pace_alone_after_the_partner_has_left_settles_it() -> None:
    desk = shared()
    alone(desk, 40, 0.4)
    pair = seen(desk)
    assert pair.second_xi == pytest.approx(0.6 / 0.4)
    assert (pair.second_count, pair.second_never_alone) == (2, False)
    assert pair.benefit == pytest.approx(1 / 1.5 + 1 / 1.5 - 1)
    desk.progress(2, 60, 0.4)
    assert seen(desk).second_count == 2, "it is counted once"


def test_it_counts_as_no_more_than_a_verdict_needs() -> None:
    desk = shared()
    for step in range(30, 90, 10):
        desk.progress(2, step, 0.6)
    alone(desk, 100, 0.4)
    assert seen(desk).second_count == OBSERVATIONS


def test_a_restart_in_between_changes_nothing() -> None:
    desk = shared()
    desk.restart()
    alone(desk, 40, 0.4)
    assert (seen(desk).second_xi, seen(desk).second_count) == (pytest.approx(1.5), 2)


# --- Medians lag ---------------------------------------------------------------------------------------


def test_a_step_time_from_before_the_company_changed_says_nothing_of_the_pair() -> None:
    desk = Desk("sjf-ffs")
    known = {"expected_s": 900.0, **PROFILED}
    desk.run(1, argv=("python", "x.py"), **known)
    desk.wait(60)
    desk.submit(2, argv=("python", "y.py"), **known)
    desk.start(2)
    desk.progress(1, 60, 1.0)  # Still the median of its time alone.
    assert desk.engine.ledger.pairs.list_seen() == []
    desk.wait(30)
    desk.progress(1, 80, 1.4)
    assert desk.engine.ledger.pairs.list_seen() == [], "31 reports of a step each are not over yet"
    desk.wait(30)
    desk.progress(1, 90, 1.6)
    assert seen(desk).first_xi == pytest.approx(1.6)


def test_nor_does_one_just_after_a_co_tenant_has_left_of_the_time_alone() -> None:
    desk = shared()
    before_s = desk.job(1).measured.solo_step_s
    desk.end(2)
    desk.progress(1, 30, 1.5)
    assert desk.job(1).measured.solo_step_s == before_s
    desk.wait(60)
    desk.progress(1, 90, 1.1)
    assert desk.job(1).measured.solo_step_s == 1.1
