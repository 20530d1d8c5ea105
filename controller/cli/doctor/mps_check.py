"""What MPS can do on this host, and how it will be used here. Pure, from `DoctorFacts`.

Rule: every choice has its reason. Where MPS does not work, co-tenants time-slice, and that is said: nothing
else depends on it.
"""

from __future__ import annotations

from typing import Final

from cotenant.controller.cli.doctor import enabling
from cotenant.controller.cli.doctor.check import Check, DoctorFacts
from cotenant.mps.detection import DetectedDevice, DetectedHost, has_static_partitioning, verdict
from cotenant.profiler.driver.facts import GpuFacts

V3_SINCE: Final = (13, 4)
UNTIL_THEN: Final = "until then co-tenants time-slice"
PER_DEVICE: Final = (
    "one daemon per device (mps.mode = per-device): gangs are LOCAL_RANK 0, without NCCL's direct transports"
)
BY_CLIENTS: Final = "by MPS, or by torch where jobs time-slice"
PER_HOST: Final = "one daemon for all devices, of each user: LOCAL_RANK and NCCL as without MPS (mps.mode)"


def mps(facts: DoctorFacts) -> Check | None:
    """None on a host without GPUs."""
    alive = [gpu for gpu in facts.driver.gpus if not gpu.problem and not gpu.mig]
    if not alive or facts.mps is None:  # One in MIG mode is not offered at all: `MIG` has said so.
        return None
    mode = facts.loaded.settings.mps.mode
    if mode == "off":
        return Check("MPS", "ok", "switched off (mps.mode = off): co-tenants time-slice")
    found = verdict(facts.mps)
    if not found.usable:
        if facts.mps.control_path is None and facts.around.wsl:
            todo = "never install a Linux driver there: it breaks the GPU; co-tenants time-slice"
            return Check("MPS", "ok", f"none: this is WSL, whose driver is Windows's and brings none; {todo}")
        if facts.mps.control_path is None:
            step = enabling.install("mps", facts.files)
            return Check("MPS", "warn", f"none: {found.reason}", f"{step.todo}; {UNTIL_THEN}", step.command)
        return Check("MPS", "warn", f"none: {found.reason}", UNTIL_THEN)
    refused = [
        (gpu, answer.reason) for gpu in alive if not (answer := verdict(facts.mps, device(gpu))).usable
    ]
    if len(refused) == len(alive):
        return Check("MPS", "warn", f"none: {refused[0][1]}", "co-tenants time-slice")
    choice = PER_DEVICE if mode == "per-device" else PER_HOST
    words = f"{level(facts.mps)}; {choice}"
    if refused:
        without = ", ".join(f"{gpu.index} ({reason.replace(gpu.uuid, 'it')})" for gpu, reason in refused)
        return Check("MPS", "warn", f"{words}; not on GPU {without}", "co-tenants time-slice there")
    return Check("MPS", "ok", words)


def device_memory(facts: DoctorFacts) -> Check | None:
    """Who enforces a job's planned part of a GPU's memory. None on a host without GPUs."""
    alive = [gpu for gpu in facts.driver.gpus if not gpu.problem]
    if not alive:
        return None
    regions = facts.files.memory_regions
    if regions is None:
        return Check("memory limits", "ok", f"{BY_CLIENTS}; the kernel has no dmem controller (6.14 has)")
    if not regions:
        return Check(
            "memory limits", "ok", f"{BY_CLIENTS}; the driver gives the kernel no regions (615 does)"
        )
    where = f"{regions} of {len(alive)} GPUs" if regions < len(alive) else "all GPUs"
    if not facts.files.memory_delegated:
        step = enabling.delegate_device_memory(facts.files)
        found = f"{BY_CLIENTS}; the kernel could as well (dmem, {where}), and this group may not"
        return Check("memory limits", "warn", found, step.todo, step.command)
    return Check("memory limits", "ok", f"{BY_CLIENTS}, and by the kernel (dmem) on {where}")


def level(host: DetectedHost) -> str:
    """The interfaces that the program is known to offer. The daemon's own answers still decide."""
    if host.version is None:
        return "v2 (the program does not say its version)"
    version = "CUDA {}.{}".format(*host.version)
    if host.version >= V3_SINCE:
        return f"v2, with static partitions (not used), and v3 ({version})"
    return (
        f"v2, with static partitions, not used ({version})"
        if has_static_partitioning(host)
        else f"v2 ({version})"
    )


def device(gpu: GpuFacts) -> DetectedDevice:
    return DetectedDevice(
        uuid=gpu.uuid,
        compute_capability=gpu.capability,
        compute_mode=gpu.compute_mode,
        mig_enabled=gpu.mig,
    )
