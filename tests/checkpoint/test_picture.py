"""A picture sees every change of what can be reached, says where it is, and undoes it."""

from __future__ import annotations

import collections
import functools
import gc
import itertools
import os
import random
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from cotenant.checkpoint.picture import Picture, process_roots


class Slotted:
    __slots__ = ("kept", "unset")

    def __init__(self) -> None:
        self.kept = 1


class Holder:
    """An object with a bit of everything."""

    shared = 0

    def __init__(self) -> None:
        self.count = 0
        self.rows: list[int] = [1, 2, 3]
        self.names = {"a": [1], ("b", 2): 2}
        self.seen = {1, 2}
        self.recent = collections.deque([1, 2], maxlen=2)
        self.ordered = collections.OrderedDict(x=1, y=2)
        self.counts = collections.Counter("aab")
        self.tensor = torch.arange(4.0)
        self.named: Any = torch.zeros(1)
        self.named.__dict__["note"] = 1
        self.array = numpy.arange(4.0)
        self.objects = numpy.array([[1], {}], dtype=object)
        self.drawn = torch.Generator().manual_seed(1)
        self.python = random.Random(1)
        self.numpy = numpy.random.default_rng(1)
        self.legacy = numpy.random.RandomState(1)
        self.slots = Slotted()
        self.partial = functools.partial(print, [1])
        self.append = self.rows.append
        self.next_number = self._closure()

    def _closure(self) -> Callable[[], int]:
        number = 0

        def count() -> int:
            nonlocal number
            number += 1
            return number

        return count

    def __getattr__(self, name: str) -> Any:
        raise AssertionError("a picture calls nothing of the script's")

    def __eq__(self, other: object) -> bool:
        raise AssertionError("a picture compares nothing by the script's own operators")

    def __hash__(self) -> int:
        raise AssertionError("a picture hashes nothing of the script's")


def _draw_all(held: Holder) -> None:
    torch.rand(1, generator=held.drawn)
    held.python.random()
    held.numpy.random()
    held.legacy.rand()


def _reorder(held: Holder) -> None:
    held.ordered.move_to_end("x")


