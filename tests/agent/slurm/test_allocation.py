"""A host that is a part of a Slurm job: which devices it offers, until when, and that all of it ends."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from cotenant.agent.slurm.allocation import NoAllocation, agent_words, cuda_devices, parser, seconds
from tests.building.limits import within_s

WAIT_S = within_s(30.0)
POLL_S = 0.02
UUIDS = {"0": "GPU-aa", "1": "GPU-bb", "2": "GPU-cc"}


@pytest.mark.parametrize(
    ("visible", "devices"),
    [(None, "cuda"), ("0,2", "cuda:GPU-aa,GPU-cc"), ("GPU-zz", "cuda:GPU-zz"), ("1", "cuda:GPU-bb")],
)
def test_gpus_are_those_that_slurm_gave_by_uuid(visible: str | None, devices: str) -> None:
    assert cuda_devices(visible, lambda: UUIDS) == devices


@pytest.mark.parametrize(("visible", "why"), [("", "gave this job no GPU"), ("7", "gave GPU 7")])
def test_gpus_that_are_not_here(visible: str, why: str) -> None:
    with pytest.raises(NoAllocation, match=why):
        cuda_devices(visible, lambda: UUIDS)


@pytest.mark.parametrize(
    ("left", "number"),
    [("4", 4), ("3:04", 184), ("2:03:04", 7384), ("1-02:03:04", 93784), ("INVALID", None), ("", None)],
)
def test_what_slurm_says_is_left(left: str, number: float | None) -> None:
    assert seconds(left) == number


def options(**more: str) -> argparse.Namespace:
    given = {"folder": "/shared", "host": "s-1", "devices": "cpu:2", "time-limit-s": "600", "grace-s": "60"}
    return parser().parse_args([f"--{name}={value}" for name, value in {**given, **more}.items()])


def test_the_agent_is_told_until_when_its_host_stays() -> None:
    words = agent_words(options(), {"SLURM_JOB_ID": "7"}, 1000.0, left=lambda number: "5:00")
    assert words[3:7] == ["--host", "s-1", "--devices", "cpu:2"]
    assert "agent.leaves_at=1300.000" in words and "agent.allocation=7" in words
    assert "agent.leave_grace_s=60" in words and "checkpoint.root=/shared/checkpoints" in words
    unknown = agent_words(options(), {"SLURM_JOB_ID": "7"}, 1000.0, left=lambda number: "")
    assert "agent.leaves_at=1600.000" in unknown, "as was asked for"
    with pytest.raises(NoAllocation, match="started by Slurm"):
        agent_words(options(), {}, 1000.0)


# --- The keeper ------------------------------------------------------------------------------------

AGENT = textwrap.dedent(
    """
    import os, subprocess, sys, time
    from pathlib import Path
    folder = Path(sys.argv[1])
    child = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
    if not list(folder.glob("child-*")):
        subprocess.Popen([sys.executable, "-c", child, str(folder / "child-1")], start_new_session=True)
    with open(folder / "agents", "a") as log:
        log.write(f"{os.getpid()} {sys.argv[-1]}\\n")
    time.sleep(600)
    """
)
KEEPER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from cotenant.agent.host.rights import become_subreaper
    from cotenant.agent.slurm.allocation import Keeper, end_descendants
    folder = Path(sys.argv[1])
    become_subreaper()
    keeper = Keeper([sys.executable, str(folder / "agent.py"), str(folder)], folder / "endpoint", look_s=0.05)
    try:
        code = keeper.run()
    finally:
        end_descendants(keeper.agent)
    sys.exit(code)
    """
)


class Kept:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "agent.py").write_text(AGENT)
        self.move("tcp://a:1")
        self.process = subprocess.Popen([sys.executable, "-c", KEEPER, str(folder)])

    def move(self, endpoint: str) -> None:
        (self.folder / "new").write_text(endpoint)
        (self.folder / "new").rename(self.folder / "endpoint")

    def agents(self, count: int) -> list[tuple[int, str]]:
        """As soon as so many have started: their pids, and where each was to look for its controller."""
        path = self.folder / "agents"
        lines = waited_for(lambda: lines_of(path) if len(lines_of(path)) >= count else [])
        return [(int(pid), endpoint) for pid, endpoint in map(str.split, lines)]

    def child(self) -> int:
        """In a session of its own, as supervisors are."""
        path = self.folder / "child-1"
        return int(waited_for(lambda: path.read_text() if path.exists() else ""))

    def ends(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(WAIT_S)


T = TypeVar("T")


def waited_for(found: Callable[[], T]) -> T:
    """Processes that know nothing of us write files: they have to be looked for."""
    until_s = time.monotonic() + WAIT_S
    while not (it := found()):
        assert time.monotonic() < until_s
        time.sleep(POLL_S)
    return it


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path)
    yield made
    if made.process.poll() is None:
        made.ends()


def test_everything_ends_with_the_allocation_also_what_has_a_session_of_its_own(kept: Kept) -> None:
    ((agent, _),), child = kept.agents(1), kept.child()
    assert kept.ends() == 0
    assert is_gone(agent) and is_gone(child)


def test_an_agent_that_is_killed_is_started_again_and_its_supervisors_stay(kept: Kept) -> None:
    ((agent, _),), child = kept.agents(1), kept.child()
    os.kill(agent, signal.SIGKILL)
    assert len(kept.agents(2)) == 2
    assert not is_gone(child)
    assert kept.ends() == 0
    assert is_gone(child)


def test_an_agent_follows_a_controller_that_has_moved(kept: Kept) -> None:
    kept.agents(1)
    child = kept.child()
    kept.move("tcp://b:2")
    assert [endpoint for _, endpoint in kept.agents(2)] == ["tcp://a:1", "tcp://b:2"]
    assert not is_gone(child)
