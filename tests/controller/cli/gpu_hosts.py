"""GPU hosts made up by hand for `doctor`: none of these was ever seen."""

from __future__ import annotations

from pathlib import PurePosixPath

import msgspec

from cotenant.controller.cli.doctor.check import DoctorFacts
from cotenant.controller.cli.doctor.gpu_host import DeviceFile, HostFiles
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

FILES = HostFiles(
    user="ada",
    module="580.95.05",
    pci_devices=1,
    profiling_for_admins=True,
    device_files=tuple(
        DeviceFile(path=f"/dev/{name}", mode=0o666, owner="root", group="root", ours=True)
        for name in ("nvidia0", "nvidia-uvm", "nvidiactl")
    ),
    persistenced=False,
)

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
    **files: object,
) -> DoctorFacts:
    """A host with these GPUs; with a problem, NVML did not answer at all."""
    driver = DriverFacts(problem=problem, problem_code=code)
    if not problem:
        driver = DriverFacts(driver="580.95.05", cuda=(13, 0), gpus=gpus, links=links)
    return DoctorFacts(
        loaded=settings.load(
            {"mps.mode": mode},
            files=[],
            environ={},
        ),
        status=None,
        nodes=None,
        why_unreachable=Problem("unreachable", "no controller", "start one"),
        driver=driver,
        files=msgspec.structs.replace(FILES, **files),
        mps=mps,
        indicators=indicators,
    )
