"""What to do about what a GPU host lacks, and the exact command, on the Linux it runs. Pure.

Rule: a command is one line that can be pasted as it stands, or it is left out and the words say what to get.
What needs root says sudo, unless one is root. Package names are the distributions' own, or those of NVIDIA's
repository where a distribution has none; they were read in package lists, not tried on a host of every kind.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from cotenant.controller.cli.host.gpu_host import HostFiles
from cotenant.controller.cli.host.surroundings import Seen

Thing = Literal["driver", "mps", "dcgm"]


class Step(NamedTuple):
    """Words for a person, and a command or nothing."""

    todo: str
    command: str = ""


_INSTALL: Final[dict[tuple[str, Thing], str]] = {
    ("debian", "driver"): "sudo apt install nvidia-driver",
    ("ubuntu", "driver"): "sudo ubuntu-drivers install",
    ("rhel", "driver"): "sudo dnf install cuda-drivers",
    ("fedora", "driver"): "sudo dnf install akmod-nvidia xorg-x11-drv-nvidia-cuda",
    ("debian", "mps"): "sudo apt install nvidia-cuda-mps",
    ("ubuntu", "mps"): "sudo apt install nvidia-compute-utils-{branch}",
    ("rhel", "mps"): "sudo dnf install nvidia-driver-cuda",
    ("fedora", "mps"): "sudo dnf install xorg-x11-drv-nvidia-cuda",
    ("debian", "dcgm"): "sudo apt install datacenter-gpu-manager-4-core",
    ("ubuntu", "dcgm"): "sudo apt install datacenter-gpu-manager-4-core",
    ("rhel", "dcgm"): "sudo dnf install datacenter-gpu-manager-4-core",
    ("suse", "dcgm"): "sudo zypper install datacenter-gpu-manager-4-core",
}
_FROM: Final[dict[tuple[str, Thing], str]] = {
    ("debian", "driver"): "from Debian's components contrib, non-free and non-free-firmware",
    ("rhel", "driver"): "from NVIDIA's CUDA repository",
    ("fedora", "driver"): "from RPM Fusion",
    ("debian", "mps"): "from Debian's component non-free",
    ("rhel", "mps"): "from NVIDIA's CUDA repository",
    ("fedora", "mps"): "from RPM Fusion",
}
_NAMES: Final[dict[Thing, str]] = {
    "driver": "NVIDIA's driver",
    "mps": "nvidia-cuda-mps-control, which is part of NVIDIA's driver",
    "dcgm": "NVIDIA's DCGM",
}
_PERSISTENCED: Final = {
    "debian": "sudo apt install nvidia-persistenced",
    "rhel": "sudo dnf install nvidia-persistenced",
}
"""Ubuntu has it in the package that the driver needs anyway, and starts it without the mode."""
_REBUILD: Final = {
    "debian": "sudo update-initramfs -u",
    "ubuntu": "sudo update-initramfs -u",
    "rhel": "sudo dracut --force",
    "fedora": "sudo dracut --force",
    "suse": "sudo dracut --force",
}


def install(thing: Thing, host: HostFiles, driver: str = "") -> Step:
    """`driver`: its version, where a package's name has it."""
    if host.container and thing == "driver":
        return _container_with_gpus("the driver is the host's")
    if host.container and thing == "mps":
        return Step("start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility")
    family = host.distribution.family
    known = _INSTALL.get((family, thing), "")
    branch = driver.partition(".")[0] or host.module.partition(".")[0]
    source = "from NVIDIA's CUDA repository" if thing == "dcgm" else _FROM.get((family, thing), "")
    if not known or ("{branch}" in known and not branch):
        return Step(f"install {_NAMES[thing]}: https://docs.nvidia.com/datacenter")
    return Step(f"install {_NAMES[thing]}" + (f", {source}" if source else ""), as_us(known, host, branch))


