"""What root does in folders of users: whatever a user swaps meanwhile, nothing of anybody else's changes."""

from __future__ import annotations

import os
import random
import resource
import signal
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cotenant.agent.host import folders, locks
from cotenant.agent.host.checkpoint_root import domain_of, make_checkpoint_folder
from cotenant.agent.host.user_files import OpenFolder, find_exposed, remove_tree
from cotenant.agent.ipc.records import JOB, JOB_SOCKET, Order
from cotenant.agent.supervisor.processes.attempt_folder import (
    give_job_folder,
    make_job_folder,
    remove_short_folder,
)
from cotenant.checkpoint.talk.protocol import BEAT_FILE
from cotenant.controller.domain import Launch
from tests.building.orders import order_of

USER = 54_321
ACTS = 4000
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: acts in folders of another user")

NAMES = ("a", "b", "job", "cotenant-0123456789ab", "j", "rank-0.sock", JOB_SOCKET, "file")


def as_user(act: Callable[[], object]) -> int:
    """A process of another user (forked: ours may lie where no other user can go); exits with 13 when it is
    not permitted what it tries. Returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setgroups([])
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
        act()
        code = 0
    except PermissionError:
        code = 13
    finally:
        os._exit(code)


def swap_for_ever(root: str, canary: str, seed: int, parent: int) -> None:
    """Puts folders, files, links and pipes in each other's places for as long as the test runs."""
    chance = random.Random(seed)
    targets = (canary, f"{canary}/file", f"{canary}/inner", f"{canary}/closed", f"{canary}/third")
    asides = [f".aside{number}" for number in range(20)]
    while os.getppid() == parent:
        one, other = ("/".join((root, *chance.choices(NAMES, k=chance.randrange(3)))) for _ in range(2))
        name, target = chance.choice(NAMES), chance.choice(targets)
        path = f"{one}/{name}"
        with suppress(OSError):
            match chance.randrange(8):
                case 0:
                    os.rename(path, f"{other}/{chance.choice(NAMES)}")
                case 1:
                    os.symlink(target, path)
                case 2:
                    os.mkdir(path)
                case 3:
                    os.link(target, path)
                case 4:
                    os.unlink(path)
                case 5:
                    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NONBLOCK))
                case 6:
                    os.mkfifo(path)
                case 7:  # The classic: one moment itself, the next a link.
                    os.rename(path, f"{one}/{chance.choice(asides)}")
                    os.symlink(target, path)


@pytest.fixture
def ground() -> Iterator[Path]:
    """A folder that every user may enter, which pytest's own is not."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def of_user(path: Path) -> Path:
    path.mkdir()
    os.chown(path, USER, USER)
    return path


def canary_in(folder: Path) -> Path:
    """Of root, with what others may read and what they may not, and of a third user."""
    made = folder / "canary"
    for inner in (made, made / "inner", made / "closed", made / "third"):
        inner.mkdir()
        (inner / "file").write_text(f"in {inner.name}")
    (made / "closed").chmod(0o700)
    os.chown(made / "third", USER + 1, USER + 1)
    return made


def seen(folder: Path) -> dict[str, tuple[Any, ...]]:
    found = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[str(path)] = (status.st_ino, status.st_mode, status.st_uid, status.st_gid, content)
    return found


@pytest.mark.root
@AS_ROOT
def test_a_racing_user_changes_nothing_but_his_own(ground: Path, seed: int) -> None:
    print(f"seed {seed}")
    canary = canary_in(ground)
    before = seen(canary)
    theirs = of_user(ground / "theirs")
    chance, parent = random.Random(seed), os.getpid()
    racer = as_user(lambda: swap_for_ever(str(theirs), str(canary), seed, parent))
    try:
        for number in range(ACTS):
            with suppress(OSError):
                act_in(theirs, chance, number)
        assert os.waitpid(racer, os.WNOHANG) == (0, 0), "the racer has ended"
    finally:
        os.kill(racer, signal.SIGKILL)
        os.waitpid(racer, 0)
    assert seen(canary) == before


def act_in(theirs: Path, chance: random.Random, number: int) -> None:
    """One of the things that an agent or a supervisor does in a folder of a user."""
    name = chance.choice(("a", "b", "job", "j", "file", "cotenant-0123456789ab"))
    with OpenFolder.open_path(theirs) as top:
        match number % 8:
            case 0:
                top.remove(name)
            case 1:
                top.make(name, 0o700, (USER, USER)).close()
            case 2:
                with top.below(name) as inner:
                    inner.write("file", b"ours")
            case 3:
                with top.below(name, "b") as inner:
                    inner.remove("j")
            case 4:
                with top.below(name) as inner:
                    inner.unlink(JOB_SOCKET)
                    os.fchown(inner.fd, USER, USER)
            case 5:
                with top.below(name) as inner, inner.socket("rank-0.sock", USER) as address:
                    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"{}", address)
            case 6:
                remove_tree(theirs / name / "b", theirs)
            case 7:
                with top.below(name) as inner:
                    inner.read("file", 100)


@pytest.mark.root
@AS_ROOT
def test_the_link_that_made_root_remove_any_folder(ground: Path) -> None:
    """A link in the place of the sockets' outer folder, as a user could put who owned that."""
    canary = canary_in(ground)
    before = seen(canary)
    shared = ground / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    attempt = ground / "7-a1"
    attempt.mkdir()
    short = shared / "cotenant-0123456789ab"
    short.symlink_to(canary)
    os.chown(short, USER, USER, follow_symlinks=False)
    (attempt / JOB).symlink_to(short / "j")
    remove_short_folder(attempt)
    assert seen(canary) == before
    assert not os.path.lexists(short)
    assert not os.path.lexists(attempt / JOB)


