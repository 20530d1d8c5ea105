"""Where groups can be made, as far as the kernel's own descriptions say; and the short parts of premises."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from cotenant.agent.host.cgroup_mounts import mounts_in, mounts_of, own_group_in
from cotenant.agent.host.cgroups import MemoryKills, memory_kills_in
from cotenant.agent.supervisor.processes.outputs import output_path
from cotenant.controller.domain import AttemptNo, JobId, Launch, SlurmScript
from tests.building.orders import PLAIN, changed

V2 = "30 24 0:26 / {point} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
V1_KILLED = {
    "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
    "memory.limit_in_bytes": "4194304\n",
}
V1 = "31 24 0:27 {root} {point} rw shared:10 - cgroup cgroup rw,{controllers}"


def test_a_pure_v2_host(tmp_path: Path) -> None:
    own = tmp_path / "system.slice/cotenant-agent.service/agent"
    own.mkdir(parents=True)
    mounts = mounts_in(V2.format(point=tmp_path))
    assert set(mounts) == {"v2"}
    groups = "0::/system.slice/cotenant-agent.service/agent\n"
    assert own_group_in(groups, "v2", mounts["v2"]) == own


def test_v1_controllers_that_share_a_mount_and_an_empty_v2_tree(tmp_path: Path) -> None:
    for name in ("cpu", "memory/jobs/a", "unified"):
        (tmp_path / name).mkdir(parents=True)
    mounts = mounts_in(
        "\n".join(
            [
                "24 1 0:22 / /proc rw - proc proc rw",
                V1.format(root="/", point=tmp_path / "cpu", controllers="cpu,cpuacct"),
                V1.format(root="/", point=tmp_path / "memory", controllers="memory"),
                V2.format(point=tmp_path / "unified"),
            ]
        )
    )
    groups = "5:cpu,cpuacct:/\n4:memory:/jobs/a\n0::/\n"
    assert mounts["cpu"] == mounts["cpuacct"]
    assert own_group_in(groups, "cpu", mounts["cpu"]) == tmp_path / "cpu"
    assert own_group_in(groups, "memory", mounts["memory"]) == tmp_path / "memory/jobs/a"
    assert own_group_in(groups, "v2", mounts["v2"]) == tmp_path / "unified"


def test_in_a_container_the_mount_shows_a_part_of_the_tree(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    mount = mounts_in(V1.format(root="/docker/abc", point=tmp_path, controllers="memory"))["memory"]
    assert own_group_in("4:memory:/docker/abc/inner\n", "memory", mount) == tmp_path / "inner"
    assert own_group_in("4:memory:/somewhere/else\n", "memory", mount) == tmp_path


def test_no_groups_at_all() -> None:
    assert mounts_in("24 1 0:22 / /proc rw - proc proc rw\n") == {}


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("out-%j-%a-%r.txt", "/home/ada/out-7_3-2-1.txt"),
        ("/logs/%j/%r", "/logs/7_3/1"),
        ("100%%.txt", "/home/ada/100%.txt"),
        ("%%j", "/home/ada/%j"),
        ("%y%", "/home/ada/%y%"),
        ("%x/%N-%A_%i-%u-%n", "/home/ada/a_b/h-7_3-ada-0"),
        ("%4A-%03i", "/home/ada/0007-003"),
    ],
)
def test_the_pattern_of_an_output_file(pattern: str, path: str) -> None:
    launch = Launch(workdir="/home/ada", output=pattern)
    words = {"job_id": JobId("7_3"), "attempt": AttemptNo(2), "name": "a/b", "user": "ada"}
    order = changed(PLAIN, launch=launch, **words)
    assert os.fspath(output_path(order, 1)) == path
    script = msgspec.structs.replace(launch, output="%j", slurm=SlurmScript(array_position=2))
    assert output_path(changed(order, launch=script), 1).name == "9", "a number, as in SLURM_JOB_ID"


@pytest.mark.parametrize(
    ("files", "has_limit", "kills"),
    [
        ({"memory.events": "low 0\nhigh 0\nmax 9\noom 2\noom_kill 3\n"}, True, (3, 0)),
        ({"memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 1\noom_group_kill 0\n"}, True, (0, 1)),
        ({"memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 2\n"}, False, (0, 2)),
        ({"memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n"}, True, (0, 0)),
        (
            V1_KILLED | {"memory.max_usage_in_bytes": "4194304\n"},
            True,
            (1, 0),
        ),
        (
            V1_KILLED | {"memory.max_usage_in_bytes": "1048576\n"},
            True,
            (0, 1),
        ),
        (
            V1_KILLED | {"memory.oom_control": "oom_kill_disable 0\n", "memory.max_usage_in_bytes": "1\n"},
            True,
            None,
        ),
        ({}, True, None),
    ],
    ids=["v2 at its limit", "v2 the host", "v2 no limit", "v2 none", "v1 limit", "v1 host", "old", "nobody"],
)
def test_kills_for_memory_are_read_from_the_group_s_own_counters(
    tmp_path: Path, files: dict[str, str], has_limit: bool, kills: tuple[int, int] | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    wanted = None if kills is None else MemoryKills(at_limit=kills[0], by_host=kills[1])
    assert memory_kills_in(tmp_path, has_limit=has_limit) == wanted


def test_what_users_call_the_folders_that_they_mount_on_is_no_line_of_ours(tmp_path: Path) -> None:
    """A FUSE file system of any user is in everybody's list of mounts, in the bytes that he chose."""
    listed = tmp_path / "mountinfo"
    listed.write_bytes(
        b"30 1 0:26 / /home/ann/\xff\x1c\xc2\x85x rw - fuse.x x rw\n"
        b"31 1 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    )
    assert {name: mount.point for name, mount in mounts_of(listed).items()} == {"v2": "/sys/fs/cgroup"}
