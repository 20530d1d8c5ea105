"""The command lines of podman, docker and apptainer for a job's processes. Pure.

Rule: a process in a container has the same environment, devices, folders, process ids and user as it would
have outside. Values of variables never stand in an argument but for those that the program itself reads under
the same name (PATH, HOME), since everybody on the host can read arguments.

Networks, process ids and shared memory are the host's: ranks meet and use NCCL as ever, and the supervisor
sees, measures and signals their processes. The image's entry point does not run.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from cotenant.agent.host.cgroups import group_tag
from cotenant.agent.ipc.records import ContainerRuntime, Order, RankOrder
from cotenant.controller.domain import is_below, plain_path

OF_THE_PROGRAM: Final = ("PATH", "HOME", "LD_LIBRARY_PATH", "LD_PRELOAD", "XDG_RUNTIME_DIR", "TMPDIR")
"""Variables that the host's program needs itself; a container gets its own values for them, or none."""
_OF_THE_HOST: Final = ("SHELL", "XDG_RUNTIME_DIR")
"""Variables that mean nothing in a container."""
APPTAINER_PREFIX: Final = "APPTAINERENV_"
DOCKER_DAEMON: Final = "unix:///var/run/docker.sock"


class Wrapped(NamedTuple):
    """A command that starts another one in a container, and its environment."""

    argv: tuple[str, ...]
    env: dict[str, str]


class Bind(NamedTuple):
    """A file or folder of the host, and its place in the container."""

    source: str
    target: str
    read_only: bool = False


class BadContainer(ValueError):
    """The refusal of a container that would hide what cotenant needs in it; the text says what to change."""


def container_name(order: Order, folder: Path, rank: int) -> str:
    """The name of a rank's container, unique on its host. `folder`: the attempt's."""
    return f"cotenant-{order.job_id}-a{order.attempt}-r{rank}-{group_tag(folder)}"


class ContainerCommands:
    """The commands that start the processes of one attempt in containers."""

    def __init__(self, order: Order, folder: Path, job_folder: Path, client_env: Mapping[str, str]) -> None:
        """`folder`: the attempt's; `job_folder`: has its sockets; `client_env`: what the host's program
        needs.

        Raises:
            BadContainer: a mount of the user's would hide a folder of ours.
        """
        assert order.runtime is not None
        self._order, self._runtime, self._folder = order, order.runtime, folder
        self._client_env = dict(client_env)
        self._binds = binds_of(order, job_folder)

    def wrap(self, rank: RankOrder, argv: tuple[str, ...], env: Mapping[str, str]) -> Wrapped:
        """The command that starts `argv` in the rank's container, with `env` inside."""
        own = self._order.launch.env
        inside = {
            name: value
            for name, value in sorted(env.items())
            if name not in _OF_THE_HOST and (name != "PATH" or "PATH" in own)
        }
        if self._runtime.name == "apptainer":  # Which has its own word about HOME.
            given = {APPTAINER_PREFIX + name: value for name, value in inside.items() if name != "HOME"}
            return Wrapped((*self._apptainer(), *argv), given | self._client_env)
        words = [f"--workdir={self._order.launch.workdir}"]
        for name, value in inside.items():
            words.append(f"--env={name}={value}" if name in OF_THE_PROGRAM else f"--env={name}")
        home = inside.get("HOME", "").rstrip("/")
        if home and all(each.target.rstrip("/") != home for each in self._binds):
            words.append(f"--tmpfs={home}:rw,mode=1777")  # Else programs find no place for their caches.
        words += [f"--mount={mount_text(each)}" for each in self._binds]
        start = self._podman(rank) if self._runtime.name == "podman" else self._docker(rank)
        kept = {name: value for name, value in inside.items() if name not in OF_THE_PROGRAM}
        return Wrapped((*start, *words, self._runtime.image, *argv), kept | self._client_env)

    def _podman(self, rank: RankOrder) -> list[str]:
        launch, runtime = self._order.launch, self._runtime
        # As crun alone can: the user's groups count inside, though they have no number there.
        keeps_groups = runtime.oci == "crun" and bool(set(launch.groups) - {launch.gid})
        return [
            *client_of(runtime),
            "run",
            *self._common(rank),
            "--userns=keep-id",
            "--ulimit=host",
            "--security-opt=label=disable",
            *(["--group-add=keep-groups"] if keeps_groups else []),
            *(f"--device=nvidia.com/gpu={uuid}" for uuid in rank.cuda_uuids),
        ]

    def _docker(self, rank: RankOrder) -> list[str]:
        launch, start = self._order.launch, self._order.start
        return [
            *client_of(self._runtime),
            "run",
            *self._common(rank),
            f"--user={launch.uid}:{launch.gid}",
            *(f"--group-add={each}" for each in launch.groups if each != launch.gid),
            "--cap-drop=ALL",
            # Its processes are the daemon's children, outside of the attempt's control group and cores.
            *([f"--memory={start.host_memory_mib}m"] if start.host_memory_mib else []),
            *([f"--cpus={start.cpus}"] if start.cpus else []),
            *([f"--cpuset-cpus={','.join(map(str, rank.cores))}"] if rank.cores else []),
            *([f'--gpus="device={",".join(rank.cuda_uuids)}"'] if rank.cuda_uuids else []),
        ]

    def _common(self, rank: RankOrder) -> list[str]:
        launch = self._order.launch
        return [
            "--rm",
            f"--name={container_name(self._order, self._folder, rank.rank)}",
            "--pull=never",
            "--network=host",
            "--ipc=host",
            "--pid=host",
            "--log-driver=none",
            "--security-opt=no-new-privileges",
            "--entrypoint=",
            *(["--interactive"] if launch.terminal or launch.input is not None else []),
            *(["--tty"] if launch.terminal else []),
        ]

    def _apptainer(self) -> list[str]:
        has_gpus = any(rank.cuda_uuids for rank in self._order.ranks)
        return [
            *client_of(self._runtime),
            "exec",
            "--cleanenv",
            "--no-home",
            "--writable-tmpfs",
            *(["--nv"] if has_gpus else []),
            *(f"--mount={mount_text(each)}" for each in self._binds),
            f"--pwd={self._order.launch.workdir}",
            self._runtime.image,
        ]


