"""What to do about what a host lacks, and the exact command, on the Linux it runs.

Rule: a command is one line that can be pasted as it stands; without one the text says what to get. A command
that needs root says sudo, unless the user is root. We name packages where we have tried their names: on
Debian 12, where they are in the component non-free (the driver also needs contrib and non-free-firmware).
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from cotenant.controller.cli.doctor.facts import Facts

HostKind = Literal["container", "debian", ""]


class Fix(NamedTuple):
    """Words for a person, and a command or nothing."""

    todo: str
    command: str = ""


BY_VENDOR: Final = "as your distribution or NVIDIA does: https://docs.nvidia.com/datacenter"
GPUS_ALL: Final = "start the container with --gpus all (NVIDIA Container Toolkit)"
STAYS_LOADED: Final = "keep the driver loaded between jobs: they start faster"
DMEM_FILES: Final = "/sys/fs/cgroup/cgroup.subtree_control /sys/fs/cgroup/system.slice/cgroup.subtree_control"
LIMITS: Final = "* soft nofile 65536\\n* hard nofile 1048576\\n* - memlock unlimited\\n"

FIXES: Final[dict[tuple[str, HostKind], Fix]] = {
    ("driver", "container"): Fix(f"{GPUS_ALL}; the driver is the host's"),
    ("driver", "debian"): Fix(
        "install NVIDIA's driver, from Debian's component non-free", "sudo apt install nvidia-driver"
    ),
    ("driver", ""): Fix(f"install NVIDIA's driver {BY_VENDOR}"),
    ("driver not loaded", "container"): Fix(f"{GPUS_ALL}; the driver is the host's"),
    ("driver not loaded", ""): Fix("load it; where that fails, `dmesg` says why", "sudo modprobe nvidia"),
    ("driver mismatch", "container"): Fix(
        "the image brings a driver library of its own: take it out; or, if the host's driver was updated "
        "meanwhile, restart the container"
    ),
    ("driver mismatch", ""): Fix(
        "the driver was updated under a running kernel: reboot, or end what uses the GPUs and load it anew",
        "sudo modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia",
    ),
    # NVML's unknown error in a container: its rules for devices were lost.
    ("driver unknown error", "container"): Fix(
        "a container loses its GPUs when systemd reloads its units: restart it; for good, give its runtime "
        "--device /dev/nvidiactl, /dev/nvidia-uvm and one /dev/nvidiaN for each GPU"
    ),
    ("driver problem", ""): Fix("`dmesg | grep NVRM` says what the driver met; often only a reboot helps"),
    ("GPU not served", ""): Fix(
        "the driver may be too new for them (590 and later, and the open kernel modules, serve Turing and "
        "newer only), or they did not start: the kernel's log says which",
        "sudo dmesg | grep NVRM",
    ),
    ("GPU lost", ""): Fix(
        "a GPU that fell off the bus comes back with a boot, if at all; if it falls again, have it replaced",
        "sudo reboot",
    ),
    # Whoever holds it open is in the way, our agent included; its jobs on other GPUs go on.
    ("GPU reset", ""): Fix(
        "when nobody is on it, stop the agent, reset it (or reboot), and start the agent again",
        "sudo nvidia-smi -i {uuid} --gpu-reset",
    ),
    ("PROHIBITED", ""): Fix("allow processes on it again", "sudo nvidia-smi -i {uuids} -c DEFAULT"),
    ("EXCLUSIVE", ""): Fix(
        "unless you want that, allow several processes", "sudo nvidia-smi -i {uuids} -c DEFAULT"
    ),
    ("MIG change", ""): Fix(
        "the change waits for a reset: when nobody is on it, reset it or reboot",
        "sudo nvidia-smi -i {uuids} --gpu-reset",
    ),
    ("MIG empty", ""): Fix(
        "make instances (`nvidia-smi mig -cgi PROFILE -C`; `mig -lgip` lists profiles) or leave MIG mode, "
        "and restart the agent",
        "sudo nvidia-smi -i {uuids} -mig 0",
    ),
    ("persistence daemon", "debian"): Fix(
        STAYS_LOADED,
        "sudo apt install nvidia-persistenced && sudo systemctl enable --now nvidia-persistenced",
    ),
    ("persistence mode", "container"): Fix(f"{STAYS_LOADED}; on the host: nvidia-smi -pm 1"),
    ("persistence mode", ""): Fix(f"{STAYS_LOADED} (until the next boot)", "sudo nvidia-smi -pm 1"),
    ("GPM for administrators", "container"): Fix(
        "allow it on the host, or start the container with --cap-add SYS_ADMIN"
    ),
    ("GPM for administrators", ""): Fix(
        "run the agent as root; or allow it to everybody, rebuild an initramfs that holds the driver, reboot",
        "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' "
        "| sudo tee /etc/modprobe.d/nvidia-profiling.conf",
    ),
    ("GPM refused", ""): Fix(
        "the driver refuses for another reason: `dmesg | grep NVRM`; indicators are missing until then"
    ),
    ("DCGM", ""): Fix(f"install NVIDIA's DCGM {BY_VENDOR}"),
    ("DCGM engine", ""): Fix("start DCGM's host engine", "sudo systemctl enable --now nvidia-dcgm"),
    ("device files missing", "container"): Fix(f"{GPUS_ALL}; it brings the device files along"),
    ("device files missing", ""): Fix("have them made", "sudo nvidia-modprobe -u -c=0"),
    ("device files of a group", ""): Fix(
        "join their group, then log in again", "sudo usermod -aG {group} {user}"
    ),
    ("device files closed", "container"): Fix(
        "start the container with --gpus all; a rootless one needs rights on them on the host, too"
    ),
    ("device files closed", ""): Fix(
        "open them (until the next boot; their mode comes from the driver's NVreg_DeviceFileMode)",
        "sudo chmod a+rw {names}",
    ),
    ("device files", ""): Fix("their mode comes from the driver's NVreg_DeviceFileMode"),
    ("MPS", "container"): Fix("start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility"),
    ("MPS", "debian"): Fix(
        "install nvidia-cuda-mps-control, which is part of NVIDIA's driver, from Debian's component non-free",
        "sudo apt install nvidia-cuda-mps",
    ),
    ("MPS", ""): Fix(f"install nvidia-cuda-mps-control, which is part of NVIDIA's driver {BY_VENDOR}"),
    # For an agent that is a unit of the system; its own `Delegate=` passes on what it is given.
    ("dmem", ""): Fix(
        "give the agent's group the controller, before the agent starts (until the next boot)",
        f"echo +dmem | sudo tee {DMEM_FILES}",
    ),
    ("peer memory", "container"): Fix("load nvidia_peermem on the host"),
    ("peer memory", ""): Fix(
        "load it, now and at each boot",
        "sudo modprobe nvidia_peermem && echo nvidia_peermem | sudo tee /etc/modules-load.d/peermem.conf",
    ),
    ("agent", ""): Fix(
        "start it (`cotenant service install` makes the unit)", "sudo systemctl enable --now cotenant-agent"
    ),
    # For a unit that was not made after ours.
    ("survival", ""): Fix(
        "put KillMode=process and Delegate=yes below [Service], then restart it once",
        "sudo systemctl edit {unit}",
    ),
    ("limits of a unit", ""): Fix(
        "put LimitNOFILE=65536:1048576 and LimitMEMLOCK=infinity below [Service], then restart it",
        "sudo systemctl edit {unit}",
    ),
    ("limits of a login", ""): Fix(
        "raise them, then log in again",
        f"printf '{LIMITS}' | sudo tee /etc/security/limits.d/cotenant.conf",
    ),
    ("settings", ""): Fix("let only their owner write them", "sudo chmod go-w {names}"),
    ("/dev/shm missing", ""): Fix(
        "data loaders with workers will fail; mount a tmpfs there",
        "sudo mount -t tmpfs -o size=4G,mode=1777 tmpfs /dev/shm",
    ),
    ("/dev/shm small", ""): Fix(
        "data loaders with workers need more; in a container: --shm-size=4g",
        "sudo mount -o remount,size=4G /dev/shm",
    ),
}


def fix(what: str, facts: Facts, **words: str) -> Fix:
    """The fix for this host, with these words in its command; without sudo for root, whose machine may not
    have it."""
    kinds: dict[HostKind, bool] = {"container": facts.container, "debian": facts.is_debian, "": True}
    rows = (FIXES.get((what, kind)) for kind, is_so in kinds.items() if is_so)
    todo, command = next(row for row in rows if row is not None)
    command = command.format(user=facts.user, **words)
    return Fix(todo, command.replace("sudo ", "") if facts.user == "root" else command)
