"""Accumulation keeps one state per process: each test starts without any."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cotenant.gradaccum import exactness
from cotenant.gradaccum.schedule import PROGRESS, Progress
from tests.checkpoint.ranks import Warm, one_warm_process


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    yield from one_warm_process()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    PROGRESS.__dict__.update(vars(Progress()))
    exactness.GUARD.__init__()  # type: ignore[misc]
    yield
    PROGRESS.__dict__.update(vars(Progress()))
