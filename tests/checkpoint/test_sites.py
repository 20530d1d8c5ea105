"""In which turn a loop is, as its variables say."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from cotenant.checkpoint.progress.loops import Loaders
from cotenant.checkpoint.zerocode.refusals import NotResumable
from cotenant.checkpoint.zerocode.sites import stand_at


def turns_of(folder: Path, source: str) -> list[int]:
    """What each `step()` of a script says of the innermost loop around it."""
    file, seen = folder / "train.py", []

    def step() -> None:
        standing = stand_at(sys._getframe(1), Loaders(), lambda *_: [])
        seen.append(standing.sites[-1].passed)

    file.write_text(f"from itertools import count\nimport itertools\n{source}")
    script = types.ModuleType("train")
    vars(script).update(step=step, __file__=str(file))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "train", script)
        exec(compile(file.read_text(), str(file), "exec"), vars(script))
    return seen


@pytest.mark.parametrize(
    "count", ["count()", "count(1)", "itertools.count(10, 3)", "count(start=4, step=-2)", "count(step=2)"]
)
def test_a_count_says_its_turn(tmp_path: Path, count: str) -> None:
    source = f"for i in {count}:\n  step()\n  if i in (3, 19, -2, 6):\n    break"
    turns = turns_of(tmp_path, source)
    assert turns == list(range(len(turns)))
    assert len(turns) > 2


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("for i in count(0.5):\n  step()", "`0.5` is no whole number"),
        ("for i in count(0, 0):\n  step()", "nothing says in which turn the loop over `count(0, 0)` is"),
        ("for i in count():\n  step()\n  i += 1", "`i` counts the turns of this loop, and is set in it"),
        (
            "def count(first):\n  yield first\nfor i in count(1):\n  step()",
            "nothing says in which turn the loop over `count(1)` is",
        ),
    ],
)
def test_a_count_that_does_not_say_it_is_refused(tmp_path: Path, source: str, why: str) -> None:
    with pytest.raises(NotResumable) as refused:
        turns_of(tmp_path, source)
    assert why in str(refused.value)
