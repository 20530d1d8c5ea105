"""The mounts of a container, judged on their host: links are followed first, as the job's user."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.agent.daemon.images import Images, NoImage
from cotenant.agent.ipc.records import ContainerRuntime, Order
from cotenant.controller.domain import Container, Launch, Mount
from tests.building.orders import PLAIN, changed

NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that another user can enter, as pytest's own cannot be."""
    with tempfile.TemporaryDirectory() as made:
        os.chmod(made, 0o755)
        yield Path(made)


def prepared(*mounts: Mount, workdir: Path) -> Order:
    runtime = ContainerRuntime(name="apptainer", program="/bin/false", oci="")
    container = Container(image="py:1", mounts=mounts)
    launch = Launch(
        argv=("true",),
        workdir=str(workdir),
        container=container,
        uid=os.getuid() or NOBODY,
        gid=os.getgid() or NOBODY,
    )
    order = changed(PLAIN, launch=launch)
    return asyncio.run(Images((runtime,), lease_left_s=lambda: None).prepare(order, container))


def test_what_is_mounted_is_what_was_judged(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "link").symlink_to("data")
    mount = Mount(source=str(folder / "link"), target="/d", read_only=True)
    launch = prepared(mount, workdir=folder).launch
    assert launch.container is not None
    assert launch.container.mounts == (Mount(source=str(folder / "data"), target="/d", read_only=True),)


@pytest.mark.parametrize("place", ["/", "/dev", "/proc/self", "/sys"])
def test_a_link_to_what_is_the_kernels_is_refused(folder: Path, place: str) -> None:
    (folder / "link").symlink_to(place)
    with pytest.raises(NoImage, match=rf"--mount: {folder}/link/. leads to /.* must not") as refused:
        prepared(Mount(source=f"{folder}/link/.", target="/d"), workdir=folder)
    assert refused.value.is_users


def test_the_working_directory_is_judged_alike(folder: Path) -> None:
    (folder / "here").symlink_to("/dev/shm")
    with pytest.raises(NoImage, match=r"its working directory: .*leads to /dev/shm"):
        prepared(workdir=folder / "here")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be another user")
def test_links_are_followed_with_the_users_rights(folder: Path) -> None:
    (folder / "closed").mkdir(mode=0o700)
    (folder / "closed/data").mkdir()
    (folder / "link").symlink_to("closed/data")
    with pytest.raises(NoImage, match="its user cannot read"):
        prepared(Mount(source=str(folder / "link"), target="/d"), workdir=folder)


def test_a_working_directory_that_is_not_there_is_said_elsewhere(folder: Path) -> None:
    assert prepared(workdir=folder / "not" / "there").launch.workdir == str(folder / "not/there")
