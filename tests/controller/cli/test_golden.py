"""Every verb, its formats and its help pages, word for word as `golden/` has them."""

from __future__ import annotations

import pytest

from tests.controller.cli.golden import FILES, FOLDER, transcript


@pytest.mark.parametrize("name", FILES)
def test_what_is_said_is_as_it_was(name: str) -> None:
    assert transcript(name) == (FOLDER / f"{name}.txt").read_text(), "is it meant? see golden.py"


def test_no_file_is_left_of_a_verb_that_is_no_more() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == {*FILES}
