"""What a loop has made is written by what it is, and made again in a new process."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy
import pytest
import torch

from cotenant.checkpoint.picture import Picture
from cotenant.checkpoint.zerocode.refusals import NotResumable
from cotenant.checkpoint.zerocode.state_reader import StateReader
from cotenant.checkpoint.zerocode.state_writer import StateWriter


def taken_over(kept: dict[str, Any]) -> dict[str, Any]:
    """What a new process has, whose dict was empty when the loop began, as this one was."""
    nothing: Any = None
    here: dict[str, Any] = {}
    before = Picture([("kept", here)], digests=True)
    here.update(kept)
    state = StateWriter(before, Picture([("kept", here)], digests=True), nothing, {}).write()
    there: dict[str, Any] = {}
    reader = StateReader(state, Picture([("kept", there)], digests=True, aliases=True), nothing)
    assert reader.put_back() == []
    return there


def test_a_named_tuple_of_a_class_made_in_the_loop_is_made_again() -> None:
    made: Any = namedtuple("made", ["rows", "class"], rename=True)
    kept = taken_over({"one": made(torch.arange(3), 1), "other": made([2], None)})
    one, other = kept["one"], kept["other"]
    assert type(one) is type(other) is not made
    assert (type(one).__name__, type(one).__module__, type(one).__qualname__) == ("made", __name__, "made")
    assert one._fields == ("rows", "_1")
    assert one.rows.tolist() == [0, 1, 2]
    assert other == ([2], None)


def with_another_text() -> Any:
    made: Any = namedtuple("made", ["rows"])
    made.__repr__ = lambda self: "rows"  # type: ignore[method-assign]
    return made


def with_a_default() -> Any:
    return namedtuple("made", ["rows"], defaults=[1])


def with_a_method() -> Any:
    class Made(NamedTuple):
        rows: int

        def count(self, *_: Any) -> int:
            return self.rows

    return Made


def with_a_base() -> Any:
    return type("Made", (namedtuple("made", ["rows"]),), {})


@pytest.mark.parametrize("make", [with_another_text, with_a_default, with_a_method, with_a_base])
def test_a_class_made_in_the_loop_that_is_more_than_its_names_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(NotResumable, match="a class that was made in the loop"):
        taken_over({"one": make()(1)})


def test_random_numbers_of_what_the_loop_imports_first_are_written() -> None:
    """Torch itself imports numpy late."""
    nothing: Any = None
    root: tuple[str, Any] = ("kept", {})
    numpy.random.seed(5)
    now = Picture([root, ("numpy's random numbers", numpy.random.mtrand._rand)])
    state = StateWriter(Picture([root]), now, nothing, {}).write()
    drawn = numpy.random.rand()
    assert StateReader(state, Picture([root], aliases=True), nothing).put_back() == []
    assert numpy.random.rand() == drawn
