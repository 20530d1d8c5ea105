"""Which container programs a host has, and where a user's container would not be safe."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cotenant.agent.containers.runtimes import find_runtimes, offered_features, runtime_for, why_unsafe
from cotenant.agent.ipc.records import ContainerRuntime
from cotenant.controller.domain import Container
from cotenant.profiler.driver.cdi import NO_NAMES

PODMAN = ContainerRuntime(name="podman", program="/usr/bin/podman")
APPTAINER = ContainerRuntime(name="apptainer", program="/usr/bin/apptainer")


def host(root: Path, *programs: str, files: tuple[str, ...] = ()) -> Path:
    for name in (*(f"usr/bin/{each}" for each in programs), *files):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        path.chmod(0o755)
    return root


@pytest.mark.parametrize(
    ("programs", "files", "found"),
    [
        (
            ("podman", "newuidmap", "crun", "runc"),
            ("sys/fs/cgroup/cgroup.controllers",),
            [("podman", "crun")],
        ),
        (("podman", "newuidmap", "crun", "runc"), (), [("podman", "runc")]),
        (("podman", "newuidmap", "crun"), (), [("podman", "")]),
        (("podman", "crun"), (), []),
        (("docker",), (), []),
        (("docker", "apptainer"), ("var/run/docker.sock",), [("apptainer", ""), ("docker", "")]),
    ],
)
def test_programs_are_found(
    tmp_path: Path, programs: tuple[str, ...], files: tuple[str, ...], found: list[tuple[str, str]]
) -> None:
    assert [(each.name, each.oci) for each in find_runtimes(host(tmp_path, *programs, files=files))] == found


def test_podman_gives_gpus_by_a_cdi_specification_alone(tmp_path: Path) -> None:
    image = Container(image="a")
    (without,) = find_runtimes(host(tmp_path, "podman", "newuidmap"), no_names=NO_NAMES)
    assert offered_features([without], has_gpus=True) == ()
    assert offered_features([without], has_gpus=False) == ("container", "podman")
    assert runtime_for(image, [without, APPTAINER], on_gpus=True) == APPTAINER
    (found,) = find_runtimes(tmp_path)
    assert offered_features([found], has_gpus=True) == ("container", "podman")


def test_a_sif_needs_apptainer() -> None:
    sif = Container(image="/images/a.sif")
    assert runtime_for(sif, [PODMAN, APPTAINER], on_gpus=False) == APPTAINER
    assert runtime_for(sif, [PODMAN], on_gpus=False) is None


def test_podman_needs_a_range_of_user_ids(tmp_path: Path) -> None:
    uid = 4_000_000
    assert "--add-subuids" in why_unsafe(PODMAN, uid, "ann", (), tmp_path)
    (tmp_path / "etc").mkdir()
    for name in ("subuid", "subgid"):
        (tmp_path / "etc" / name).write_text(f"ann:1:2\n{uid}:100000:65536\n")
    assert why_unsafe(PODMAN, uid, "bob", (), tmp_path) == ""


def test_docker_is_for_those_who_may_use_it_anyway(tmp_path: Path) -> None:
    docker = ContainerRuntime(name="docker", program="docker")
    socket = host(tmp_path, files=("var/run/docker.sock",)) / "var/run/docker.sock"
    group = socket.stat().st_gid
    assert why_unsafe(docker, os.getuid() + 1, "ann", (group,), tmp_path) == ""
    assert "root for whoever may" in why_unsafe(docker, os.getuid() + 1, "ann", (group + 1,), tmp_path)