def binds_of(order: Order, job_folder: Path) -> list[Bind]:
    """What the container sees of the host, outer folders first: what the user asks for, and what a process of
    the job uses anyway, under the same names.

    Raises:
        BadContainer: a mount of the user's would hide a folder of ours.
    """
    launch = order.launch
    workdir = launch.workdir
    if launch.snapshot is not None and launch.snapshot.subfolder:
        workdir = workdir.removesuffix(f"/{launch.snapshot.subfolder}")  # All of the job's copy.
    pipes = {client.pipe_directory for client in order.mps}
    ours = [str(job_folder), order.checkpoint_root, *sorted(pipes)]
    found = {workdir: Bind(workdir, workdir)}
    for each in launch.container.mounts if launch.container is not None else ():
        if is_below(each.target, *ours, order.jobside_path):
            raise BadContainer(
                f"--mount: {each.target} would hide a folder of cotenant's own: give another target"
            )
        target = plain_path(each.target)
        found[target] = Bind(each.source, target, each.read_only)
    found |= {path: Bind(path, path) for path in ours}
    found[order.jobside_path] = Bind(order.jobside_path, order.jobside_path, read_only=True)
    for path in order.runtime.to_controller if order.runtime is not None else ():
        found.setdefault(path, Bind(path, path, read_only=True))
    return sorted(found.values(), key=lambda bind: (bind.target.count("/"), bind.target))


def mount_text(bind: Bind) -> str:
    """A mount as all three programs read it: fields between commas, quoted where they have some."""
    line = io.StringIO()
    fields = ["type=bind", f"source={bind.source}", f"destination={bind.target}"]
    csv.writer(line, lineterminator="").writerow([*fields, "ro"] if bind.read_only else fields)
    return line.getvalue()


def client_of(runtime: ContainerRuntime) -> list[str]:
    """How a program is called. Podman leaves its processes in the control group that it is started in."""
    if runtime.name == "docker":
        return [runtime.program, f"--host={DOCKER_DAEMON}"]
    if runtime.name == "apptainer":
        return [runtime.program, "--silent"]
    oci = [f"--runtime={runtime.oci}"] if runtime.oci else []
    return [runtime.program, "--log-level=error", "--cgroup-manager=cgroupfs", *oci]


def remove_command(order: Order, folder: Path) -> list[str]:
    """The command that ends and removes all containers of an attempt, where there may be some."""
    assert order.runtime is not None
    names = [container_name(order, folder, rank.rank) for rank in order.ranks]
    if order.runtime.name == "apptainer":
        return []
    flags = ["--ignore", "--time=0"] if order.runtime.name == "podman" else []
    return [*client_of(order.runtime), "rm", "--force", *flags, *names]