def profiling_for_everybody(host: HostFiles) -> Step:
    """Counters for users who are not administrators."""
    if host.container:
        return Step("allow it on the host, or start the container with --cap-add SYS_ADMIN")
    option = "options nvidia NVreg_RestrictProfilingToAdminUsers=0"
    parts = [f"echo '{option}' | sudo tee /etc/modprobe.d/nvidia-profiling.conf"]
    rebuild = _REBUILD.get(host.distribution.family)
    todo = "run the agent as root; or allow it to everybody, then reboot"
    if rebuild is None:
        return Step(f"{todo} (an initramfs that holds the driver is rebuilt first)", as_us(parts[0], host))
    return Step(todo, as_us(" && ".join((*parts, rebuild)), host))


def load_driver(host: HostFiles) -> Step:
    if host.container:
        return _container_with_gpus("the driver is the host's")
    return Step("load it; where that fails, `dmesg` says why", as_us("sudo modprobe nvidia", host))


def mismatch(host: HostFiles) -> Step:
    """Kernel module and library are of two versions."""
    if host.container:
        return Step(
            "the image brings a driver library of its own: take it out; or, if the host's driver was updated "
            "meanwhile, restart the container"
        )
    return Step(
        "the driver was updated under a running kernel: reboot, or end what uses the GPUs and load it anew",
        as_us("sudo modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia", host),
    )


def let_container_in(host: HostFiles) -> Step:
    """NVML's unknown error in a container: its rules for devices were lost."""
    return Step(
        "a container loses its GPUs when systemd reloads its units: restart it; for good, give its runtime "
        "--device /dev/nvidiactl, /dev/nvidia-uvm and one /dev/nvidiaN for each GPU"
    )


def _container_with_gpus(why: str) -> Step:
    return Step(f"start the container with --gpus all (NVIDIA Container Toolkit); {why}")


def make_device_files(host: HostFiles) -> Step:
    if host.container:
        return _container_with_gpus("it brings the device files along")
    return Step("have them made", as_us("sudo nvidia-modprobe -u -c=0", host))


def unsupported_gpu(host: HostFiles) -> Step:
    """The driver is loaded and serves none of the GPUs on the bus."""
    return Step(
        "the driver may be too new for them (590 and later, and the open kernel modules, serve Turing and "
        "newer only), or they did not start: the kernel's log says which",
        as_us("sudo dmesg | grep NVRM", host),
    )


def reboot(host: HostFiles) -> Step:
    return Step(
        "a GPU that fell off the bus comes back with a boot, if at all; if it falls again, have it replaced",
        as_us("sudo reboot", host),
    )


def start_agent(host: HostFiles) -> Step:
    return Step(
        "start it (examples/deploy has the unit)", as_us("sudo systemctl enable --now cotenant-agent", host)
    )


def keep_jobs(unit: str, host: HostFiles) -> Step:
    """For a unit that was not made after ours."""
    return Step(
        "put KillMode=process and Delegate=yes below [Service] (examples/deploy), then restart it once",
        as_us(f"sudo systemctl edit {unit}", host),
    )


def raise_limits(unit: str, host: HostFiles) -> Step:
    """`unit`: the agent's; empty: it is started from a shell."""
    if unit:
        return Step(
            "put LimitNOFILE=65536:1048576 and LimitMEMLOCK=infinity below [Service], then restart it",
            as_us(f"sudo systemctl edit {unit}", host),
        )
    line = "* soft nofile 65536\\n* hard nofile 1048576\\n* - memlock unlimited\\n"
    return Step(
        "raise them, then log in again",
        as_us(f"printf '{line}' | sudo tee /etc/security/limits.d/cotenant.conf", host),
    )


def close_files(paths: Sequence[str], host: HostFiles) -> Step:
    names = " ".join(map(shlex.quote, paths))
    return Step("let only their owner write them", as_us(f"sudo chmod go-w {names}", host))