@pytest.mark.root
@AS_ROOT
def test_a_user_cannot_put_another_folder_in_the_place_of_his_sockets(
    ground: Path,
) -> None:
    shared = ground / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    deep = ground / ("d" * 120)
    deep.mkdir()
    order = of(USER)
    made = make_job_folder(deep, order, bases=(str(shared),))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener, OpenFolder.open_path(made) as folder:
        listener.bind(str(made / JOB_SOCKET))
        folder.write(BEAT_FILE, b"")
        give_job_folder(folder, order)
    assert (made.stat().st_uid, made.stat().st_mode & 0o777) == (USER, 0o700)
    assert {(made / name).stat().st_uid for name in (JOB_SOCKET, BEAT_FILE)} == {USER}
    assert made.parent.stat().st_uid == 0
    for path in (made, made.parent, deep / JOB):
        pid = as_user(lambda path=path: os.rename(path, f"{path}x"))  # type: ignore[misc]
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 13, path
    remove_short_folder(deep)
    assert list(shared.iterdir()) == []


def of(uid: int) -> Order:
    return order_of(launch=Launch(uid=uid, gid=uid))


@pytest.mark.root
@AS_ROOT
def test_no_more_is_removed_than_the_user_could_remove(ground: Path) -> None:
    """He moves a folder of his, with something of root's in it, to where root removes."""
    theirs = of_user(ground / "theirs")
    moved = of_user(theirs / "moved")
    roots = moved / "roots"
    roots.mkdir()
    (roots / "file").write_text("root's")
    (moved / "plain").write_text("")
    with OpenFolder.open_path(ground) as top, pytest.raises(OSError):
        top.remove("theirs")
    assert (roots / "file").read_text() == "root's"
    assert not (moved / "plain").exists()
    (ground / "ours").mkdir()
    (ground / "ours" / "file").write_text("")  # We have our own rights again.
    remove_tree(ground / "ours")
    assert not (ground / "ours").exists()


@pytest.mark.root
@AS_ROOT
def test_checkpoints_of_a_user_who_put_links_everywhere(ground: Path) -> None:
    canary = canary_in(ground)
    before = seen(canary)
    root = ground / "root"
    domain_of(root, "h1")
    make_checkpoint_folder(root / "journal" / "7", USER, USER)
    folder = root / "journal" / "7"
    (folder / "a1-s1").symlink_to(canary)
    os.link(canary / "file", folder / "hard")
    (root / "journal" / "8").symlink_to(canary)
    remove_tree(folder, root)
    remove_tree(root / "journal" / "8", root)
    os.rename(root / "journal", root / "aside")
    (root / "journal").symlink_to(canary)
    with pytest.raises(NotADirectoryError):
        remove_tree(root / "journal" / "inner", root)
    with pytest.raises(NotADirectoryError):
        make_checkpoint_folder(root / "journal" / "9", USER, USER)
    (root / ".cotenant-hosts" / "h2").symlink_to(canary / "file")
    with pytest.raises(OSError):
        domain_of(root, "h2")
    assert seen(canary) == before
    assert list((root / "aside").iterdir()) == []


