"""Loops in the manner of public ones are resumed bit for bit or refused with what is in the way, and at least
four of five are exact."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.checkpoint.habits import MODULES, PUBLIC, PUBLIC_NAMES, unexpected
from tests.checkpoint.ranks import Warm, one_warm_process

REFUSED: Final[dict[str, str]] = {
    "examples_regression": "no optimizer has made a step",
}
"""By script: the piece of the refusal that says what is in the way. All others are exact."""


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    yield from one_warm_process(MODULES)


@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_a_public_loop_is_exact_or_refused(warm: Warm, tmp_path: Path, name: str) -> None:
    assert not unexpected(warm, tmp_path, name, scripts=PUBLIC, refused=REFUSED)


def test_at_least_four_of_five_are_exact() -> None:
    """Each that is not refused is shown to be exact above."""
    assert REFUSED.keys() <= set(PUBLIC_NAMES)
    assert 1 - len(REFUSED) / len(PUBLIC_NAMES) >= 0.8
