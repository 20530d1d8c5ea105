"""This machine, as the report names it, and what it lacks for a test.

Rule: every lack is one sentence that names one missing thing; a test skips with the first of them. NVML is
asked in a child with a time limit, and torch is imported only where there is a driver.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Final, Literal

import pytest

from cotenant.mps import device_memory
from cotenant.mps.detection import look, verdict
from cotenant.mps.environment import PIPE_DIRECTORY, drop_mps_variables
from cotenant.profiler.driver.facts import COMPUTE_DEFAULT, DriverFacts, GpuFacts
from cotenant.profiler.driver.probe_client import driver_facts
from hwtests.device import NO_DAEMON, Device

ROOT: Final = Path(__file__).resolve().parents[1]
CAPACITY: Final = Path("/sys/fs/cgroup") / device_memory.CAPACITY
TORCH_MIN: Final = (2, 5)
CONTEXT_S_MAX: Final = 120.0
"""The first context after a boot, without a persistence daemon, takes its time."""
RESULTS: Final = (":!hwtests/report*", ":!hwtests/pairs-*")
"""What the suite writes is no change of what it tests."""


@cache
def driver() -> DriverFacts:
    return driver_facts(diagnostics=True)


def first_gpu() -> GpuFacts | None:
    """The first that may be used here, by NVML's order; where the shell names some, the first of those."""
    usable = [gpu for gpu in driver().gpus if not gpu.problem and not gpu.mig]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return usable[0] if usable else None
    wanted = visible.split(",")[0].strip()
    named = [gpu for gpu in usable if wanted and (str(gpu.index) == wanted or gpu.uuid.startswith(wanted))]
    return named[0] if named else None


def take_device(kind: Literal["cuda", "cpu"]) -> Device:
    """What jobs train on: the first CUDA device, or one CPU slot in a dry run."""
    cores = tuple(sorted(os.sched_getaffinity(0)))
    if kind == "cpu":
        return Device(kind="cpu", cores=cores[:1])
    gpu = first_gpu()
    assert gpu is not None
    return Device(kind="cuda", uuid=gpu.uuid, name=gpu.name, cores=cores)


# --- What is missing: an empty string if nothing is ----------------------------------------------------


@cache
def lacks_cuda() -> str:
    if not _has("pynvml"):
        return "the Python package nvidia-ml-py is not installed"
    found = driver()
    if found.problem:
        return f"no NVIDIA driver answers: {found.problem}"
    if first_gpu() is None:
        return "no GPU that CUDA may use here (MIG mode, a lost GPU, or CUDA_VISIBLE_DEVICES)"
    return lacks_torch() or _torch_refuses()


SEES: Final = "import torch; torch.zeros(1, device='cuda'); print(torch.cuda.get_device_name(0))"


