"""Fixtures of the live tests: a private cluster of real processes, and undisturbed runs to compare with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.building.limits import within_s
from tests.checkpoint.ranks import Warm, one_warm_process
from tests.live.cluster import EAGER, Cluster, References, one_cluster

TEST_S_MAX = within_s(450.0)
"""A test that hangs fails by itself, and not the whole part with it."""
LONGEST_FIRST = (
    "test_workloads", "test_controller", "test_storm", "test_failover", "test_slurm_alloc",
    "test_steer_slurm", "test_gang_over_hosts", "test_bad_storage", "test_gpu_chaos",
    "test_agent", "test_tutorial", "test_unchanged_scripts", "test_supervisor", "test_bad_jobs",
    "test_hanging", "test_warm_cluster", "test_profile", "test_command_line", "test_python_api",
    "test_elastic", "test_classes", "test_lazer_live", "test_cotenant_live", "test_warm_start",
)  # fmt: skip
"""Modules are handed out to several processes in this order: none begins a long one when the others end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    items.sort(key=lambda item: rank(item.path) if item.path.parent == here else len(LONGEST_FIRST) + 1)
    for item in items:
        if item.path.parent == here:
            item.add_marker(pytest.mark.timeout(TEST_S_MAX))


def rank(path: Path) -> int:
    return LONGEST_FIRST.index(path.stem) if path.stem in LONGEST_FIRST else len(LONGEST_FIRST)


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short: sockets lie in it, also those of torch's loaders."""
    return tmp_path_factory.mktemp("t")


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """No daemon in it is started yet."""
    yield from one_cluster(tmp_path, request.session)


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    yield from one_warm_process(modules=("torch._dynamo", "torch._inductor.config"), path=EAGER)


@pytest.fixture(scope="session")
def references(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> References:
    return References(warm, tmp_path_factory.mktemp("references"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short, because sockets lie in it."""
    return tmp_path_factory.mktemp("h")


@pytest.fixture(scope="module")
def environ(home: Path) -> dict[str, str]:
    """Of a person with one CPU slot and no settings, all of whose folders lie in `home`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COTENANT_")}
    mark = {name: value for name, value in os.environ.items() if name == "COTENANT_TEST_RUN"}
    return {
        **kept,
        **mark,
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(home),
        "XDG_STATE_HOME": str(home / "state"),
        "XDG_CONFIG_HOME": str(home / "config"),
        "COTENANT_LOCK_DIR": str(home / "locks"),
        "COTENANT_AGENT__DEVICES": "cpu:1",
    }
