"""Real scripts that know nothing of cotenant: their steps are told. That they cannot tell is shown by
`python -m tests.unchanged`."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant.checkpoint.talk import protocol
from cotenant.gradaccum.launch import STARTUP
from tests.checkpoint.ranks import Gang, Warm, launch
from tests.ports import block_of_ports

pytestmark = pytest.mark.usefixtures("warm")

SCRIPTS = Path(__file__).parent / "scripts"
STARTED = Path(__file__).parent / "started.py"
WITHOUT_TORCH = (
    "import sys; assert 'torch' not in sys.modules; import json; assert 'torch' not in sys.modules"
)


class Listening:
    """A supervisor's socket, and who spoke."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "s"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        self._found: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        """A queue of datagrams is short: somebody must listen while they are said."""
        while data := self._socket.recv(protocol.DATAGRAM_BYTES_MAX + 1):
            self._found.append(json.loads(data))

    def words(self) -> list[dict[str, Any]]:
        """All that came; nobody may speak any more."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.sendto(b"", str(self.path))
        self._thread.join()
        self._socket.close()
        return self._found

    def close(self) -> None:
        if self._thread.is_alive():
            self.words()


@pytest.fixture
def listening() -> Iterator[Listening]:
    with tempfile.TemporaryDirectory(prefix="p") as folder:  # pytest's are too long for a socket's name
        made = Listening(Path(folder))
        yield made
        made.close()


def run(listening: Listening, cwd: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(STARTUP), *(each for each in sys.path if each)])
    ours = {"PYTHONPATH": path, protocol.ENV_SOCKET: str(listening.path), protocol.ENV_ZERO_CODE: "progress"}
    plain = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MASTER_PORT": str(block_of_ports()),
        "LIGHTNING_DISABLE_TELEMETRY": "1",
    }
    given = {**plain, **ours}
    return subprocess.run(
        [sys.executable, *command], env=given, cwd=cwd, capture_output=True, text=True, check=False
    )


def told(words: list[dict[str, Any]], rank: int = 0) -> tuple[int, int | None, str]:
    """The last step, the last total and what it rests on."""
    mine = [word for word in words if word["rank"] == rank]
    steps = [word["step"] for word in mine if word["m"] == protocol.STEP]
    length = [word for word in mine if word["m"] == protocol.LENGTH][-1]
    return max(steps), length["total"], length["note"]


TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")


@pytest.mark.parametrize(
    ("package", "command", "steps", "note"),
    [
        ("", ("ddp_spawn.py", "5", "2"), 80, "loops seen: range(5) x 16 batches"),
        ("", (*TORCHRUN, "ddp_torchrun.py", "--total-epochs", "3"), 48, "loops seen: range(3) x 16 batches"),
        ("transformers", ("hf_trainer.py", "2"), 6, "the Trainer says 6 steps in all"),
        ("lightning", ("lightning_trainer.py", "3"), 15, "the Trainer expects 15 steps in all"),
        ("accelerate", ("accelerate_loop.py", "3"), 15, "loops seen: range(3) x 5 batches"),
    ],
    ids=["spawn", "torchrun", "transformers", "lightning", "accelerate"],
)
def test_its_steps_and_their_total_are_told(
    listening: Listening, tmp_path: Path, package: str, command: tuple[str, ...], steps: int, note: str
) -> None:
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install -r tests/requirements-frameworks.txt")
    words = [str(SCRIPTS / word) if word.endswith(".py") else word for word in command]
    done = run(listening, tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert told(listening.words()) == (steps, steps, note)


def forked(
    warm: Warm, listening: Listening, script: Path, *args: str, words: str = "progress", **env: str
) -> Gang:
    """The same, without the time that a start takes."""
    ours = {protocol.ENV_SOCKET: str(listening.path), protocol.ENV_ZERO_CODE: words}
    return launch(warm, STARTED, listening.path.parent / "run", str(script), *args, env={**ours, **env})


def epochs(number: int) -> str:
    return "--- rank 0\n" + "".join(f"epoch {epoch}\n" for epoch in range(number))


def test_loops_in_functions_over_a_loader_with_processes(warm: Warm, listening: Listening) -> None:
    forked(warm, listening, SCRIPTS / "image_classes.py", "--num-workers", "1").wait()
    assert told(listening.words()) == (45, 45, "loops seen: range(3) x 15 batches")


@pytest.mark.parametrize("words", ["accumulate,progress", "checkpoint,progress"])
def test_beside_the_other_parts_of_the_hook_the_total_is_the_same(
    warm: Warm, listening: Listening, words: str
) -> None:
    gang = forked(warm, listening, SCRIPTS / "plain_loop.py", "3", words=words)
    gang.wait()
    assert gang.output() == epochs(3)
    assert told(listening.words()) == (39, 39, "loops seen: range(3) x 13 batches")


def test_a_session_tells_its_own_steps_and_the_total_is_seen(
    warm: Warm, listening: Listening, tmp_path: Path
) -> None:
    script = tmp_path / "session.py"
    text = (SCRIPTS / "plain_loop.py").read_text()
    text = text.replace(
        "for epoch in range(epochs)", "state = Session(model, optimizer)\nfor epoch in state.epochs(epochs)"
    )
    text = text.replace("for x, y in loader", "for x, y in state.batches(loader)")
    script.write_text("from cotenant.checkpoint import Session\n" + text)
    gang = forked(warm, listening, script, "3")
    gang.wait()
    assert gang.output() == epochs(3)
    words = listening.words()
    assert told(words) == (39, 39, "loops seen: range(3) x 13 batches")
    names = [word["m"] for word in words if word["m"] != protocol.WATCHED]
    assert names[0] == protocol.HELLO, "the session speaks, and nobody tells a step before it"


def test_an_error_of_the_script_is_its_own(warm: Warm, listening: Listening, tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text((SCRIPTS / "plain_loop.py").read_text() + "sys.exit(7)\n")
    forked(warm, listening, script, "1").wait(7)
    assert told(listening.words())[0] == 13


@pytest.mark.parametrize(
    "env",
    [
        {"RANK": "first"},
        {protocol.ENV_SOCKET: "/nowhere/s"},
        {protocol.ENV_PROTOCOL: "2"},
        {protocol.ENV_SOCKET: ""},
    ],
    ids=str,
)
def test_what_goes_wrong_with_us_is_not_the_scripts_business(
    warm: Warm, listening: Listening, env: dict[str, str]
) -> None:
    gang = forked(warm, listening, SCRIPTS / "plain_loop.py", "1", **env)
    gang.wait()
    assert gang.output() == epochs(1)
    assert [word for word in listening.words() if (word["m"], word.get("what")) != ("failed", "hook")] == []


def test_a_process_without_torch_stays_without_it(listening: Listening, tmp_path: Path) -> None:
    assert run(listening, tmp_path, "-c", WITHOUT_TORCH).returncode == 0
