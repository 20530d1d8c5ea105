"""Fixtures of the job-side tests: one warm process per run, and `tests.checkpoint.ranks` made importable."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

RANKS = "tests.checkpoint.ranks"


def _make_ranks_importable() -> None:
    """Tests have no packages; mypy and the import statement both find the module under this name."""
    spec = importlib.util.spec_from_file_location(RANKS, Path(__file__).with_name("ranks.py"))
    assert spec is not None and spec.loader is not None
    sys.modules[RANKS] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


if RANKS not in sys.modules:
    _make_ranks_importable()

from tests.checkpoint.ranks import Warm, one_warm_process  # noqa: E402


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    yield from one_warm_process()
