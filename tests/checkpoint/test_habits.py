"""Whatever an author's habit is, the script is resumed bit for bit or refused with the line in the way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoint.habits import MODULES, NAMES, STOPS, Kind, outcome_of
from tests.checkpoint.ranks import Warm, one_warm_process

EXACT = ""
EXPECTED: dict[str, str] = {}
"""By script: exact, or the piece of the refusal that names what is in the way."""


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    yield from one_warm_process(MODULES)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_exact_or_refused_and_never_silently_different(warm: Warm, tmp_path: Path, name: str) -> None:
    outcome = outcome_of(warm, tmp_path, name)
    assert outcome.kind in (Kind.EXACT, Kind.REFUSED), f"stops of seed {name!r}"
    assert name in EXPECTED
    if EXPECTED[name] is EXACT:
        assert (outcome.kind, outcome.said, len(outcome.stops)) == (Kind.EXACT, "", STOPS)
    else:
        assert outcome.kind is Kind.REFUSED
        assert EXPECTED[name] in outcome.said
