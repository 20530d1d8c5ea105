"""A guest whose pace alone nobody knows: its slowdown is compared when it has run alone, or not at all."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cotenant.controller.desk.views import pair_views
from cotenant.controller.engine import Engine, Snapshot
from cotenant.controller.policies import registry
from tests.controller.building import Desk, profile

PROFILED = {"profile": profile(8, (1, 1.0, 300.0), duty=0.2), "batch_size": 8}


def shared() -> Desk:
    """1 was profiled; 2, which declared its memory, has shared from its first step on."""
    desk = Desk("sjf-ffs")
    desk.run(1, argv=("python", "x.py"), expected_s=100.0, **PROFILED)
    desk.submit(2, argv=("python", "y.py"), expected_s=500.0, memory_mib=300, iterations=1000)
    desk.start(2)
    assert desk.devices(1) == desk.devices(2)
    for step in (10, 20):
        desk.progress(1, step, 1.5)
    desk.progress(2, 10, 0.5)
    desk.progress(2, 20, 0.7)
    return desk


def seen(desk: Desk) -> Any:
    (pair,) = pair_views(desk.engine.pairs.seen(), 3)
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
    desk.end(1)
    desk.progress(2, 40, 0.4)
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
    desk.end(1)
    desk.progress(2, 100, 0.4)
    assert seen(desk).second_count == 3


def test_a_restart_in_between_changes_nothing() -> None:
    desk = shared()
    written = msgspec.msgpack.encode(desk.engine.snapshot())
    desk.engine = Engine(registry.make, desk.engine.config, validate=True)
    desk.engine.restore(msgspec.msgpack.decode(written, type=Snapshot))
    desk.end(1)
    desk.progress(2, 40, 0.4)
    assert (seen(desk).second_xi, seen(desk).second_count) == (pytest.approx(1.5), 2)
