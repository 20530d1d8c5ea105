"""What to do about what a GPU host lacks, and the exact command, on the Linux it runs. Pure.

Rule: a command is one line that can be pasted as it stands; without one the text says what to get. A command
that needs root says sudo, unless the user is root. We name packages where we have tried their names: on
Debian 12.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from cotenant.controller.cli.doctor.gpu_host import HostFiles
from cotenant.controller.cli.doctor.surroundings import SeenProcess

Thing = Literal["driver", "mps", "dcgm", "persistenced"]


class EnablingStep(NamedTuple):
    """Words for a person, and a command or nothing."""

    todo: str
    command: str = ""


_PACKAGES: Final[dict[Thing, str]] = {
    "driver": "nvidia-driver",
    "mps": "nvidia-cuda-mps",
    "persistenced": "nvidia-persistenced",
}
"""Debian's, of the component non-free (the driver also needs contrib and non-free-firmware)."""
_NAMES: Final[dict[Thing, str]] = {
    "driver": "NVIDIA's driver",
    "mps": "nvidia-cuda-mps-control, which is part of NVIDIA's driver",
    "dcgm": "NVIDIA's DCGM",
    "persistenced": "NVIDIA's persistence daemon",
}


def install(thing: Thing, host: HostFiles) -> EnablingStep:
    if host.container and thing == "driver":
        return _container_with_gpus("the driver is the host's")
    if host.container and thing == "mps":
        return EnablingStep("start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility")
    if host.is_debian and thing in _PACKAGES:
        command = privileged_command(f"sudo apt install {_PACKAGES[thing]}", host)
        return EnablingStep(f"install {_NAMES[thing]}, from Debian's component non-free", command)
    return EnablingStep(
        f"install {_NAMES[thing]} as your distribution or NVIDIA does: https://docs.nvidia.com/datacenter"
    )


def profiling_for_everybody(host: HostFiles) -> EnablingStep:
    """Counters for users who are not administrators."""
    if host.container:
        return EnablingStep("allow it on the host, or start the container with --cap-add SYS_ADMIN")
    option = "options nvidia NVreg_RestrictProfilingToAdminUsers=0"
    return EnablingStep(
        "run the agent as root; or allow it to everybody, rebuild an initramfs that holds the driver, reboot",
        privileged_command(f"echo '{option}' | sudo tee /etc/modprobe.d/nvidia-profiling.conf", host),
    )


def load_driver(host: HostFiles) -> EnablingStep:
    if host.container:
        return _container_with_gpus("the driver is the host's")
    return EnablingStep(
        "load it; where that fails, `dmesg` says why", privileged_command("sudo modprobe nvidia", host)
    )


def mismatch(host: HostFiles) -> EnablingStep:
    """Kernel module and library are of two versions."""
    if host.container:
        return EnablingStep(
            "the image brings a driver library of its own: take it out; or, if the host's driver was updated "
            "meanwhile, restart the container"
        )
    return EnablingStep(
        "the driver was updated under a running kernel: reboot, or end what uses the GPUs and load it anew",
        privileged_command(
            "sudo modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia", host
        ),
    )


def let_container_in(host: HostFiles) -> EnablingStep:
    """NVML's unknown error in a container: its rules for devices were lost."""
    return EnablingStep(
        "a container loses its GPUs when systemd reloads its units: restart it; for good, give its runtime "
        "--device /dev/nvidiactl, /dev/nvidia-uvm and one /dev/nvidiaN for each GPU"
    )


def _container_with_gpus(why: str) -> EnablingStep:
    return EnablingStep(f"start the container with --gpus all (NVIDIA Container Toolkit); {why}")


def make_device_files(host: HostFiles) -> EnablingStep:
    if host.container:
        return _container_with_gpus("it brings the device files along")
    return EnablingStep("have them made", privileged_command("sudo nvidia-modprobe -u -c=0", host))


def unsupported_gpu(host: HostFiles) -> EnablingStep:
    """The driver is loaded and serves none of the GPUs on the bus."""
    return EnablingStep(
        "the driver may be too new for them (590 and later, and the open kernel modules, serve Turing and "
        "newer only), or they did not start: the kernel's log says which",
        privileged_command("sudo dmesg | grep NVRM", host),
    )


def reboot(host: HostFiles) -> EnablingStep:
    return EnablingStep(
        "a GPU that fell off the bus comes back with a boot, if at all; if it falls again, have it replaced",
        privileged_command("sudo reboot", host),
    )


def start_agent(host: HostFiles) -> EnablingStep:
    return EnablingStep(
        "start it (`cotenant service install` makes the unit)",
        privileged_command("sudo systemctl enable --now cotenant-agent", host),
    )


def keep_jobs(unit: str, host: HostFiles) -> EnablingStep:
    """The step that lets jobs survive their agent, for a unit that was not made after ours."""
    return EnablingStep(
        "put KillMode=process and Delegate=yes below [Service], then restart it once",
        privileged_command(f"sudo systemctl edit {unit}", host),
    )


