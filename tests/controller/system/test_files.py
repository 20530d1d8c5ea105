"""Files that are there whole or not at all, and locks that end with their holder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cotenant.controller.system.files import write_whole
from cotenant.controller.system.locks import Lock, LockTaken, is_free, open_locked, try_lock, try_share
from cotenant.controller.system.secrets import Secrets


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_whole(path, b"old")
    (tmp_path / f".f.{os.getpid()}.tmp").mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_file_of_ours_is_its_own_from_the_first_byte_on(tmp_path: Path) -> None:
    write_whole(tmp_path / "f", b"x", owner=(os.getuid(), os.getgid()))
    assert ((tmp_path / "f").stat().st_mode & 0o777, (tmp_path / "f").read_bytes()) == (0o600, b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_link_is_replaced_and_never_followed(tmp_path: Path) -> None:
    """Whoever owns the folder may have put one in the way of root, who writes a key there."""
    other = tmp_path / "other"
    other.write_bytes(b"not ours")
    path = tmp_path / "f"
    path.symlink_to(other)
    write_whole(path, b"new")
    assert (path.is_symlink(), path.read_bytes(), other.read_bytes()) == (False, b"new", b"not ours")
    (tmp_path / f".f.{os.getpid()}.tmp").symlink_to(other)
    with pytest.raises(OSError, match="symbolic"):
        write_whole(path, b"newer")
    assert (path.read_bytes(), other.read_bytes()) == (b"new", b"not ours")


def test_a_lock_has_one_holder_who_is_named(tmp_path: Path) -> None:
    first = Lock(tmp_path / "lock")
    assert not is_free(tmp_path / "lock")
    with pytest.raises(LockTaken) as taken:
        Lock(tmp_path / "lock")
    assert taken.value.pid == os.getpid()
    first.release()
    assert is_free(tmp_path / "lock")


def test_whoever_inherits_a_locked_file_holds_it(tmp_path: Path) -> None:
    assert is_free(tmp_path / "lock"), "it is not there"
    file = open_locked(tmp_path / "lock")
    inherited = os.dup(file)
    os.close(file)
    assert not is_free(tmp_path / "lock")
    with pytest.raises(BlockingIOError):
        open_locked(tmp_path / "lock")
    os.close(inherited)
    assert is_free(tmp_path / "lock")


def test_holders_who_share_keep_out_who_wants_it_alone(tmp_path: Path) -> None:
    files = [os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(3)]
    assert [try_share(files[0]), try_share(files[1]), try_lock(files[2])] == [True, True, False]
    for file in files[:2]:
        os.close(file)
    assert try_lock(files[2])
    other = os.open(tmp_path / "lock", os.O_RDWR)
    assert not try_share(other)
    for file in (files[2], other):
        os.close(file)


def test_secrets_that_were_half_written_go_with_the_next_start(tmp_path: Path) -> None:
    for name in (".7.json.123.tmp", "8.json"):
        (tmp_path / name).write_bytes(b'{"A":')
    Secrets(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["8.json"]
