"""A runner for the tests of this folder; others make theirs in the same way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unchanged.runs import Runner, one_runner


@pytest.fixture(scope="session")
def runner() -> Iterator[Runner]:
    with one_runner() as made:
        yield made