def raise_limits(unit: str, host: HostFiles) -> EnablingStep:
    """The step that raises the limits on open files and locked memory. `unit`: the agent's; empty: it is
    started from a shell."""
    if unit:
        return EnablingStep(
            "put LimitNOFILE=65536:1048576 and LimitMEMLOCK=infinity below [Service], then restart it",
            privileged_command(f"sudo systemctl edit {unit}", host),
        )
    line = "* soft nofile 65536\\n* hard nofile 1048576\\n* - memlock unlimited\\n"
    return EnablingStep(
        "raise them, then log in again",
        privileged_command(f"printf '{line}' | sudo tee /etc/security/limits.d/cotenant.conf", host),
    )


def close_files(paths: Sequence[str], host: HostFiles) -> EnablingStep:
    names = " ".join(map(shlex.quote, paths))
    return EnablingStep(
        "let only their owner write them", privileged_command(f"sudo chmod go-w {names}", host)
    )


def quit_mps(daemon: SeenProcess, host: HostFiles) -> EnablingStep:
    """The step by which the owner of an MPS daemon asks it to end: it waits for its clients."""
    if daemon.pipes is None or not daemon.user:
        return EnablingStep("have its owner stop it: echo quit | nvidia-cuda-mps-control")
    ask = f"env CUDA_MPS_PIPE_DIRECTORY={shlex.quote(daemon.pipes)} nvidia-cuda-mps-control"
    become = ""
    if daemon.user != host.user:
        become = f"runuser -u {daemon.user} -- " if host.user == "root" else f"sudo -u {daemon.user} "
    return EnablingStep("if nobody needs it, end it (it waits for its clients)", f"echo quit | {become}{ask}")


def load_peer_memory(host: HostFiles) -> EnablingStep:
    if host.container:
        return EnablingStep("load nvidia_peermem on the host")
    parts = (
        "sudo modprobe nvidia_peermem",
        "echo nvidia_peermem | sudo tee /etc/modules-load.d/peermem.conf",
    )
    return EnablingStep("load it, now and at each boot", privileged_command(" && ".join(parts), host))


def join_group(group: str, host: HostFiles) -> EnablingStep:
    return EnablingStep(
        "join their group, then log in again",
        privileged_command(f"sudo usermod -aG {group} {host.user}", host),
    )


def persistence(host: HostFiles) -> EnablingStep:
    """Where the daemon runs and the mode is off (so Ubuntu starts it), nvidia-smi tells the daemon."""
    todo = "keep the driver loaded between jobs: they start faster"
    if host.container:
        return EnablingStep(f"{todo}; on the host: nvidia-smi -pm 1")
    if host.persistenced or not host.is_debian:
        return EnablingStep(
            f"{todo} (until the next boot)", privileged_command("sudo nvidia-smi -pm 1", host)
        )
    package = _PACKAGES["persistenced"]
    command = f"sudo apt install {package} && sudo systemctl enable --now {package}"
    return EnablingStep(todo, privileged_command(command, host))


def compute_mode_default(uuids: tuple[str, ...], host: HostFiles, todo: str) -> EnablingStep:
    return EnablingStep(todo, privileged_command(f"sudo nvidia-smi -i {','.join(uuids)} -c DEFAULT", host))


def delegate_device_memory(host: HostFiles) -> EnablingStep:
    """The step that delegates the device memory controller, for an agent that is a unit of the system; its
    own `Delegate=` passes on what it is given."""
    tree = "/sys/fs/cgroup"
    files = f"{tree}/cgroup.subtree_control {tree}/system.slice/cgroup.subtree_control"
    return EnablingStep(
        "give the agent's group the controller, before the agent starts (until the next boot)",
        privileged_command(f"echo +dmem | sudo tee {files}", host),
    )


def mig_after_reset(uuids: tuple[str, ...], host: HostFiles) -> EnablingStep:
    return EnablingStep(
        "the change waits for a reset: when nobody is on it, reset it or reboot",
        privileged_command(f"sudo nvidia-smi -i {','.join(uuids)} --gpu-reset", host),
    )


def mig_off(uuids: tuple[str, ...], host: HostFiles) -> EnablingStep:
    return EnablingStep(
        "make instances (`nvidia-smi mig -cgi PROFILE -C`; `mig -lgip` lists profiles) or leave MIG mode, "
        "and restart the agent",
        privileged_command(f"sudo nvidia-smi -i {','.join(uuids)} -mig 0", host),
    )


def reset(uuid: str, host: HostFiles) -> EnablingStep:
    """Whoever holds it open is in the way, our agent included; its jobs on other GPUs go on."""
    return EnablingStep(
        "when nobody is on it, stop the agent, reset it (or reboot), and start the agent again",
        privileged_command(f"sudo nvidia-smi -i {uuid} --gpu-reset", host),
    )


def start_hostengine(host: HostFiles) -> EnablingStep:
    return EnablingStep(
        "start DCGM's host engine", privileged_command("sudo systemctl enable --now nvidia-dcgm", host)
    )


def privileged_command(command: str, host: HostFiles) -> str:
    """The command without sudo for root, whose machine may not have it."""
    return command.replace("sudo ", "") if host.user == "root" else command
