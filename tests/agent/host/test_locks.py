"""Device locks: one owner per machine, tested with real processes where that is the point; and agents that
know nothing of each other give their gangs different ports.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.agent.gpus.gpu_watch import offer_devices
from cotenant.agent.host.locks import (
    LOCK_DIR_ENV,
    ROOTS,
    DeviceLocks,
    LockFolders,
    LockProblem,
    lock_folders,
)
from cotenant.agent.host.ports import FIXED_FIRST, OWN_END, OWN_FIRST, BadPorts, first_port
from cotenant.controller.domain import Device
from cotenant.controller.system.locks import open_locked
from cotenant.profiler.driver import process_info
from tests.building.hosts import cpu

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: others trust no other account's folder")
HOLD = """
import sys
from pathlib import Path
from cotenant.agent.host.locks import DeviceLocks, LockFolders
locks = DeviceLocks(LockFolders(shared=Path(sys.argv[1]), is_root=False))
why = locks.take(["core-1"])
held = locks.descriptors_for_supervisor(["core-1"]) if "jobs" in sys.argv[2:] else []
if "only" in sys.argv[2:]:
    locks.release()
print(why or "taken", flush=True)
sys.stdin.read()
"""
FLOCK = """
import fcntl, sys
held = [open(path) for path in sys.argv[1:] if path.startswith("/")]
for file in held:
    fcntl.flock(file, fcntl.LOCK_EX)
print("taken", flush=True)
sys.stdin.read()
"""
AS_AN_AGENT = ("-m", "cotenant.agent")
"""What the kernel shows of an agent's command line."""
ME = process_info.user(os.getpid())


def locks_of(folder: Path, left_behind: Mapping[str, Sequence[Path]] | None = None) -> DeviceLocks:
    return DeviceLocks(LockFolders(shared=folder, is_root=False), left_behind)


def roots_locks(folder: Path) -> DeviceLocks:
    """Of root's agent. Only root has a folder for it that others trust."""
    (folder / ROOTS).mkdir(exist_ok=True)
    return DeviceLocks(LockFolders(shared=folder, is_root=True))


def device(core: int = 1) -> Device:
    return cpu("h/cpu0", cores=(core,))


class Other:
    """Another process, with what it was told to hold."""

    def __init__(self, program: str, *words: str | Path, user: int | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            user=user,
        )
        assert self._process.stdout is not None
        self.said = self._process.stdout.readline().strip()
        self.pid = self._process.pid

    def __enter__(self) -> Other:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def test_the_second_agent_hears_who_has_the_device_until_the_first_is_dead(tmp_path: Path) -> None:
    locks = locks_of(tmp_path)
    with Other(HOLD, tmp_path, *AS_AN_AGENT) as first:
        assert first.said == "taken"
        why = locks.take(["core-1"])
        assert why.startswith(f"in use by the agent of {ME} (pid {first.pid}, since ")
        [seen] = offer_devices((device(),), locks)
        assert (seen.healthy, seen.note) == (False, f"taken: {why}")
    [again] = offer_devices((seen,), locks)
    assert (again.healthy, again.note) == (True, "")
    locks.release()


def test_jobs_keep_a_device_when_their_agent_is_dead(tmp_path: Path) -> None:
    alive = tmp_path / "alive.lock"
    with Other(HOLD, tmp_path, "jobs", "only"):
        stranger = locks_of(tmp_path)
        assert stranger.take(["core-1"]).startswith(f"in use by a process that is no agent, of {ME} (pid ")
        # The agent that comes back to its own jobs is welcome, for as long as they run.
        back = locks_of(tmp_path, {"core-1": [alive]})
        assert back.take(["core-1"]) != ""
        running = open_locked(alive)
        assert back.take(["core-1"]) == ""
        os.close(running)
        back.release()
    assert stranger.take(["core-1"]) == ""
    stranger.release()


def test_a_text_in_a_lock_file_blames_nobody(tmp_path: Path) -> None:
    with Other(HOLD, tmp_path, *AS_AN_AGENT) as first:
        (tmp_path / "core-1.agent").write_text('{"pid": 1, "uid": 7, "user": "bob", "host": "bobs"}')
        why = locks_of(tmp_path).take(["core-1"])
        assert "bob" not in why and f"pid {first.pid}" in why


def test_a_process_that_names_itself_like_a_line_of_the_kernel_s_blames_nobody(tmp_path: Path) -> None:
    renamed = "open('/proc/self/comm', 'w').write('x\\x0bUid:\\t54321')\n" + HOLD
    with Other(renamed, tmp_path) as first:
        assert f"of {ME} (pid {first.pid}, " in locks_of(tmp_path).take(["core-1"])


