"""The table of shared paths in docs/operating.md is what three accounts find on a machine of its own:
`shared_places.py` beside this file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.one_box import run_apart, why_no_machine
from tests.live.shared_places import why_not_ours

PROGRAM = Path(__file__).with_name("shared_places.py")


@pytest.mark.root
def test_every_shared_path_is_as_the_table_has_it_and_nobody_takes_what_is_not_theirs(tmp_path: Path) -> None:
    if reason := why_no_machine() or why_not_ours():
        pytest.skip(reason)
    assert run_apart(PROGRAM, tmp_path).endswith("the table is true\n")
