"""Questions about the machine, without torch: what it is, what it lacks, whether CUDA makes a context."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import shutil
import sys
import time
from functools import partial
from pathlib import Path
from typing import Final

from hwtests.first import install
from hwtests.first.control import CONTROL, Load, at_once, plain_environment, run_words
from hwtests.first.notes import Notes
from hwtests.first.nvml import Nvml, NvmlFailed
from hwtests.first.place import Place

IMPORT_S: Final = 18.0
IMPORTED: Final = "import torch; print(torch.__version__, 'for CUDA', torch.version.cuda)"
QUERY: Final = (
    "name,driver_version,compute_mode,mig.mode.current,persistence_mode,pstate,memory.total,ecc.mode.current"
)


def ask_machine(note: Notes, place: Place) -> None:
    note("boot", boot_id())
    note("user", f"uid {os.getuid()}, gid {os.getgid()}")
    if os.getuid() != 0:
        note("no root", f"this account is uid {os.getuid()}; only root starts programs as another account")
    if not place.allow_faults:
        note("no faults", "it crashes clients on purpose: add --allow-faults")
    _find_gpu(note)
    _find_mps(note, place)
    _find_torch(note, place)
    _describe_host(note)
    if shutil.which("nvidia-smi") is not None:
        asks = {
            "nvidia-smi -L": ("-L",),
            "modes": (f"--query-gpu={QUERY}", "--format=csv"),
            "nvidia-smi -q": ("-q",),
        }
        # Side by side: where no process keeps the driver loaded, each of them loads it anew.
        said = at_once({name: partial(run_words, ("nvidia-smi", *words), 10) for name, words in asks.items()})
        for name in asks:
            note(name, said[name])


def boot_id() -> str:
    """Another on another machine, and after a boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _find_gpu(note: Notes) -> None:
    """The first that the shell lets us use."""
    try:
        nvml = Nvml()
        uuids = nvml.uuids()
    except (NvmlFailed, OSError) as problem:
        note("no gpu", f"NVML does not answer: {problem}")
        return
    note("GPUs by NVML", uuids)
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    named = [
        uuid
        for index, uuid in enumerate(uuids)
        if wanted and (wanted == str(index) or uuid.startswith(wanted))
    ]
    if not named:
        note("no gpu", f"NVML knows {len(uuids)} GPUs, and none that CUDA_VISIBLE_DEVICES={wanted!r} names")
        return
    note("uuid", named[0])
    note("memory in use before, MiB", nvml.used_mib(named[0]))
    if there := nvml.processes(named[0]):
        note("processes before", [each._asdict() for each in there])


def _find_mps(note: Notes, place: Place) -> None:
    if shutil.which(CONTROL) is None:
        note("no mps", f"{CONTROL} is not on PATH")
    else:
        note(f"{CONTROL} -v", run_words((CONTROL, "-v"), 4))
    running = run_words(("pgrep", "-a", "nvidia-cuda-mps"), 4)
    note("daemons of others", running)
    default = Path(place.default_pipe)
    note(
        "default folder",
        f"{default}: " + (f"{sorted(os.listdir(default))}" if default.is_dir() else "is not there"),
    )


def _find_torch(note: Notes, place: Place) -> None:
    try:
        note("torch", importlib.metadata.version("torch"))
    except importlib.metadata.PackageNotFoundError:
        note("no torch", f"{sys.executable} has no torch; say which Python has: PYTHON=/path/to/python3")


def _describe_host(note: Notes) -> None:
    status = Path("/proc/self/status").read_text().splitlines()
    note("NSpid", next((line for line in status if line.startswith("NSpid")), "not said"))
    note("system", f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} CPUs")
    shared = os.statvfs("/dev/shm") if os.path.isdir("/dev/shm") else None
    note("/dev/shm, MiB", None if shared is None else shared.f_bsize * shared.f_bavail // 2**20)
    limits = {
        name: resource.getrlimit(getattr(resource, name))
        for name in dir(resource)
        if name.startswith("RLIMIT_")
    }
    note("ulimits", {name.removeprefix("RLIMIT_"): values for name, values in limits.items()})
    note("kernel log", _read_kernel_log())
    variables = {
        name: value for name, value in os.environ.items() if name.startswith(("CUDA", "NVIDIA", "NCCL"))
    }
    note("variables", variables)


def _read_kernel_log() -> str:
    try:
        os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))
    except OSError as problem:
        return f"/dev/kmsg: {problem.strerror}"
    return "/dev/kmsg may be read"


def ask_install(note: Notes, place: Place) -> None:
    """Into the kit's own environment; in a working tree that of the tree is taken as it is."""
    python = sys.executable
    if (install.KIT / "wheels").is_dir():
        began_s = time.monotonic()
        python = str(install.install(install.KIT))
        note("installed in, s", round(time.monotonic() - began_s, 1))
    note("environment", python)
    # The first import reads gigabytes from a cold disk: better here than in a question to the product.
    began_s = time.monotonic()
    note("torch, imported", run_words((python, "-c", IMPORTED), IMPORT_S))
    note("torch imports in, s", round(time.monotonic() - began_s, 1))


def ask_doctor(note: Notes, place: Place) -> None:
    words = "import sys; from cotenant.controller.cli.main import main; sys.exit(main())"
    began_s = time.monotonic()
    note("doctor", run_words((sys.executable, "-c", words, "doctor"), 9))
    note("took, s", round(time.monotonic() - began_s, 1))


def ask_cuda(note: Notes, place: Place) -> None:
    """A context without MPS: what it costs, and what NVML says of it. Two at once take turns."""
    nvml = Nvml()
    before_mib = nvml.used_mib(place.uuid)
    env = plain_environment(place.uuid)
    with Load("open", "info", "busy:1", env=env) as one:
        opened = one.until("opened")
        if "error" in opened:
            note("no gpu", f"CUDA makes no context: {opened['error']}")
            return
        note("context", one.facts() | {"total_mib": one.until("total_mib").get("total_mib")})
        note("MiB of a context", nvml.used_mib(place.uuid) - before_mib)
        there = nvml.processes(place.uuid)
        note("processes by NVML", [each._asdict() for each in there])
        note("NVML knows our pid", any(each.pid == one.pid for each in there))
        if failed := one.until("per_s").get("error"):
            note("kernels", failed)
            return
        note("kernels a second alone", one.rate())
        with Load("open", "busy:1", env=env) as two:
            two.until("per_s")
            note("kernels a second of two by turns", [one.rate(), two.rate()])