def quit_mps(daemon: Seen, host: HostFiles) -> Step:
    """Its owner asks it to end: it waits for its clients."""
    if daemon.pipes is None or not daemon.user:
        return Step("have its owner stop it: echo quit | nvidia-cuda-mps-control")
    ask = f"env CUDA_MPS_PIPE_DIRECTORY={shlex.quote(daemon.pipes)} nvidia-cuda-mps-control"
    become = ""
    if daemon.user != host.user:
        become = f"runuser -u {daemon.user} -- " if host.user == "root" else f"sudo -u {daemon.user} "
    return Step("if nobody needs it, end it (it waits for its clients)", f"echo quit | {become}{ask}")


def load_peer_memory(host: HostFiles) -> Step:
    if host.container:
        return Step("load nvidia_peermem on the host")
    parts = (
        "sudo modprobe nvidia_peermem",
        "echo nvidia_peermem | sudo tee /etc/modules-load.d/peermem.conf",
    )
    return Step("load it, now and at each boot", as_us(" && ".join(parts), host))


def join_group(group: str, host: HostFiles) -> Step:
    return Step("join their group, then log in again", as_us(f"sudo usermod -aG {group} {host.user}", host))


def persistence(host: HostFiles) -> Step:
    """Where the daemon runs and the mode is off (so Ubuntu starts it), nvidia-smi tells the daemon."""
    todo = "keep the driver loaded between jobs: they start faster"
    if host.container:
        return Step(f"{todo}; on the host: nvidia-smi -pm 1")
    if host.persistenced:
        return Step(f"{todo} (until the next boot)", as_us("sudo nvidia-smi -pm 1", host))
    package = _PERSISTENCED.get(host.distribution.family, "")
    if not package:
        return Step(f"{todo} (until the next boot)", as_us("sudo nvidia-smi -pm 1", host))
    return Step(todo, as_us(f"{package} && sudo systemctl enable --now nvidia-persistenced", host))


def compute_mode_default(uuids: tuple[str, ...], host: HostFiles, todo: str) -> Step:
    return Step(todo, as_us(f"sudo nvidia-smi -i {','.join(uuids)} -c DEFAULT", host))


def delegate_device_memory(host: HostFiles) -> Step:
    """For an agent that is a unit of the system; its own `Delegate=` passes on what it is given."""
    tree = "/sys/fs/cgroup"
    files = f"{tree}/cgroup.subtree_control {tree}/system.slice/cgroup.subtree_control"
    return Step(
        "give the agent's group the controller, before the agent starts (until the next boot)",
        as_us(f"echo +dmem | sudo tee {files}", host),
    )


def mig_after_reset(uuids: tuple[str, ...], host: HostFiles) -> Step:
    return Step(
        "the change waits for a reset: when nobody is on it, reset it or reboot",
        as_us(f"sudo nvidia-smi -i {','.join(uuids)} --gpu-reset", host),
    )


def mig_off(uuids: tuple[str, ...], host: HostFiles) -> Step:
    return Step(
        "leave MIG mode to share them here", as_us(f"sudo nvidia-smi -i {','.join(uuids)} -mig 0", host)
    )


def reset(uuid: str, host: HostFiles) -> Step:
    """Whoever holds it open is in the way, our agent included; its jobs on other GPUs go on."""
    return Step(
        "when nobody is on it, stop the agent, reset it (or reboot), and start the agent again",
        as_us(f"sudo nvidia-smi -i {uuid} --gpu-reset", host),
    )


def start_hostengine(host: HostFiles) -> Step:
    return Step("start DCGM's host engine", as_us("sudo systemctl enable --now nvidia-dcgm", host))


def as_us(command: str, host: HostFiles, branch: str = "") -> str:
    """Without sudo for root, whose machine may not have it."""
    plain = command.replace("{branch}", branch)
    return plain.replace("sudo ", "") if host.user == "root" else plain
