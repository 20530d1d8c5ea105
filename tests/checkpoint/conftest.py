"""Fixtures of the job-side tests: one warm process per run, and `tests.checkpoint.ranks` made importable."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


def _make_importable(name: str) -> None:
    """Tests have no packages; mypy and the import statement both find the module under this name."""
    full_name = f"tests.checkpoint.{name}"
    spec = importlib.util.spec_from_file_location(full_name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[full_name] = module
    spec.loader.exec_module(module)


_make_importable("ranks")

from tests.checkpoint.ranks import Warm  # noqa: E402


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    process = Warm()
    yield process
    process.close()
