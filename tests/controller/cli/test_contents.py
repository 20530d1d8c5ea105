"""What `checkpoint verify` sees of the files that a command has left."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cotenant.controller.cli.jobs.contents import parts_of, unequal_parts
from cotenant.controller.cli.jobs.scratch import is_alike_any


def saved(path: Path, value: Any) -> dict[str, str]:
    torch.save(value, path)
    return parts_of(path)


def test_values_that_differ_have_their_path(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    tree = {"net": model.state_dict(), "best": [0.5, 0.25], "kinds": {1, 2}, "type": torch.float32}
    before = saved(tmp_path / "a.pt", tree)
    with torch.no_grad():
        model.bias[0] += 1.0
    tree["best"] = [0.5, 0.125]
    after = saved(tmp_path / "a.pt", tree)
    assert unequal_parts(before, after) == ["net.bias", "best[1]"]
    del tree["kinds"]
    assert "kinds" in unequal_parts(before, saved(tmp_path / "a.pt", tree))


def test_which_values_are_one_object_does_not_count(tmp_path: Path) -> None:
    """A resume makes two equal strings of one, and other files of the same values."""
    word = "a long word, that is no name"
    one = saved(tmp_path / "a.pt", {"x": word, "y": word, "weights": torch.ones(3)})
    two = saved(tmp_path / "b.pt", {"x": word, "y": word[:3] + word[3:], "weights": torch.ones(3)})
    assert (tmp_path / "a.pt").read_bytes() != (tmp_path / "b.pt").read_bytes()
    assert one == two


class Harmful:
    def __reduce__(self) -> Any:
        return os.abort, ()


def test_nothing_of_a_pickle_is_called(tmp_path: Path) -> None:
    path = tmp_path / "harmful.pkl"
    path.write_bytes(pickle.dumps({"a": Harmful(), "b": 1}))
    assert sorted(parts_of(path)) == ["a", "b"]


@pytest.mark.parametrize("data", [b"", b"text", b"\x80\x04broken", pickle.dumps(1) + b"more"])
def test_other_files_are_compared_by_their_bytes(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    whole = parts_of(path)
    assert list(whole) == [""]
    path.write_bytes(data + b"!")
    assert parts_of(path) != whole


def test_what_holds_itself_is_seen(tmp_path: Path) -> None:
    ring: list[Any] = [1]
    ring.append(ring)
    path = tmp_path / "ring.pkl"
    path.write_bytes(pickle.dumps(ring))
    assert parts_of(path) == parts_of(path)


def test_a_name_with_the_time_in_it_is_alike() -> None:
    assert is_alike_any("runs/events.1699", ["runs/events.17000"])
    assert not is_alike_any("runs/best.pt", ["runs/last.pt"])
