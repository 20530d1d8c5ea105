"""Fixtures of the job-side tests: one warm process per run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.checkpoint.ranks import Warm, one_warm_process


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    yield from one_warm_process()
