"""The files for the host of a standby: the same keys and users, the same settings with both endpoints, for
nobody else to read."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.controller.system import keys, paths, settings
from cotenant.controller.system.endpoint import BadEndpoint
from cotenant.controller.system.second_host import SETTINGS_FILE, prepare_second_host

FIRST = "tcp://head1:7070"
SETTINGS = """
[controller]
endpoint = "tcp://head1:7070"
listen = "tcp://0.0.0.0:7070"
lease_s = 120.0

[policy]
name = "sjf"
promises = false

[limits]
exceptions = ["user ann devices=16", "user b\u00f6b jobs=2"]

[organisations."a.b"]
quota_devices = 4

[agent]
devices = "cpu:2"
"""


def load(folder: Path, text: str = SETTINGS) -> settings.LoadedSettings:
    path = folder / "here.toml"
    path.write_text(text)
    return settings.load(files=[path], environ={})


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    folder = tmp_path / "keys"
    keys.init_cluster(folder)
    keys.add_agent(folder, "gpu01")
    return folder


def test_the_second_host_gets_the_same_keys_users_and_settings(tmp_path: Path, cluster: Path) -> None:
    here = load(tmp_path)
    made = prepare_second_host(here, cluster, "head2:7171")
    assert made.endpoints == (FIRST, "tcp://head2:7171")
    assert made.folder == cluster / "standby-head2"
    assert "cotenant init --standby head2:7171 --force" in made.next_steps
    assert keys.read_key(made.folder / keys.CONTROLLER_KEY) == keys.read_key(cluster / keys.CONTROLLER_KEY)
    agent = keys.find_key(cluster, host="gpu01")
    assert keys.Users(made.folder).get(agent.public) == keys.Users(cluster).get(agent.public)
    assert {path.name for path in made.folder.iterdir()} == {
        keys.CONTROLLER_KEY, keys.USERS_FILE, SETTINGS_FILE,
    }  # fmt: skip
    assert {path.stat().st_mode & 0o777 for path in made.folder.iterdir()} == {0o600}
    assert made.folder.stat().st_mode & 0o777 == 0o700
    there = settings.load(files=[made.folder / SETTINGS_FILE], environ={}).settings
    assert paths.client_endpoints(there) == made.endpoints
    assert paths.controller_endpoint(there) == "tcp://0.0.0.0:7171"
    assert there.controller.keys_dir == str(cluster)
    assert (there.policy, there.limits, there.organisations, there.controller.lease_s) == (
        here.settings.policy, here.settings.limits, here.settings.organisations, 120.0,
    )  # fmt: skip
    assert there.agent.devices == "auto", "it is not for an agent"


def test_what_is_there_is_replaced_only_by_force(tmp_path: Path, cluster: Path) -> None:
    here = load(tmp_path)
    folder = prepare_second_host(here, cluster, "head2").folder
    keys.add_user(cluster, "ann", uid=1001)
    before = (folder / keys.USERS_FILE).read_bytes()
    with pytest.raises(keys.KeyProblem, match="standby-head2 exists: --force writes it again"):
        prepare_second_host(here, cluster, "head2")
    assert (folder / keys.USERS_FILE).read_bytes() == before
    prepare_second_host(here, cluster, "head2", force=True)
    assert (folder / keys.USERS_FILE).read_bytes() == (cluster / keys.USERS_FILE).read_bytes()


def test_a_link_in_place_of_its_folder_is_not_followed(tmp_path: Path, cluster: Path) -> None:
    here = load(tmp_path)
    (tmp_path / "treasure").mkdir(mode=0o755)
    (cluster / "standby-head2").symlink_to(tmp_path / "treasure")
    with pytest.raises(keys.KeyProblem, match="standby-head2 is no folder that can be used"):
        prepare_second_host(here, cluster, "head2", force=True)
    assert (tmp_path / "treasure").stat().st_mode & 0o777 == 0o755
    assert list((tmp_path / "treasure").iterdir()) == []


def test_a_second_time_with_both_endpoints_set_changes_none(tmp_path: Path, cluster: Path) -> None:
    both = SETTINGS.replace(f'"{FIRST}"', f'["{FIRST}", "tcp://head2:7070"]')
    assert prepare_second_host(load(tmp_path, both), cluster, "head2").endpoints == (
        FIRST,
        "tcp://head2:7070",
    )


@pytest.mark.parametrize(
    ("endpoint", "host", "why"),
    [
        ("tcp://0.0.0.0:7070", "head2", r"set controller\.endpoint to tcp://NAME:PORT, and"),
        ("ipc:///run/c.sock", "head2", r"listens at ipc:///run/c\.sock, where other hosts do not find it"),
        ("", "head2", "listens at the socket of its user"),
        (FIRST, "head1", "--standby must be one endpoint, or a list of different"),
        (FIRST, "head 2", "got 'tcp://head 2:7070'"),
        (FIRST, "../x", "got"),
    ],
)
def test_what_makes_no_second_host_is_refused(
    tmp_path: Path, cluster: Path, endpoint: str, host: str, why: str
) -> None:
    with pytest.raises(BadEndpoint, match=why):
        prepare_second_host(load(tmp_path, f'[controller]\nendpoint = "{endpoint}"'), cluster, host)
    assert not list(cluster.glob("standby-*"))


def test_there_must_be_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(keys.KeyProblem, match="no key at"):
        prepare_second_host(load(tmp_path), tmp_path / "empty", "head2")