def _torch_refuses() -> str:
    """Why torch cannot use the GPU, tried in a child: a context stays for the life of its process, an MPS
    daemon would know us as its client, and a driver may hang.
    """
    gpu = first_gpu()
    assert gpu is not None
    words = [sys.executable, "-c", SEES]
    env = {**drop_mps_variables(os.environ), "CUDA_VISIBLE_DEVICES": gpu.uuid, PIPE_DIRECTORY: NO_DAEMON}
    try:
        done = subprocess.run(
            words, env=env, capture_output=True, text=True, timeout=CONTEXT_S_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        return f"torch made no context on {gpu.name} within {CONTEXT_S_MAX:.0f} s: is it hung? see `dmesg`"
    last = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
    return "" if done.returncode == 0 else f"torch cannot use {gpu.name}: {last[:300]}"


@cache
def lacks_torch() -> str:
    if not _has("torch"):
        return "torch is not installed: pip install 'cotenant[train]'"
    import torch

    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    return "" if version >= TORCH_MIN else f"torch {torch.__version__} is older than 2.5"


def lacks_two_gpus() -> str:
    """That torch sees, and that no two jobs of a run meet on."""
    count = len([gpu for gpu in driver().gpus if not gpu.problem and not gpu.mig])
    return "" if count > 1 else f"a gang needs two GPUs, and this machine has {count}"


def lacks_gpm() -> str:
    gpu = first_gpu()
    if gpu is None:
        return lacks_cuda()
    if not gpu.gpm:
        return f"{gpu.name} has no GPM counters (they came with Hopper)"
    return f"GPM may not be read by this user: {gpu.gpm_problem}" if gpu.gpm_problem else ""


def lacks_dcgm() -> str:
    return "" if shutil.which("dcgmi") else "dcgmi is not installed (NVIDIA's datacenter-gpu-manager-4-core)"


def lacks_mps() -> str:
    """Whether a daemon of our own can be started, and this GPU be served by it."""
    gpu = first_gpu()
    found = verdict(look(PurePosixPath("/tmp")), gpu)
    return "" if found.usable else f"no MPS here: {found.reason}"


def memory_region() -> str:
    """The kernel's name for this GPU's memory; empty where it has none."""
    gpu = first_gpu()
    if gpu is None or shutil.which("nvidia-smi") is None or not CAPACITY.exists():
        return ""
    words = ("nvidia-smi", "--query-gpu=pci.bus_id", "--format=csv,noheader", "-i", gpu.uuid)
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    wanted = _address(done.stdout)
    named = [name for bus, name in device_memory.regions(CAPACITY.read_text()) if _address(bus) == wanted]
    return named[0] if named else ""


def _address(text: str) -> tuple[int, ...]:
    """Domain, bus, device and function; nothing where it is no such address."""
    parts = re.split(r"[:.]", text.strip())
    return tuple(int(part, 16) for part in parts) if len(parts) == 4 else ()


def lacks_device_limit() -> str:
    """Whether the kernel can limit a group's memory on this GPU."""
    if not CAPACITY.exists():
        return "the kernel has no dmem controller in a v2 tree at /sys/fs/cgroup (6.14 has one)"
    if not memory_region():
        return f"{CAPACITY} has no region of this GPU (drivers of 615 and newer make one)"
    if not os.access(CAPACITY.parent / "cgroup.subtree_control", os.W_OK):
        return "making a group with a device-memory limit takes root"
    return ""


def lacks_time_slicing() -> str:
    """Two processes without MPS on one GPU."""
    gpu = first_gpu()
    if gpu is not None and gpu.compute_mode not in (None, COMPUTE_DEFAULT):
        return "the GPU is not in compute mode DEFAULT, so two processes cannot time-slice it"
    return ""


def lacks_cuda_checkpoint() -> str:
    if shutil.which("cuda-checkpoint") is None:
        return "cuda-checkpoint is not on PATH (github.com/NVIDIA/cuda-checkpoint)"
    return ""


def lacks_cluster() -> str:
    """What a controller and an agent need."""
    for module in ("zmq", "msgpack", "psutil"):
        if not _has(module):
            return f"the Python package {module} is not installed, and a controller needs it"
    return ""


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def skip_if(lack: str) -> None:
    """Skip the test that asks, if something is missing."""
    if lack:
        pytest.skip(lack)


# --- The machine ---------------------------------------------------------------------------------------


def machine(device: str) -> dict[str, str]:
    """Facts for the report. `device`: `cpu` is a dry run, which says nothing about GPUs."""
    found = driver()
    versions = ("", "")
    if (device != "cuda" or not lacks_cuda()) and not lacks_torch():
        import torch

        versions = (str(torch.__version__), str(torch.version.cuda or ""))
    elif _has("torch"):
        from importlib.metadata import version

        versions = (version("torch"), "")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", *RESULTS)
    commit = _git("rev-parse", "--short", "HEAD") or os.environ.get("COTENANT_COMMIT", "unknown")
    memory_gib = round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30)
    return {
        "GPUs": ", ".join(gpu.name for gpu in found.gpus) or "none",
        "driver": found.driver or "none",
        "CUDA of the driver": "-" if found.cuda is None else "{}.{}".format(*found.cuda),
        "torch": versions[0] or "none",
        "CUDA of torch": versions[1] or "-",
        "Python": platform.python_version(),
        "Linux": platform.release().partition("-")[0],
        "processor": f"{_processor()}, {len(os.sched_getaffinity(0))} cores, {memory_gib} GiB",
        "commit": commit + (" and changes" if changed else ""),
        "device": device,
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _git(*words: str) -> str:
    """What git says; empty where there is no git or no repository (a copy of the files)."""
    if shutil.which("git") is None:
        return ""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
