"""Fixtures of the job-side tests: one warm process per session of tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent))  # for `ranks`: test folders are not packages

from ranks import Warm  # noqa: E402


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    process = Warm()
    yield process
    process.close()
