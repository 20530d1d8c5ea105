"""The command lines of podman, docker and apptainer."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.agent.containers.command_lines import BadContainer, ContainerCommands, Wrapped, remove_command
from cotenant.agent.ipc.records import ContainerRuntime, MpsClient, Order, RankOrder
from cotenant.controller.domain import Container, Launch, Mount
from tests.building.orders import PLAIN, changed

RANK = RankOrder(rank=1, local_rank=1, cores=(2, 3), cuda_uuids=("GPU-a", "GPU-b"))
FOLDER, JOB = Path("/state/attempts/7-a1"), Path("/state/attempts/7-a1/job")
CLIENT_ENV = {"PATH": "/usr/bin:/usr/sbin", "HOME": "/home/ann"}
ENV = {"PATH": "/usr/bin", "HOME": "/home/ann", "RANK": "1", "API_KEY": "hush", "SHELL": "/bin/zsh"}


def order_of(name: str, oci: str = "", mounts: tuple[Mount, ...] = (), **launch: object) -> Order:
    container = Container(image="py:1", mounts=mounts)
    fields = {"argv": ("python",), "workdir": "/home/ann/p", "uid": 5, "gid": 6, "groups": (6, 7), **launch}
    return changed(
        PLAIN,
        launch=Launch(container=container, **fields),  # type: ignore[arg-type]
        ranks=(RANK,),
        runtime=ContainerRuntime(name=name, program=f"/bin/{name}", oci=oci, image="py:1"),
        checkpoint_root="/ckpt/7",
        jobside_path="/state/jobside",
        mps=(MpsClient(pipe_directory="/mps/0", device_uuid=""),),
    )


def wrapped(order: Order, env: dict[str, str] = ENV) -> Wrapped:
    return ContainerCommands(order, FOLDER, JOB, CLIENT_ENV).wrap(RANK, ("python", "-u"), env)


WORDS = {
    "podman": (
        ("--cgroup-manager=cgroupfs", "--runtime=runc", "run", "--rm", "--userns=keep-id", "--pid=host"),
        ("--device=nvidia.com/gpu=GPU-a", "--device=nvidia.com/gpu=GPU-b", "--pull=never", "--network=host"),
        ("--ipc=host", "--entrypoint=", "--env=API_KEY", "--env=RANK", "--workdir=/home/ann/p"),
        ("--tmpfs=/home/ann:rw,mode=1777", "--mount=type=bind,source=/mps/0,destination=/mps/0"),
        ("--mount=type=bind,source=/state/jobside,destination=/state/jobside,ro",),
        (f"--mount=type=bind,source={JOB},destination={JOB}",),
        ("--mount=type=bind,source=/home/ann/p,destination=/home/ann/p",),
        ("--mount=type=bind,source=/ckpt/7,destination=/ckpt/7", "py:1", "python", "-u"),
    ),
    "docker": (
        ("--host=unix:///var/run/docker.sock", "run", "--user=5:6", "--group-add=7", "--cap-drop=ALL"),
        ("--security-opt=no-new-privileges", '--gpus="device=GPU-a,GPU-b"', "--cpuset-cpus=2,3"),
        ("--pid=host", "--ipc=host", "--env=API_KEY", "--pull=never", "py:1", "python", "-u"),
    ),
    "apptainer": (
        ("exec", "--cleanenv", "--no-home", "--nv", "--pwd=/home/ann/p", "py:1", "python", "-u"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WORDS)
def test_what_each_program_is_told(name: str) -> None:
    argv, env = wrapped(order_of(name, oci="runc" if name == "podman" else ""))
    assert argv[0] == f"/bin/{name}"
    assert [word for row in WORDS[name] for word in row if word not in argv] == []
    assert argv[-3:] == ("py:1", "python", "-u")
    assert not any("zsh" in word for word in argv) and "SHELL" not in env
    assert env["PATH"] == CLIENT_ENV["PATH"]


def test_only_crun_keeps_the_users_groups() -> None:
    assert "--group-add=keep-groups" in wrapped(order_of("podman", oci="crun")).argv
    assert "--group-add=keep-groups" not in wrapped(order_of("podman", oci="runc")).argv


def test_a_path_of_the_users_own_is_the_containers_and_not_the_programs() -> None:
    argv, env = wrapped(order_of("podman", env={"PATH": "/opt/bin"}), {**ENV, "PATH": "/opt/bin"})
    assert "--env=PATH=/opt/bin" in argv and env["PATH"] == CLIENT_ENV["PATH"]
    assert not any(word.startswith("--env=PATH") for word in wrapped(order_of("podman")).argv)


@pytest.mark.parametrize("target", [str(JOB), "/state/jobside/cotenant", "/ckpt/7/x", "//mps/./0"])
def test_a_mount_over_our_own_folders_is_refused(target: str) -> None:
    with pytest.raises(BadContainer, match="would hide"):
        wrapped(order_of("podman", mounts=(Mount(source="/data", target=target),)))


def test_one_place_written_in_two_ways_is_one_mount() -> None:
    argv = wrapped(order_of("podman", mounts=(Mount(source="/data", target="/home//ann/./p/"),))).argv
    assert [word for word in argv if word.endswith("/ann/p") and word.startswith("--mount=")] == [
        "--mount=type=bind,source=/data,destination=/home/ann/p"
    ]


def test_the_way_to_the_controller_is_there_unless_a_mount_of_the_users_is() -> None:
    order, folder = order_of("podman"), "/run/user/5/cotenant"
    assert order.runtime is not None
    runtime = msgspec.structs.replace(order.runtime, to_controller=(folder,))
    shown = f"--mount=type=bind,source={folder},destination={folder},ro"
    assert shown in wrapped(changed(order, runtime=runtime)).argv
    assert shown not in wrapped(order).argv
    own = changed(order_of("podman", mounts=(Mount(source="/data", target=folder),)), runtime=runtime)
    assert [word for word in wrapped(own).argv if word.endswith(folder)] == [
        f"--mount=type=bind,source=/data,destination={folder}"
    ]


def test_outer_folders_are_mounted_first() -> None:
    argv = wrapped(order_of("podman", mounts=(Mount(source="/big/ann", target="/home/ann"),))).argv
    mounts = [word for word in argv if word.startswith("--mount=")]
    home, project = (
        next(i for i, m in enumerate(mounts) if m.endswith(f"={at}")) for at in ("/home/ann", "/home/ann/p")
    )
    assert home < project
    assert not any(word.startswith("--tmpfs") for word in argv)


names = st.from_regex(r"[A-Z_][A-Z0-9_]{0,12}", fullmatch=True).filter(lambda each: each not in CLIENT_ENV)


@given(
    st.dictionaries(names, st.from_regex(r"v[0-9a-f]{8}=[ \n'\"]?", fullmatch=True)),
    st.sampled_from([*WORDS]),
)
def test_no_value_of_a_variable_is_an_argument(values: dict[str, str], name: str) -> None:
    hidden = {
        k: v for k, v in values.items() if k not in ("LD_LIBRARY_PATH", "LD_PRELOAD", "TMPDIR", "SHELL")
    }
    argv, env = wrapped(order_of(name), {**ENV, **hidden})
    assert not [word for word in argv for value in hidden.values() if value in word]
    prefix = "APPTAINERENV_" if name == "apptainer" else ""
    assert all(env[prefix + key] == value for key, value in hidden.items() if key != "XDG_RUNTIME_DIR")


def test_what_is_left_is_removed_by_its_name() -> None:
    podman, docker = remove_command(order_of("podman"), FOLDER), remove_command(order_of("docker"), FOLDER)
    assert podman[-1] == docker[-1] and podman[-1].startswith("cotenant-7-a1-r1-")
    assert f"--name={podman[-1]}" in wrapped(order_of("podman")).argv
    assert remove_command(order_of("apptainer"), FOLDER) == []
