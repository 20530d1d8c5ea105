"""Places where a control daemon can live for one test: the stub's, or the genuine one's where it is installed
or `.ci/nvidia-mps` has unpacked it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from cotenant.mps import process
from cotenant.mps.answers import percentage
from cotenant.mps.channel import ControlChannel
from cotenant.mps.detection import DetectedHost
from cotenant.mps.process import CONTROL, SERVER, FoundProcess
from tests.building.limits import within_s

STUB = Path(__file__).parent / "stub"
"""`stub/bin` can be put on PATH by hand; tests use `stub_in`, which starts faster."""
UNPACKED = Path(__file__).parents[2] / ".nvidia-mps" / CONTROL
GENUINE = next(
    (
        str(path)
        for path in (f"/usr/bin/{CONTROL}", shutil.which(CONTROL), UNPACKED)
        if path and os.path.exists(path)
    ),
    None,
)
HAS_DRIVER = Path("/sys/module/nvidia").exists()
TIMEOUT_S = within_s(30.0)


class Place:
    """A short folder with a pipe and a log directory, and what the stub is told of its world."""

    def __init__(self, program: str, base: Path) -> None:
        self.program = program
        self.base = base
        self.pipe = base / "mps" / "11111111"
        self.logs = base / "log"
        self.world = base / "world.json"
        self.pipe.mkdir(parents=True)
        self.logs.mkdir()

    @property
    def is_stub(self) -> bool:
        return self.program != GENUINE

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.logs),
            "MPS_STUB_WORLD": str(self.world),
        }

    @property
    def channel(self) -> ControlChannel:
        return ControlChannel(
            pipe_directory=PurePosixPath(self.pipe), program=self.program, answer_s=TIMEOUT_S
        )

    def run(self, *arguments: str, text: str = "", **changes: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            (self.program, *arguments),
            input=text,
            env={**self.environment, **changes},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def start(self, *switches: str, **changes: str) -> FoundProcess:
        done = self.run("-d", *switches, **changes)
        if done.returncode:
            pytest.skip(f"{self.program} -d does not start here: {done.stderr.strip()}")
        (found,) = self.daemons()
        return found

    def tell(self, **facts: Any) -> None:
        """What the stub's world is from its next answer on."""
        fresh = self.world.with_suffix(".new")
        fresh.write_text(json.dumps(facts))
        fresh.replace(self.world)

    def daemons(self) -> list[FoundProcess]:
        return [found for found in process.look_around().daemons if found.pipe_directory == str(self.pipe)]

    def servers(self) -> list[FoundProcess]:
        return [found for found in process.look_around().servers if found.pipe_directory == str(self.pipe)]

    def clear(self) -> None:
        for found in (*self.daemons(), *self.servers()):
            process.end(found.identity, TIMEOUT_S)
        shutil.rmtree(self.base, ignore_errors=True)
        remove_device_node()


def default_percentage(channel: ControlChannel) -> float:
    """The cap on the share of multiprocessors that the next server gives each client."""
    return percentage(channel.ask("get_default_active_thread_percentage"))


def remove_device_node() -> None:
    """NVIDIA's server makes the node as root, also where no driver is; other tests would take it for one."""
    if not HAS_DRIVER:
        with suppress(OSError):
            os.unlink("/dev/nvidiactl")


def freeze(identity: process.MpsProcessIdentity) -> None:
    """Stop a process for good, as a wedged one is; it takes a moment until it stands."""
    os.kill(identity.pid, signal.SIGSTOP)
    while ") T " not in Path(f"/proc/{identity.pid}/stat").read_text():
        assert process.is_alive(identity)


def make_place(program: str) -> Place:
    return Place(program, Path(tempfile.mkdtemp(prefix="mps-")))


def stub_in(folder: Path) -> str:
    """The stub's control program, in a folder that can be put on PATH; runs on this very interpreter."""
    for name in (CONTROL, SERVER):
        path = folder / name
        path.write_text(
            f"#!{sys.executable} -IS\nimport sys\nsys.path.insert(0, {str(STUB)!r})\n"
            "import control\nsys.exit(control.main())\n"
        )
        path.chmod(0o755)
    return str(folder / CONTROL)


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> str:
    return stub_in(tmp_path_factory.mktemp("bin"))


@pytest.fixture
def place(stub: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """The stub's."""
    made = make_place(stub)
    monkeypatch.setenv("MPS_STUB_WORLD", str(made.world))
    yield made
    made.clear()


@pytest.fixture
def best(stub: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """The genuine program's where it is installed (the real thing, and far quicker), else the stub's."""
    made = make_place(GENUINE or stub)
    monkeypatch.setenv("MPS_STUB_WORLD", str(made.world))
    yield made
    made.clear()


@pytest.fixture(params=["stub", "genuine"])
def either(request: pytest.FixtureRequest, stub: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """The stub's, then the genuine program's. No GPU and no daemon but our own is touched."""
    if request.param == "genuine" and GENUINE is None:
        pytest.skip(f"{CONTROL} is not installed, and .ci/nvidia-mps .nvidia-mps has not fetched it")
    made = make_place(stub if request.param == "stub" else str(GENUINE))
    monkeypatch.setenv("MPS_STUB_WORLD", str(made.world))
    yield made
    made.clear()


def host(**changes: Any) -> DetectedHost:
    """One on which nothing stands in the way."""
    fields: dict[str, Any] = {
        "system": "Linux",
        "machine": "x86_64",
        "control_path": f"/usr/bin/{CONTROL}",
        "version": (13, 0),
        "runtime": PurePosixPath("/run/cotenant"),
        "runtime_writable": True,
        "uid": 1000,
    }
    return DetectedHost(**{**fields, **changes})