CHANGES: dict[str, tuple[Callable[[Holder], object], set[str]]] = {
    "an attribute": (lambda held: setattr(held, "count", 1), {"held.count"}),
    "a new attribute": (lambda held: setattr(held, "more", 1), {"held.more"}),
    "an attribute that is gone": (lambda held: delattr(held, "count"), {"held.count"}),
    "a list that grows": (lambda held: held.rows.append(4), {"held.rows"}),
    "a list through a bound method": (lambda held: held.append(5), {"held.rows"}),
    "an item": (lambda held: held.rows.__setitem__(1, 7), {"held.rows[1]"}),
    "an item of a dictionary": (lambda held: held.names.__setitem__("a", [2]), {"held.names['a']"}),
    "a list in a dictionary": (lambda held: held.names["a"].append(2), {"held.names['a']"}),  # type: ignore[attr-defined]
    "a deque": (lambda held: held.recent.append(3), {"held.recent[0]"}),
    "a counter": (lambda held: held.counts.update("a"), {"held.counts['a']"}),
    "the order of a dictionary": (_reorder, {"held.ordered"}),
    "a tensor": (lambda held: held.tensor.add_(1), {"held.tensor"}),
    "a tensor's first attribute": (lambda held: setattr(held.tensor, "label", 1), {"held.tensor.label"}),
    "an attribute of a tensor": (lambda held: setattr(held.named, "note", 2), {"held.named.note"}),
    "an array": (lambda held: numpy.add.at(held.array, 0, 1), {"held.array"}),
    "an object in an array": (lambda held: held.objects[0].append(1), {"held.objects[0]"}),
    "generators": (_draw_all, {"held.drawn", "held.python", "held.numpy", "held.legacy"}),
    "a slot": (lambda held: setattr(held.slots, "kept", 2), {"held.slots.kept"}),
    "a slot that was not set": (lambda held: setattr(held.slots, "unset", 2), {"held.slots.unset"}),
    "an argument of a partial": (lambda held: held.partial.args[0].append(1), {"held.partial.args[0]"}),
    "a closure": (lambda held: held.next_number(), {"held.next_number<number>"}),
    "the class": (lambda held: setattr(Holder, "shared", 1), {"held class Holder.shared"}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_has_its_path_and_is_undone(name: str) -> None:
    change, paths = CHANGES[name]
    held = Holder()
    picture = Picture([("held", held)], copies=True)
    assert picture.changes() == []
    change(held)
    assert {each.path for each in picture.changes()} == paths
    assert picture.put_back() == []
    assert picture.changes() == []
    assert held.tensor.tolist() == held.array.tolist() == [0, 1, 2, 3]
    assert held.rows == [1, 2, 3]
    assert list(held.ordered) == ["x", "y"]
    assert held.__dict__["count"] == Holder.shared == 0


def _half_way() -> Iterator[int]:
    yield from range(3)


@pytest.mark.parametrize(
    ("value", "change"),
    [
        (itertools.count(3), next),
        (iter([1, 2, 3]), next),
        (_half_way(), next),
        (functools.lru_cache(lambda: 1), lambda cached: cached()),
        (torch.zeros(1 << 19), lambda tensor: tensor.add_(1)),
        (numpy.zeros(1 << 19), lambda array: array.fill(1)),
    ],
    ids=["count", "iterator", "generator", "cache", "large tensor", "large array"],
)
def test_what_cannot_be_put_back_is_named(value: Any, change: Callable[[Any], object]) -> None:
    picture = Picture([("value", value)], copies=True)
    change(value)
    assert picture.put_back() == ["value"]


def test_a_tensor_without_attributes_gets_no_dictionary_by_being_looked_at() -> None:
    parameter = nn.Parameter(torch.ones(2))
    parameter.register_hook(lambda gradient: gradient)  # type: ignore[no-untyped-call]
    picture = Picture([("parameter", parameter)], digests=True)
    picture.let_go()
    with picture.hold():
        assert picture.changes() == []
    picture.digests()
    picture.values()
    assert not any(type(each) is dict for each in gc.get_referents(parameter))
    parameter.__dict__["note"] = 1
    with picture.hold():
        assert [each.path for each in picture.changes()] == ["parameter.note"]


def test_a_tensor_that_was_put_back_counts_as_never_written() -> None:
    weight = torch.ones(2, requires_grad=True)
    factor = torch.tensor([2.0, 3.0])
    loss = (weight * factor).sum()  # Its backward pass needs the factor as it is.
    picture = Picture([("factor", factor)], copies=True)
    factor.zero_()
    assert picture.put_back() == []
    loss.backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0, 3.0]


def test_modules_are_read_as_objects() -> None:
    norm = nn.BatchNorm1d(2)
    model = nn.Sequential(nn.Linear(2, 2), norm)
    picture = Picture([("model", model)], copies=True)
    model[0].register_forward_hook(lambda *_: None)
    torch.autograd.backward(model(torch.ones(3, 2)).sum())
    model.eval()
    paths = {each.path for each in picture.changes()}
    assert "model.1.running_mean" in paths
    assert "model.training" in paths
    assert any(path.startswith("model.0._forward_hooks") for path in paths)
    assert "model.0.weight" in paths  # Its gradient.
    assert picture.put_back() == []
    assert model.training and model[0].weight.grad is None
    assert norm.num_batches_tracked is not None
    assert norm.num_batches_tracked.item() == 0


def test_the_process_is_what_all_code_can_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    own = types.ModuleType("its_own")
    own.__file__ = "/somewhere/its_own.py"
    own.calls = 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "its_own", own)
    picture = Picture(process_roots(), copies=True)
    own.calls = 1  # type: ignore[attr-defined]
    os.environ["ITS_OWN"] = "1"
    torch.rand(1)
    random.random()
    numpy.random.rand()
    found = {each.path for each in picture.changes()}
    assert {
        "its_own.calls",
        "os.environ['ITS_OWN']",
        "torch's random numbers",
        "random's numbers",
        "numpy's random numbers",
    } <= found
    picture.put_back()
    assert own.calls == 0
    assert "ITS_OWN" not in os.environ


def test_an_address_is_written_as_the_object_that_it_is_of() -> None:
    """Two processes have the same objects elsewhere."""

    def shown() -> dict[str, int]:
        first, second = Holder(), Holder()
        by_address = {id(first): 1, id(second): 2}
        referred = (weakref.ref(first), weakref.ref(second))
        return Picture([("all", [first, second, by_address, referred])]).digests()

    assert shown() == shown()


def test_settings_of_the_process_are_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    picture = Picture(process_roots())
    monkeypatch.chdir(tmp_path)
    with numpy.errstate(all="raise"), torch.autograd.set_detect_anomaly(True):
        found = {each.path for each in picture.changes()}
    assert found >= {"settings: os.getcwd()"}
    before = Picture(process_roots())
    assert [each.path for each in before.changes() if each.path.startswith("settings")] == []


def test_iterators_tell_how_far_they_are() -> None:
    """Also one that goes round, whose place is in none of its parts."""
    rounds = itertools.cycle([1, 2, 3])
    for _ in range(4):
        next(rounds)
    picture = Picture([("rounds", rounds)])
    next(rounds)
    assert [each.path for each in picture.changes()] == ["rounds"]
