"""Accumulation keeps one state per process: each test starts without any."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.gradaccum import exactness
from cotenant.gradaccum.schedule import PROGRESS, Progress

RANKS = "tests.checkpoint.ranks"


def _make_ranks_importable() -> None:
    """The same module object as the checkpoint tests', whoever comes first."""
    path = Path(__file__).resolve().parents[1] / "checkpoint" / "ranks.py"
    spec = importlib.util.spec_from_file_location(RANKS, path)
    assert spec is not None and spec.loader is not None
    sys.modules[RANKS] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


if RANKS not in sys.modules:
    _make_ranks_importable()

from tests.checkpoint.ranks import Warm, one_warm_process  # noqa: E402


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    yield from one_warm_process()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    PROGRESS.__dict__.update(vars(Progress()))
    exactness.GUARD.__init__()  # type: ignore[misc]
    yield
    PROGRESS.__dict__.update(vars(Progress()))
