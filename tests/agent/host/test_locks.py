"""Device locks: one owner per machine, tested with real processes where that is the point; and agents that
know nothing of each other give their gangs different ports.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.agent.gpus import offer_devices
from cotenant.agent.host.locks import LOCK_DIR_ENV, DeviceLocks, LockOwner, LockProblem, lock_folder
from cotenant.agent.host.ports import FIXED_FIRST, OWN_END, OWN_FIRST, BadPorts, first_port
from cotenant.controller.domain import Device
from tests.building.hosts import cpu

HOLD = """
import sys
from pathlib import Path
import msgspec
from cotenant.agent.host.locks import DeviceLocks, LockOwner
locks = DeviceLocks(Path(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=LockOwner))
why = locks.take(["core-1"])
held = locks.descriptors_for_supervisor(["core-1"]) if "jobs" in sys.argv[3:] else []
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
        [seen] = offer_devices((device(),), locks)
        assert (seen.healthy, seen.note) == (False, f"taken: {why}")
    [again] = offer_devices((seen,), locks)
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
    assert [d.healthy for d in offer_devices((device(), device()), locks)] == [True, True]
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


# --- Ports -----------------------------------------------------------------------------------------


HOME = Path("/home/ada/.local/state/cotenant/agent")


def test_a_range_that_was_set_is_taken_as_it_is() -> None:
    assert first_port(15_000, 200, alone=True, uid=1, folder=HOME) == 15_000
    assert first_port(15_000, 200, alone=False, uid=1, folder=HOME) == 15_000


def test_hosts_that_must_find_each_other_keep_to_the_fixed_range() -> None:
    assert first_port(0, 200, alone=False, uid=1, folder=HOME) == FIXED_FIRST


def test_an_agent_has_the_same_ports_after_a_restart() -> None:
    assert len({first_port(0, 200, alone=True, uid=7, folder=HOME) for _ in range(3)}) == 1


def test_ten_users_of_one_machine_mostly_have_ports_of_their_own() -> None:
    firsts = {first_port(0, 200, alone=True, uid=1000 + n, folder=HOME) for n in range(10)}
    assert (
        len(firsts) >= 8
    )  # 63 ranges: by chance two of ten may share one; all in one would be the old habit


def test_agents_of_one_machine_never_hold_the_same_ports(tmp_path: Path) -> None:
    """Thirty agents draw from the same 63 ranges, some have larger ones: no port is held twice."""
    owner = LockOwner(pid=1, uid=1, user="ada", host="h", since="now", token="t")
    agents = [DeviceLocks(tmp_path, owner) for _ in range(30)]
    held: list[range] = []
    for number, locks in enumerate(agents):
        count = 300 if number % 3 == 0 else 200
        first = first_port(0, count, alone=True, uid=7, folder=HOME / str(number // 2), take=locks.take)
        assert not any(set(range(first, first + count)) & set(other) for other in held)
        held.append(range(first, first + count))
    agents[4].release()
    assert first_port(0, 200, alone=True, uid=7, folder=HOME / "2", take=agents[4].take) == held[4].start
    for locks in agents:
        locks.release()


def test_where_all_ranges_are_held_a_gang_still_gets_a_port() -> None:
    assert first_port(0, 200, alone=True, uid=7, folder=HOME, take=lambda names: "in use") >= OWN_FIRST


@given(st.integers(1, OWN_END - OWN_FIRST), st.integers(0, 2**31), st.text(max_size=40))
def test_the_range_stays_where_no_client_is_given_a_port(count: int, uid: int, name: str) -> None:
    first = first_port(0, count, alone=True, uid=uid, folder=Path("/", name.replace("\0", "")))
    assert first >= OWN_FIRST
    assert first + count <= OWN_END


@pytest.mark.parametrize(("first", "count"), [(80, 200), (65_500, 200), (0, 20_000)])
def test_a_range_that_cannot_be_is_refused_with_the_setting_s_name(first: int, count: int) -> None:
    with pytest.raises(BadPorts, match=r"agent\.port_"):
        first_port(first, count, alone=True, uid=1, folder=HOME)
