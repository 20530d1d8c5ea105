"""GPUs that are not there: libraries of our own (`nvml/`) and the file that they read."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent / "nvml"
LIBRARIES = {"libnvidia-ml.so.1": "mock_nvml.c", "libcuda.so.1": "mock_cuda.c"}
ONE = "GPU-1a2b3c4d-0000-0000-0000-000000000000"
TWO = "GPU-2a2b3c4d-0000-0000-0000-000000000000"


def build(folder: Path, *flags: str) -> Path:
    """The folder for LD_LIBRARY_PATH."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) here: the mock of NVML cannot be built")
    for library, source in LIBRARIES.items():
        command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", f"-Wl,-soname,{library}", *flags]
        command += ["-o", str(folder / library), str(SOURCES / source)]
        done = subprocess.run(command, capture_output=True, text=True)
        if "stdio.h: No such file" in done.stderr:
            pytest.skip("the C library's headers are not installed here: the mock of NVML cannot be built")
        assert done.returncode == 0, done.stderr
    return folder


class MockGpus:
    """What the library says, for all processes that are started from now on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.facts: list[str] = []
        self.say("gpu 0 uuid " + ONE, "gpu 0 name NVIDIA H200", "gpu 1 uuid " + TWO)

    def say(self, *facts: str) -> None:
        """More facts; a later one of a kind counts."""
        self.facts += facts
        self._write()

    def unsay(self, start: str) -> None:
        """Facts that begin so are true no longer."""
        self.facts = [fact for fact in self.facts if not fact.startswith(start)]
        self._write()

    def _write(self) -> None:
        """In one step: a process may read at any moment."""
        fresh = self.path.with_suffix(".new")
        fresh.write_text("".join(f"{fact}\n" for fact in self.facts))
        os.replace(fresh, self.path)


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("old-nvml"), "-DOLD_DRIVER")


@pytest.fixture(scope="session")
def nvml_library_535(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml-535"), "-DV535")


@pytest.fixture
def gpus(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MockGpus:
    """Two GPUs, for every process that the test starts."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library))
    monkeypatch.setenv("COTENANT_MOCK_NVML", str(tmp_path / "gpus"))
    return MockGpus(tmp_path / "gpus")
