"""What to do about what a GPU host lacks, and the exact command, on the Linux it runs. Pure.

Rule: a command is one line that can be pasted as it stands, or it is left out and the words say what to get.
What needs root says sudo, unless one is root. Package names are the distributions' own, or those of NVIDIA's
repository where a distribution has none; they were read in package lists, not tried on a host of every kind.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from cotenant.controller.cli.gpu_host import HostFiles

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
        return Step(
            "start the container with --gpus all (NVIDIA Container Toolkit); the driver is the host's"
        )
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
    return Step("load it; where that fails, `dmesg` says why", as_us("sudo modprobe nvidia", host))


def make_device_files(host: HostFiles) -> Step:
    return Step("have them made", as_us("sudo nvidia-modprobe -u -c=0", host))


def join_group(group: str, host: HostFiles) -> Step:
    return Step("join their group, then log in again", as_us(f"sudo usermod -aG {group} {host.user}", host))


def persistence(host: HostFiles) -> Step:
    return Step(
        "keep the driver loaded between jobs: they start faster", as_us("sudo nvidia-smi -pm 1", host)
    )


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


def mig_off(uuids: tuple[str, ...], host: HostFiles) -> Step:
    return Step(
        "leave MIG mode to share them here", as_us(f"sudo nvidia-smi -i {','.join(uuids)} -mig 0", host)
    )


def reset(uuid: str, host: HostFiles) -> Step:
    return Step(
        "reset it when nobody is on it, or reboot", as_us(f"sudo nvidia-smi -i {uuid} --gpu-reset", host)
    )


def start_hostengine(host: HostFiles) -> Step:
    return Step("start DCGM's host engine", as_us("sudo systemctl enable --now nvidia-dcgm", host))


def as_us(command: str, host: HostFiles, branch: str = "") -> str:
    """Without sudo for root, whose machine may not have it."""
    plain = command.replace("{branch}", branch)
    return plain.replace("sudo ", "") if host.user == "root" else plain
