"""The hook never ends a script: whatever of ours raises, the script ends as it does by itself, and what was
switched off is said. All functions take a quarter of an hour: `python -m tests.checkpoint.faults`."""

from __future__ import annotations

import importlib.util
import json
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.agent.supervisor.core import rank_messages
from cotenant.agent.supervisor.core.rank_messages import RankFailed
from cotenant.checkpoint.guard import ENV_SOCKET, AttemptEnds, Guard
from tests.checkpoint.faults import SCENES, TRAINERS, FaultyHook, Scene, one_faulty_hook
from tests.checkpoint.ranks import Warm

FAULTS: dict[str, int] = dict.fromkeys(SCENES, 20) | {"start": 2} | dict.fromkeys(TRAINERS, 6)
"""A start costs seconds, as a Trainer does, and a fork tenths of one."""


@pytest.fixture(scope="module")
def faulty() -> Iterator[tuple[FaultyHook, Warm, Path]]:
    with one_faulty_hook() as made:
        yield made


@pytest.mark.parametrize("name", SCENES)
def test_a_fault_of_ours_leaves_a_script_alone_and_is_told(
    faulty: tuple[FaultyHook, Warm, Path], name: str, seed: int
) -> None:
    hook, warm, folder = faulty
    if name in TRAINERS and importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed: pip install -r tests/requirements-frameworks.txt")
    scene = Scene(name, hook, warm, folder / name)
    faults = scene.faults(random.Random(seed), count=FAULTS[name])
    assert [text for text in map(scene.fault, faults) if text] == []


def _fails() -> None:
    raise RuntimeError("broken")


@pytest.mark.parametrize("ends", [KeyboardInterrupt, SystemExit, GeneratorExit, AttemptEnds])
def test_what_ends_a_script_passes_and_switches_nothing_off(ends: type[BaseException]) -> None:
    guard = Guard("a part")

    def interrupted() -> None:
        raise ends

    with pytest.raises(ends):
        guard.run(interrupted)
    assert guard.why == ""


def test_the_supervisor_hears_of_the_first_fault_and_what_is_off_is_not_called_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    heard: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path / "s"))
        monkeypatch.setenv(ENV_SOCKET, str(tmp_path / "s"))
        guard = Guard("a part")
        guard.when_off += [lambda _: _fails(), heard.append]
        assert guard.run(_fails, otherwise=3) == 3
        assert guard.run(calls.append, 1) is None
        words = [rank_messages.parse(supervisor.recv(4096)) for _ in range(2)]
    assert calls == []
    assert heard == [guard.why] and guard.why.startswith("a part is off: cotenant's own code failed: Runtime")
    told = [word.error for word in words if isinstance(word, RankFailed) and word.what == "hook"]
    assert told[0] == guard.why and "broken" in told[1]


def test_a_script_that_is_being_taken_up_does_not_go_on_without_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(ENV_SOCKET, raising=False)
    guard = Guard("resuming")
    guard.is_needed = True
    with pytest.raises(AttemptEnds):
        guard.run(_fails)
    assert "was to go on where it was left, and ends: resuming is off" in capfd.readouterr().err


def test_a_long_reason_fits_into_a_datagram(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path / "s"))
        monkeypatch.setenv(ENV_SOCKET, str(tmp_path / "s"))

        def fails_at_length() -> None:
            raise ValueError("\N{SNOWMAN}" * 5000)

        Guard("a part").run(fails_at_length)
        data = supervisor.recv(65536)
    assert rank_messages.parse(data) is not None and json.loads(data)["what"] == "hook"
