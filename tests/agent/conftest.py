"""Fixtures of the agent's tests: a machine with GPUs that are not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.mock_gpus import MockGpus, build


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("old-nvml"), "-DOLD_DRIVER")


@pytest.fixture
def gpus(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MockGpus:
    """Two GPUs, for every process that the test starts."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library))
    monkeypatch.setenv("COTENANT_MOCK_NVML", str(tmp_path / "gpus"))
    return MockGpus(tmp_path / "gpus")
