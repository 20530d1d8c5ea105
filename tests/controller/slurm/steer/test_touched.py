"""The list of touched jobs: one process has it, and it is there after a crash."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cotenant.controller.present.problem import Problem
from cotenant.controller.slurm.steer.steerer import Touched, TouchedFile, read


def test_what_was_written_is_read_by_the_next_one(tmp_path: Path) -> None:
    file = TouchedFile(tmp_path / "deep" / "c.json")
    wanted = Touched(cluster="c", order="sjf", partitions=("a",), mark=3, jobs={7: 1.5, 9: 2.0})
    file.write(**msgspec.structs.asdict(wanted))
    with pytest.raises(Problem, match="another steerer on this machine has it"):
        TouchedFile(file.path)
    file.close()
    again = TouchedFile(file.path)
    assert again.now == wanted
    again.close()


def test_a_file_that_is_not_there_lists_nothing(tmp_path: Path) -> None:
    assert read(tmp_path / "c.json") == Touched()


@pytest.mark.parametrize("text", ["", "{", '{"version": 2}', '{"jobs": 3}'])
def test_a_file_that_cannot_be_read_is_never_taken_for_an_empty_one(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(Problem, match=r"c\.json"):
        read(path)
