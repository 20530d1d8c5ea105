"""Accumulation keeps one state per process: each test starts without any."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cotenant.gradaccum import exactness
from cotenant.gradaccum.schedule import PROGRESS, Progress


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    PROGRESS.__dict__.update(vars(Progress()))
    exactness.GUARD.__init__()  # type: ignore[misc]
    yield
    PROGRESS.__dict__.update(vars(Progress()))
