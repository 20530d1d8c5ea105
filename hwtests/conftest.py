"""The hardware suite: `python -m pytest hwtests`, on a machine with a CUDA device.

Rule: opt-in, and honest about what is missing. Each skip names the one thing that this machine lacks.
Nothing is left behind: no daemon, no process, no setting of a GPU. README.md says how to run it and what is
unproven.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for `hwtests.host`, also under a bare `pytest`

from hwtests import host
from hwtests.device import Device
from hwtests.host import ROOT, skip_if
from hwtests.measuring import Measure, Value, in_words
from hwtests.private_mps import PrivateMps, attach_problem
from hwtests.rows import Keeper


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("hardware suite")
    group.addoption("--keep", metavar="FILE", help="keep each test as it ends; go on behind what is kept")
    group.addoption("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a dry run of the suite")
    group.addoption("--seconds", type=float, default=3.0, help="of each measurement (default 3)")
    group.addoption(
        "--allow-faults", action="store_true", help="run what crashes the GPU's clients on purpose"
    )


def pytest_configure(config: pytest.Config) -> None:
    """A time limit that ends us ends us in order: daemons and jobs are stopped."""
    if not config.option.collectonly:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    if kept := config.getoption("--keep"):
        config.pluginmanager.register(Keeper(Path(kept)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Warnings are torch's and the driver's here: they are not ours to forbid."""
    for item in items:
        if item.path.is_relative_to(ROOT / "hwtests"):
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Measure:
    """Notes a number for the report: `measured("load", 3.1, "s")`."""

    def note(name: str, value: Value, unit: str = "", note: str = "", otherwise: str = "") -> None:
        record_property(name, in_words(value, unit, note, otherwise))

    return note


@pytest.fixture(scope="session")
def seconds(request: pytest.FixtureRequest) -> float:
    """How long a measurement takes."""
    return float(request.config.getoption("--seconds"))


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> Device:
    """What the jobs of this run train on: the first CUDA device, or one CPU slot in a dry run."""
    kind: Literal["cuda", "cpu"] = request.config.getoption("--device")
    skip_if(host.lacks_torch() if kind == "cpu" else host.lacks_cuda())
    return host.take_device(kind)


@pytest.fixture(scope="session")
def cuda(device: Device) -> Device:
    """The first CUDA device; skips where there is none, and in a dry run."""
    if device.kind != "cuda":
        pytest.skip("needs a CUDA device, and this is a dry run (--device cpu)")
    return device


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short name, for sockets."""
    return tmp_path_factory.mktemp("w")


@pytest.fixture(scope="session")
def mps_problem(cuda: Device) -> str:
    """Why no process becomes a client of MPS on this machine; empty where one does. Tried once: where it does
    not work every test would wait for it in vain.
    """
    skip_if(host.lacks_mps())
    return attach_problem(cuda)


@pytest.fixture
def mps(cuda: Device, mps_problem: str) -> Iterator[PrivateMps]:
    """An MPS daemon of our own for this GPU, in a pipe directory that nobody else knows."""
    skip_if(f"MPS does not work here: {mps_problem}" if mps_problem else "")
    with PrivateMps(cuda.uuid) as daemon:
        yield daemon
