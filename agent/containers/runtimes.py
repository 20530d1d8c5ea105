"""Which container programs this host has, and which of them a job's image needs.

Rule: podman comes first, since it needs neither a daemon nor a program with root's rights; docker comes last.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cotenant.agent.ipc.records import ContainerRuntime
from cotenant.controller.domain import CONTAINERS, RUNTIMES, Container

SEARCHED: Final = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
DOCKER_SOCKET: Final = "/var/run/docker.sock"


def find_runtimes(root: Path = Path("/"), *, no_names: str = "") -> tuple[ContainerRuntime, ...]:
    """The container programs of this host, in the order of choice. Podman counts with `newuidmap`, which maps
    its users; docker with a daemon's socket. `no_names`: why podman finds no GPUs in CDI specifications."""
    path = ":".join(str(root / each.lstrip("/")) for each in SEARCHED.split(":"))
    unified = (root / "sys/fs/cgroup/cgroup.controllers").exists()
    # crun refuses hosts where cgroups of version 1 and 2 are mixed.
    oci = next(
        (each for each in ("crun", "runc") if shutil.which(each, path=path) and (unified or each == "runc")),
        "",
    )
    found: list[ContainerRuntime] = []
    for name in RUNTIMES:
        program = shutil.which(name, path=path)
        if program is None or (name == "podman" and shutil.which("newuidmap", path=path) is None):
            continue
        if name == "docker" and not (root / DOCKER_SOCKET.lstrip("/")).exists():
            continue
        own = (oci, no_names) if name == "podman" else ("", "")
        found.append(ContainerRuntime(name=name, program=program, oci=own[0], no_gpus=own[1]))
    return tuple(found)


def offered_features(runtimes: Sequence[ContainerRuntime], *, has_gpus: bool) -> tuple[str, ...]:
    """The features by which the controller finds a host for an image."""
    usable = [each.name for each in runtimes if not each.no_gpus or not has_gpus]
    return (CONTAINERS, *usable) if usable else ()


def runtime_for(
    container: Container, runtimes: Sequence[ContainerRuntime], *, on_gpus: bool
) -> ContainerRuntime | None:
    """The program that starts a job's containers; None: this host has none."""
    usable = (each for each in runtimes if not each.no_gpus or not on_gpus)
    return next((each for each in usable if container.feature in (CONTAINERS, each.name)), None)


def why_unsafe(
    runtime: ContainerRuntime, uid: int, user: str, groups: Sequence[int], root: Path = Path("/")
) -> str:
    """Why a user's container must not be started here; empty if nothing speaks against it."""
    if runtime.name == "podman":
        known = [_owners(root / "etc/subuid"), _owners(root / "etc/subgid")]
        if not all({user, str(uid)} & each for each in known):
            return (
                f"podman needs a range of user ids for {user or uid} (an administrator adds one: usermod "
                f"--add-subuids 100000-165535 --add-subgids 100000-165535 {user or uid})"
            )
    if runtime.name == "docker":
        socket = (root / DOCKER_SOCKET.lstrip("/")).stat()
        if socket.st_gid not in groups and socket.st_uid != uid:
            return "its user may not use the docker daemon, which is root for whoever may (podman is not)"
    return ""


def _owners(path: Path) -> set[str]:
    """Who has a range in /etc/subuid or /etc/subgid."""
    try:
        return {line.split(":")[0] for line in path.read_text(errors="replace").splitlines()}
    except OSError:
        return set()
