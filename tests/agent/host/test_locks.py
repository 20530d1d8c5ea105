"""Device locks: one owner per machine, tested with real processes where that is the point."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from cotenant.agent.gpus import offered
from cotenant.agent.host.locks import LOCK_DIR_ENV, DeviceLocks, LockOwner, LockProblem, lock_folder
from cotenant.controller.domain import Device
from tests.building.hosts import cpu

HOLD = """
import sys
from pathlib import Path
import msgspec
from cotenant.agent.host.locks import DeviceLocks, LockOwner
locks = DeviceLocks(Path(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=LockOwner))
why = locks.take(["core-1"])
held = locks.for_supervisor(["core-1"]) if "jobs" in sys.argv[3:] else []
if "only" in sys.argv[3:]:
    locks.release()
print(why or "taken", flush=True)
sys.stdin.read()
"""


def owner(token: str) -> LockOwner:
    return LockOwner(pid=os.getpid(), uid=0, user="ann", host=f"host-{token}", since="today", token=token)


def device(core: int = 1) -> Device:
    return cpu("h/cpu0", cores=(core,))


class Other:
    """Another process that takes the lock of core 1, as the agent with this token."""

    def __init__(self, folder: Path, token: str, *words: str) -> None:
        text = msgspec.json.encode(owner(token)).decode()
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(folder), text, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.said = self._process.stdout.readline().strip()

    def __enter__(self) -> Other:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def test_the_second_agent_hears_who_has_the_device_until_the_first_is_dead(tmp_path: Path) -> None:
    locks = DeviceLocks(tmp_path, owner("b"))
    with Other(tmp_path, "a") as first:
        assert first.said == "taken"
        why = locks.take(["core-1"])
        assert why.startswith("in use by the agent 'host-a' of ann (pid ")
        [seen] = offered((device(),), locks)
        assert (seen.healthy, seen.note) == (False, f"taken: {why}")
    [again] = offered((seen,), locks)
    assert (again.healthy, again.note) == (True, "")
    locks.release()


def test_jobs_keep_a_device_when_their_agent_is_dead(tmp_path: Path) -> None:
    with Other(tmp_path, "a", "jobs", "only"):
        stranger = DeviceLocks(tmp_path, owner("b"))
        assert stranger.take(["core-1"]).startswith("jobs of the agent 'host-a'")
        # The agent that comes back to its own jobs is welcome.
        back = DeviceLocks(tmp_path, owner("a"))
        assert back.take(["core-1"]) == ""
        back.release()
    assert stranger.take(["core-1"]) == ""
    stranger.release()


def test_all_cores_of_a_slot_or_none(tmp_path: Path) -> None:
    locks = DeviceLocks(tmp_path, owner("b"))
    with Other(tmp_path, "a"):
        assert locks.take(["core-0", "core-1"]) != ""
        third = DeviceLocks(tmp_path, owner("c"))
        assert third.take(["core-0"]) == "", "what could not be used was given back"
        third.release()
    locks.release()


def test_slots_of_one_agent_may_share_a_core(tmp_path: Path) -> None:
    locks = DeviceLocks(tmp_path, owner("a"))
    assert [d.healthy for d in offered((device(), device()), locks)] == [True, True]
    locks.release()


@pytest.mark.parametrize("kind", ["symbolic link", "hard link", "folder", "fifo"])
def test_a_trap_in_the_lock_folder_is_not_followed(tmp_path: Path, kind: str) -> None:
    folder, treasure = tmp_path / "locks", tmp_path / "treasure"
    folder.mkdir()
    treasure.write_text("precious")
    trap = folder / "core-1.agent"
    if kind == "symbolic link":
        trap.symlink_to(treasure)
    elif kind == "hard link":
        trap.hardlink_to(treasure)
    elif kind == "folder":
        trap.mkdir()
    else:
        os.mkfifo(trap)
    locks = DeviceLocks(folder, owner("a"))
    assert "cannot be used" in locks.take(["core-1"])
    assert treasure.read_text() == "precious"


def test_the_folder_is_for_all_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "locks"
    monkeypatch.setenv(LOCK_DIR_ENV, str(folder))
    before = os.umask(0o077)
    try:
        assert lock_folder() == folder
        locks = DeviceLocks(folder, owner("a"))
        locks.take(["core-1"])
        locks.release()
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o7777 == 0o1777
    assert (folder / "core-1.agent").stat().st_mode & 0o777 == 0o666
    folder.chmod(0o755)
    with pytest.raises(LockProblem, match="not a folder that all users may write to"):
        lock_folder()


def test_a_link_in_place_of_the_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").mkdir(mode=0o777)
    (tmp_path / "locks").symlink_to(tmp_path / "there")
    monkeypatch.setenv(LOCK_DIR_ENV, str(tmp_path / "locks"))
    with pytest.raises(LockProblem):
        lock_folder()
