"""Keys: made once, guarded, bound to a person or a host; taken back at once."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

import pytest

from cotenant.controller.system import keys
from cotenant.controller.system.keys import KeyProblem, Users


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    folder = tmp_path / "keys"
    keys.init_cluster(folder)
    return folder


def test_a_new_cluster_has_an_admin_who_is_us(cluster: Path) -> None:
    admin = keys.find_key(cluster)
    controller = keys.read_key(cluster / keys.CONTROLLER_KEY)
    assert admin.server == controller.public != admin.public
    who = Users(cluster).get(admin.public)
    assert who is not None and who.role == "admin" and who.uid == os.getuid()


def test_only_their_owner_can_read_keys(cluster: Path) -> None:
    keys.add_user(cluster, "alice", 1001)
    assert stat.S_IMODE(cluster.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in cluster.iterdir()} == {0o600}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write keys for somebody else")
def test_what_root_adds_belongs_to_the_folders_owner(cluster: Path) -> None:
    """The controller of a cluster runs as a user of its own, and root adds people."""
    os.chown(cluster, 65534, 65534)
    keys.add_user(cluster, "alice", 1001)
    made = {path.name: path.stat() for path in cluster.iterdir()}
    assert (made[keys.USERS_FILE].st_uid, made[keys.USERS_FILE].st_gid) == (65534, 65534)
    assert made["user-alice.key"].st_uid == 65534


def test_keys_are_never_overwritten_unless_forced(cluster: Path) -> None:
    before = (cluster / keys.CONTROLLER_KEY).read_bytes()
    with pytest.raises(KeyProblem, match="cotenant init --force` replaces it"):
        keys.init_cluster(cluster)
    path = keys.add_user(cluster, "alice", 1001)
    alice = path.read_bytes()
    with pytest.raises(KeyProblem, match="alice has a key already"):
        keys.add_user(cluster, "alice", 1001)
    assert path.read_bytes() == alice and (cluster / keys.CONTROLLER_KEY).read_bytes() == before
    keys.add_user(cluster, "alice", 1001, force=True)
    assert path.read_bytes() != alice
    keys.init_cluster(cluster, force=True)
    assert (cluster / keys.CONTROLLER_KEY).read_bytes() != before


def test_a_key_says_who_and_as_whom(cluster: Path) -> None:
    alice = keys.read_key(keys.add_user(cluster, "alice", 1001))
    agent = keys.read_key(keys.add_agent(cluster, "gpu07"))
    users = Users(cluster)
    who, host = users.get(alice.public), users.get(agent.public)
    assert who is not None and (who.name, who.role, who.uid, who.gid) == ("alice", "user", 1001, 1001)
    assert host is not None and (host.role, host.host) == ("agent", "gpu07")
    assert users.get("x" * 40) is None


def test_a_known_user_brings_their_groups(cluster: Path) -> None:
    me = pwd.getpwuid(os.getuid())
    keys.add_user(cluster, me.pw_name + "2", os.getuid(), role="admin")
    key = keys.read_key(cluster / f"user-{me.pw_name}2.key")
    who = Users(cluster).get(key.public)
    assert who is not None and who.gid == me.pw_gid and me.pw_gid in who.groups


@pytest.mark.parametrize("name", ["", "../x", "a b", 'a"b', "-x", "x" * 65, "a\nb"])
def test_bad_names_are_refused(cluster: Path, name: str) -> None:
    with pytest.raises(KeyProblem, match="cannot be a name"):
        keys.add_user(cluster, name, 1001)


def test_root_is_no_ordinary_user(cluster: Path) -> None:
    with pytest.raises(KeyProblem, match="only an admin may have uid 0"):
        keys.add_user(cluster, "sneaky", 0)


def test_an_unknown_user_needs_a_uid(cluster: Path) -> None:
    with pytest.raises(KeyProblem, match="no user 'nobody-here': add --uid"):
        keys.add_user(cluster, "nobody-here")


def test_a_key_that_others_can_read_is_not_used(cluster: Path) -> None:
    (cluster / keys.ADMIN_KEY).chmod(0o640)
    with pytest.raises(KeyProblem, match="chmod 600"):
        keys.find_key(cluster)


@pytest.mark.parametrize(
    "text", ["", "public = 3", "not toml at all [", 'public = "a"\nsecret = "b"\nserver = "c"']
)
def test_a_damaged_key_file_says_so(cluster: Path, text: str) -> None:
    (cluster / keys.ADMIN_KEY).write_text(text)
    with pytest.raises(KeyProblem, match=r"admin\.key"):
        keys.find_key(cluster)


def test_a_removed_key_stops_working_without_a_restart(cluster: Path) -> None:
    alice = keys.read_key(keys.add_user(cluster, "alice", 1001))
    users = Users(cluster)
    assert users.get(alice.public) is not None
    assert keys.remove(cluster, "alice") and not keys.remove(cluster, "alice")
    users.refresh()
    assert users.get(alice.public) is None


def test_which_key_is_meant(cluster: Path, tmp_path: Path) -> None:
    agent = keys.add_agent(cluster, "gpu07")
    assert keys.find_key(cluster, host="gpu07") == keys.read_key(agent)
    with pytest.raises(KeyProblem, match="no key for agent gpu08"):
        keys.find_key(cluster, host="gpu08")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "user-alice.key").write_bytes(keys.add_user(cluster, "alice", 1001).read_bytes())
    (mine / "user-alice.key").chmod(0o600)
    assert keys.find_key(mine) == keys.find_key(mine / "user-alice.key")
    with pytest.raises(KeyProblem, match=r"no key for you at .*init --user NAME.*controller\.keys_dir"):
        keys.find_key(tmp_path / "absent")
    with pytest.raises(KeyProblem, match=r"no key for agent h1 at .*init --host h1`.*agent\.keys_dir"):
        keys.find_key(tmp_path / "absent", host="h1")
    (mine / "user-bob.key").write_bytes(b"")
    with pytest.raises(KeyProblem, match=r"2 keys for you in .*controller\.keys_dir to one of"):
        keys.find_key(mine)