@pytest.mark.root
@AS_ROOT
def test_the_lock_folder_that_a_user_made_first(ground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = canary_in(ground)
    folder = of_user(ground / "locks")
    folder.chmod(0o1777)
    monkeypatch.setenv(locks.LOCK_DIR_ENV, str(folder))
    found = locks.lock_folders()
    assert found.shared == folder
    assert folder.stat().st_uid == (folder / locks.ROOTS).stat().st_uid == 0
    mine = locks.DeviceLocks(found)
    assert mine.take(["core-0"]) == ""
    folder.rename(ground / "aside")
    folder.symlink_to(canary)
    before = seen(canary)
    assert "cannot be used" in mine.take(["core-1"])
    with pytest.raises(locks.LockProblem):
        locks.lock_folders()
    assert seen(canary) == before
    mine.release()


def test_links_and_pipes_and_second_names_are_refused(tmp_path: Path) -> None:
    (tmp_path / "treasure").write_text("gold")
    (tmp_path / "folder").mkdir()
    with OpenFolder.open_path(tmp_path / "folder") as folder:
        (tmp_path / "folder" / "link").symlink_to(tmp_path / "treasure")
        os.link(tmp_path / "treasure", tmp_path / "folder" / "second")
        os.mkfifo(tmp_path / "folder" / "pipe")
        for name in ("link", "second", "pipe"):
            with pytest.raises(OSError):
                folder.write(name, b"lead")
        for name in ("link", "pipe"):
            with pytest.raises(OSError):
                folder.read(name, 10)
            with pytest.raises(OSError):
                folder.link_file(name, folder, "third")
        with pytest.raises(NotADirectoryError):
            folder.below("link")
        with pytest.raises(NotADirectoryError):
            folder.make("link", 0o700)
    assert (tmp_path / "treasure").read_text() == "gold"


def test_only_the_users_own_socket_is_reached(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own, OpenFolder.open_path(tmp_path) as folder:
        own.bind(str(tmp_path / "rank-0.sock"))
        (tmp_path / "rank-1.sock").symlink_to(tmp_path / "rank-0.sock")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            with folder.socket("rank-0.sock", os.geteuid()) as address:
                out.sendto(b"word", address)
            assert own.recv(10) == b"word"
            for name, uid in (("rank-1.sock", os.geteuid()), ("rank-0.sock", os.geteuid() + 1)):
                with pytest.raises(OSError), folder.socket(name, uid):
                    pass


def test_a_tree_of_any_depth_goes_with_few_files_open(tmp_path: Path) -> None:
    at = os.open(tmp_path, os.O_RDONLY)
    for name in ("tree", *("d" for _ in range(600))):
        os.mkdir(name, dir_fd=at)
        inner = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, limits[1]))
    try:
        remove_tree(tmp_path / "tree")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not (tmp_path / "tree").exists()


def test_folders_that_their_owner_closed_to_himself_go_as_well(tmp_path: Path) -> None:
    for mode in (0o000, 0o500, 0o300):
        inner = tmp_path / "tree" / f"{mode:o}"
        inner.mkdir(parents=True)
        (inner / "file").write_text("")
        inner.chmod(mode)
    remove_tree(tmp_path / "tree")
    assert not (tmp_path / "tree").exists()
    remove_tree(tmp_path / "tree")  # Once more is no fault.


@pytest.mark.root
@AS_ROOT
def test_folders_that_a_user_closed_to_himself_go_as_well(ground: Path) -> None:
    theirs = of_user(ground / "theirs")
    for mode in (0o000, 0o500, 0o300):
        inner = of_user(theirs / f"{mode:o}")
        (inner / "file").write_text("")
        inner.chmod(mode)
    remove_tree(theirs)
    assert not theirs.exists()


@pytest.mark.root
@AS_ROOT
def test_a_place_that_others_can_change_is_found(ground: Path) -> None:
    assert find_exposed(ground / "not" / "there") is None
    theirs = of_user(ground / "theirs")
    assert find_exposed(theirs / "state") == theirs
    (ground / "open").mkdir()
    (ground / "open").chmod(0o777)
    assert find_exposed(ground / "open" / "state") == ground / "open"
    (ground / "open").chmod(0o1777)
    assert find_exposed(ground / "open" / "state") is None
    (ground / "open").chmod(0o775)
    assert find_exposed(ground / "open" / "state") is None, "of root's own group"
    os.chown(ground / "open", 0, USER)
    assert find_exposed(ground / "open" / "state") == ground / "open"
    (ground / "link").symlink_to(theirs / "inner")
    assert find_exposed(ground / "link") == theirs


@pytest.mark.root
@AS_ROOT
def test_roots_agent_refuses_a_state_folder_that_a_user_can_change(ground: Path) -> None:
    theirs = of_user(ground / "theirs")
    with pytest.raises(folders.StateProblem, match=r"can change .*theirs: .* --state-dir"):
        folders.take_state_folder(theirs / "state")
    folders.take_state_folder(ground / "ours")
    assert folders.token_in(ground / "ours") == folders.token_in(ground / "ours")
    assert stat.S_IMODE((ground / "ours" / folders.TOKEN).stat().st_mode) == 0o600, "a mark of our daemons"