def test_of_whom_a_lock_was_inherited_is_not_told_when_that_one_has_ended(tmp_path: Path) -> None:
    (tmp_path / "core-1.jobs").touch()
    held = os.open(tmp_path / "core-1.jobs", os.O_RDONLY)
    share = "import fcntl, sys; fcntl.flock(int(sys.argv[1]), fcntl.LOCK_SH)"
    subprocess.run([sys.executable, "-c", share, str(held)], pass_fds=(held,), check=True)
    assert locks_of(tmp_path).take(["core-1"]) == "jobs of an agent that has ended still run on it"
    os.close(held)
    locks = locks_of(tmp_path)
    assert locks.take(["core-1"]) == ""
    locks.release()


def test_root_s_agent_is_kept_from_a_device_by_a_living_agent_and_by_no_other_process(tmp_path: Path) -> None:
    for name in ("core-1.agent", "core-1.jobs"):  # As earlier versions left them, or an account put them.
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o666)
    files = [str(tmp_path / name) for name in ("core-1.agent", "core-1.jobs")]
    roots = roots_locks(tmp_path)
    with Other(FLOCK, *files, *AS_AN_AGENT) as agent:
        assert roots.take(["core-1"]).startswith(f"in use by the agent of {ME} (pid {agent.pid}, since ")
    with Other(FLOCK, *files):
        assert roots.take(["core-1"]) == ""
        for file in roots.descriptors_for_supervisor(["core-1"]):
            os.close(file)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / ROOTS).iterdir()} == {0o600}
    roots.release()


@pytest.mark.root
@AS_ROOT
def test_what_root_s_agent_has_is_no_other_account_s_even_while_it_does_not_run(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    roots, other = roots_locks(tmp_path), locks_of(tmp_path)
    assert roots.take(["core-1"]) == ""
    assert f"in use by a process that is no agent, of {ME} (pid {os.getpid()}" in other.take(["core-1"])
    roots.release()
    path = tmp_path / ROOTS / "core-1.agent"
    assert other.take(["core-1"]).endswith(f"does not run now; root gives it back with: rm {path}")
    path.unlink()
    assert other.take(["core-1"]) == ""
    other.release()


@pytest.mark.root
@AS_ROOT
def test_what_an_account_put_in_place_of_root_s_folder_is_moved_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "locks"
    monkeypatch.setenv(LOCK_DIR_ENV, str(folder))
    for plant in (Path.mkdir, Path.touch, lambda path: path.symlink_to(tmp_path)):
        plant(folder)
        os.chown(folder, 54_321, 54_321, follow_symlinks=False)
        assert lock_folders().shared == folder
        assert (folder.lstat().st_uid, folder.lstat().st_mode) == (0, 0o41777)
        shutil.rmtree(folder)
    lock_folders()
    (folder / ROOTS).rmdir()
    for plant in (Path.mkdir, Path.touch, lambda path: path.symlink_to(tmp_path), os.mkfifo):
        plant(folder / ROOTS)
        os.chown(folder / ROOTS, 54_321, 54_321, follow_symlinks=False)
        other = locks_of(folder)
        assert other.take(["core-2"]) == "", "it is not root's, so it counts for nobody"
        other.release()
        assert lock_folders().own == folder / ROOTS
        assert (folder / ROOTS).lstat().st_uid == 0
        (folder / ROOTS).rmdir()
    assert len(list(folder.glob("planted-*"))) == 4


def test_all_cores_of_a_slot_or_none(tmp_path: Path) -> None:
    locks = locks_of(tmp_path)
    with Other(HOLD, tmp_path):
        assert locks.take(["core-0", "core-1"]) != ""
        third = locks_of(tmp_path)
        assert third.take(["core-0"]) == "", "what could not be used was given back"
        third.release()
    locks.release()


def test_slots_of_one_agent_may_share_a_core(tmp_path: Path) -> None:
    locks = locks_of(tmp_path)
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
    locks = locks_of(folder)
    assert "cannot be used" in locks.take(["core-1"])
    assert treasure.read_text() == "precious"


def test_the_folder_is_for_all_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "locks"
    monkeypatch.setenv(LOCK_DIR_ENV, str(folder))
    before = os.umask(0o077)
    try:
        assert lock_folders().shared == folder
        locks = locks_of(folder)
        locks.take(["core-1"])
        locks.release()
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o7777 == 0o1777
    assert (folder / "core-1.agent").stat().st_mode & 0o777 == 0o644
    folder.chmod(0o755)
    with pytest.raises(LockProblem, match="not a folder that all users may write to"):
        lock_folders()


def test_a_link_in_place_of_the_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").mkdir(mode=0o777)
    (tmp_path / "locks").symlink_to(tmp_path / "there")
    monkeypatch.setenv(LOCK_DIR_ENV, str(tmp_path / "locks"))
    with pytest.raises(LockProblem):
        lock_folders()


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
    agents = [locks_of(tmp_path) for _ in range(30)]
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
