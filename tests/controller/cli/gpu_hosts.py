"""GPU hosts made up by hand for `doctor`: none of these was ever seen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec

from cotenant.controller.cli.doctor.controller_link import ControllerAnswers
from cotenant.controller.cli.doctor.facts import Facts
from cotenant.controller.cli.doctor.host_files import DeviceFile
from cotenant.controller.present.problem import Problem
from cotenant.controller.system import settings
from cotenant.mps.detection import DetectedHost
from cotenant.profiler.driver.facts import DriverFacts, GpuFacts, GpuLink, GpuProcess
from cotenant.profiler.indicators.device_process import Explanation

UUID = "GPU-00000000-0000-0000-0000-00000000000{}"

H100 = GpuFacts(
    index=0,
    uuid=UUID.format(0),
    name="fake H100",
    memory_mib=81559,
    used_mib=0,
    capability=(9, 0),
    compute_mode=0,
    persistence=True,
    mig=False,
    ecc=True,
    ecc_uncorrected=0,
    remap_pending=False,
    remap_failed=False,
    clock_mhz=1980,
    clock_mhz_max=1980,
    nvlinks=18,
    gpm=True,
)

V100 = msgspec.structs.replace(H100, name="fake V100", capability=(7, 0), memory_mib=16384, gpm=False)

NOTHING: Final[Mapping[str, Any]] = {
    "answers": ControllerAnswers(),
    "link": None,
    "host": "",
    "driver": DriverFacts(),
    "mps": None,
    "indicators": None,
    "no_names": "",
    "hostengine": False,
    "exporter": False,
    "user": "",
    "administrator": False,
    "tried_container": None,
    "folders": (),
    "processes": (),
}
"""Of a host that nobody has looked at: what an empty tree of files does not say."""
FILES: Final[Mapping[str, Any]] = {
    "user": "ada",
    "module": "580.95.05",
    "pci_devices": 1,
    "profiling_for_admins": True,
    "device_files": tuple(
        DeviceFile(path=f"/dev/{name}", mode=0o666, owner="root", group="root", ours=True)
        for name in ("nvidia0", "nvidia-uvm", "nvidiactl")
    ),
}
NOBODY: Final = ControllerAnswers(why_unreachable=Problem("unreachable", "no controller", "start one"))

MPS = DetectedHost(
    system="Linux",
    machine="x86_64",
    control_path="/usr/bin/nvidia-cuda-mps-control",
    version=(13, 0),
    runtime=PurePosixPath("/run/user/7/cotenant"),
    runtime_writable=True,
    uid=7,
)


def gpu(like: GpuFacts = H100, **changes: object) -> GpuFacts:
    return msgspec.structs.replace(like, **changes)


def made_up(flags: Mapping[str, object], **known: object) -> Facts:
    """The facts of a host of which only these are known."""
    loaded = settings.load(flags, files=[], environ={})
    return Facts(loaded, root=Path("/nonexistent"), **{**NOTHING, **known})


def somebody(pid: int = 4711, **changes: object) -> GpuProcess:
    plain = GpuProcess(pid=pid, memory_mib=1024, user="bob", command="python train.py")
    return msgspec.structs.replace(plain, **changes)


def host(
    *gpus: GpuFacts,
    links: tuple[GpuLink, ...] = (),
    problem: str = "",
    code: int = 0,
    mps: DetectedHost | None = MPS,
    mode: str = "auto",
    indicators: Explanation | None = None,
    **more: object,
) -> Facts:
    """A host with these GPUs; with a problem, NVML did not answer at all."""
    driver = DriverFacts(problem=problem, problem_code=code)
    if not problem:
        driver = DriverFacts(driver="580.95.05", cuda=(13, 0), gpus=gpus, links=links)
    known = {**FILES, "answers": NOBODY, "driver": driver, "mps": mps, "indicators": indicators, **more}
    return made_up({"mps.mode": mode}, **known)
