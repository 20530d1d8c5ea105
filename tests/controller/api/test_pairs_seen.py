"""What is told of pairs: verdicts, why one is not made again, order and bounds; asked of a real desk."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cotenant.controller.api.queries import pair_views
from cotenant.controller.api.sharing import sharing_view
from cotenant.controller.domain import JobId
from cotenant.controller.history import accounts
from cotenant.controller.knowledge import PairSeen, PairTable, PairVerdict, kind_of, loses
from cotenant.controller.performance import Interference
from cotenant.controller.present.sharing import slowdown
from cotenant.controller.wire import clients
from tests.controller.building import spec
from tests.controller.knowledge.test_pairs import job
from tests.controller.station import Station


def table() -> PairTable:
    """x and y suit each other, x and z lose, y and z ran out of memory, z beside itself takes turns."""
    found = PairTable()
    x, y, z = job("x"), job("y"), job("z")
    for _ in range(3):
        for one, two, there, back in ((x, y, 1.1, 1.2), (x, z, 2.6, 2.4), (z, z, 2.0, 2.0)):
            found.observe(one, two, there)
            found.observe(two, one, back)
    found.observe(y, z, 1.0)
    found.note_crowding(y, z)
    return found


def test_each_kind_of_pair_is_told_once_the_worst_first() -> None:
    views = pair_views(table().list_seen(), 3)
    told = [(sorted((v.first, v.second)), v.verdict) for v in views]
    x, y, z = "python x.py", "python y.py", "python z.py"
    assert told == [([x, z], "loses"), ([y, z], "crowded"), ([z, z], "even"), ([x, y], "pays")]
    crowded = next(view for view in views if view.verdict == "crowded")
    assert crowded.quarantine == "python y.py ran out of device memory beside python z.py (1 x)"
    assert {crowded.first_xi, crowded.second_xi} == {1.0, None}
    assert crowded.benefit is None
    lost = views[0]
    assert lost.quarantine == "together they get less done than taking turns"
    assert lost.benefit == pytest.approx(1 / 2.6 + 1 / 2.4 - 1)
    assert (lost.first_count, lost.second_count) == (3, 3)
    own = next(view for view in views if view.first == view.second)
    assert (own.first_xi, own.first_count) == (2.0, 6)


@pytest.mark.parametrize(("steps", "ratio"), [(5.0, None), (29.0, None), (30.0, 3.5)])
def test_pairs_and_show_tell_one_ratio_or_none(steps: float, ratio: float | None) -> None:
    """Of jobs that are remembered it is what they have done; a few steps say nothing in either."""
    row = accounts.SharedWork(
        beside=(JobId("2"),), seconds=35.0, device_s=17.0, steps=steps, alone_s=10.0, work_device_s=10.0,
        predicted_s=None, slowdown=None,
    )  # fmt: skip
    seen = accounts.Sums()
    seen.add(row)
    pair = next(
        each for each in table().list_seen() if {"x.py", "y.py"} == {each.first[-4:], each.second[-4:]}
    )
    view = pair_views([pair], 3, sums={pair.keys: seen})[0]
    assert view.first_xi == ratio
    assert view.second_xi is not None, "of the other nothing is remembered: what was learned stands"
    assert (view.benefit is None) == (ratio is None)
    told = slowdown(sharing_view(row))
    said = "3.50 times as long as alone" if ratio else f"too few steps yet ({steps:.0f} of 30)"
    assert told == f"beside job 2: {said}"


def test_a_verdict_needs_measurements_both_ways() -> None:
    assert {view.verdict for view in pair_views(table().list_seen(), 4)} == {"unsure", "crowded", "even"}
    for verdict in ("loses", "pays"):
        assert verdict in {view.verdict for view in pair_views(table().list_seen(), 3)}


def test_only_what_was_asked_for() -> None:
    assert len(pair_views(table().list_seen(), 3, "x.py")) == 2
    assert pair_views(table().list_seen(), 3, "nothing") == []


def test_what_was_only_told_beforehand_is_not_what_was_seen() -> None:
    told = PairTable()
    told.know(spec("x"), spec("y"), 1.5)
    assert told.list_seen() == []


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [(1.0, 1.0, "pays"), (2.0, 2.0, "even"), (2.1, 2.1, "even"), (2.2, 2.2, "loses"), (1.0, 9.0, "pays")],
)
def test_the_verdict_is_by_the_work_done_together(first: float, second: float, wanted: PairVerdict) -> None:
    pair = PairSeen(
        first="a", second="b", first_xi=first, second_xi=second, first_count=3, second_count=3,
        first_out_of_memory=0, second_out_of_memory=0,
    )  # fmt: skip
    assert pair.verdict(3) == wanted
    xi = Interference(first=first, second=second, source="observed", count=3, both=True)
    assert loses(xi, 3) == (wanted == "loses")
    assert xi.swap().gain == pytest.approx(xi.gain)


def test_a_kind_is_named_by_what_it_runs() -> None:
    one = spec(1, argv=("/opt/venv/bin/python", "train.py", "--lr", "0.1"), batch_size=32, gpus=2)
    assert kind_of(one) == "python train.py --lr 0.1 x2, batch 32"
    assert kind_of(spec(1, argv=())) == "no command"
    assert len(kind_of(spec(1, argv=("python", "x" * 500)))) == 60


def test_anybody_may_ask(stations: Callable[..., Station]) -> None:
    station = stations(policy="castor")
    reply = station.ask(clients.ListPairs())
    assert (reply.pairs, reply.observations, reply.more) == ((), 2, 0)
    station.ask(clients.SetPolicy(name="castor", parameters={"observations": 5}))
    assert station.ask(clients.ListPairs(limit=-3)).observations == 5


def test_more_than_were_asked_for_are_counted(stations: Callable[..., Station]) -> None:
    station = stations()
    station.core.state.engine.ledger.pairs.entries.update(table().entries)
    reply = station.ask(clients.ListPairs(limit=1))
    assert (len(reply.pairs), reply.more) == (1, 3)
    assert reply.pairs[0].verdict == "loses"
    assert station.ask(clients.ListPairs(containing="y.py")).more == 0
