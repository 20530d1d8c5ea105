"""Fixtures of the live tests: a private cluster of real processes, and undisturbed runs to compare with."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `tests.live.cluster`

from tests.checkpoint.ranks import Warm, one_warm_process
from tests.live.cluster import Cluster, References, one_cluster


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """No daemon in it is started yet."""
    yield from one_cluster(tmp_path, request.session)


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    yield from one_warm_process()


@pytest.fixture(scope="session")
def references(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> References:
    return References(warm, tmp_path_factory.mktemp("references"))
