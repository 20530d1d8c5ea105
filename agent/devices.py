"""The devices of this host: GPUs by way of NVML, or CPU slots that stand in for them.

Rule: a device is never silently absent. Where `auto` finds no GPU it offers CPU slots and says why; a GPU
that cannot be used is listed with the reason. NVML is asked in a child process with a time limit
(`nvml.py`), for it can hang, and its library would be most of the agent's memory.

    auto        every CUDA device, else one CPU slot per core, at most 8 (each with its share of the cores)
    cpu:N       N CPU slots
    cuda        every CUDA device
    cuda:0,2    these, by index (nvidia-smi's order) or by UUID
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from cotenant.controller.domain.cluster import Device
from cotenant.controller.domain.ids import DeviceId, HostId

AUTO_SLOTS_MAX: Final = 8
SLOTS_MAX: Final = 1024
PROBE_TIMEOUT_S: Final = 60.0
"""The first call of NVML after a boot may start the driver, which takes many seconds on large machines."""
KILL_WAIT_S: Final = 2.0
_SHORT_UUID_DIGITS: Final = 6
PROHIBITED: Final = 2
EXCLUSIVE_PROCESS: Final = 3
"""NVML's numbers of compute modes."""


class BadDevices(ValueError):
    """A choice of devices that makes no sense; the text says what would."""


class NotThisHost(Exception):
    """A choice that makes sense, and that this host can never offer."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What `--devices` says."""

    kind: Literal["auto", "cpu", "cuda"]
    slots: int = 0
    picked: tuple[str, ...] = ()
    """Indices or UUIDs; empty = all."""


class MigInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a GPU in MIG mode, which programs see as a GPU of its own."""

    uuid: str
    name: str


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A CUDA device as NVML describes it."""

    index: int
    """For people: it follows the bus and the driver's mood."""
    uuid: str
    name: str
    memory_mib: int
    reserve_mib: int
    mig: bool = False
    instances: tuple[MigInstance, ...] = ()
    capability: str = ""
    """Compute capability, `9.0`."""
    bus: str = ""
    """Its address on the PCI bus, as NVML writes it; empty where it does not say."""
    compute_mode: int = 0
    """NVML's number: 0 default, 2 nobody may compute, 3 one process at a time."""
    persistent: bool = False
    is_busy: bool = False
    """Somebody computes on it at this moment."""
    problem: str = ""
    code: int = 0
    """NVML's answer where there is a problem."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """What NVML answered; no GPUs and a reason if it could not."""

    gpus: tuple[Gpu, ...] = ()
    problem: str = ""
    driver: str = ""
    """Its version."""


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    devices: tuple[Device, ...]
    gpus: tuple[Gpu, ...] = ()
    """What NVML said of those that are GPUs."""
    note: str = ""
    """Why these are not what one might expect."""
    busy: tuple[str, ...] = ()
    """UUIDs of GPUs on which somebody computes: whose processes these are is found out later."""


def parse(text: str) -> Choice:
    """Raises BadDevices."""
    kind, colon, rest = text.strip().partition(":")
    if kind == "auto" and not colon:
        return Choice(kind="auto")
    if kind == "cuda" and (not colon or re.fullmatch(r"[\w-]+(,[\w-]+)*", rest)):
        return Choice(kind="cuda", picked=tuple(dict.fromkeys(rest.split(","))) if rest else ())
    if kind == "cpu" and rest.isdecimal() and 1 <= int(rest) <= SLOTS_MAX:
        return Choice(kind="cpu", slots=int(rest))
    raise BadDevices(f"--devices {text!r} is not one of auto, cpu:N (1 to {SLOTS_MAX}), cuda, cuda:0,2")


def find(
    choice: Choice,
    host_id: HostId,
    cores: Sequence[int],
    memory_mib: int,
    *,
    slot_memory_mib: int = 0,
    oversubscribe: bool = False,
) -> Inventory:
    """The devices of this host.

    Raises:
        NotThisHost: more slots than cores, or a GPU that is not there.
    """
    note = ""
    if choice.kind != "cpu":
        probe = ask_nvml()
        if probe.gpus:
            gpus = pick(probe.gpus, choice.picked)
            busy = tuple(gpu.uuid for gpu in gpus if gpu.is_busy)
            return Inventory(devices=cuda_devices(gpus, host_id), gpus=gpus, busy=busy)
        note = f"no CUDA devices: {probe.problem or 'the driver reports none'}"
        if choice.kind == "cuda":
            raise NotThisHost(f"--devices cuda: {note}; use --devices auto or cpu:N")
    count = choice.slots or min(len(cores), AUTO_SLOTS_MAX)
    slots = cpu_slots(count, host_id, cores, slot_memory_mib or memory_mib // count, oversubscribe)
    return Inventory(devices=slots, note=f"{note}; {count} CPU slots stand in for them" if note else "")


# --- CPU slots -------------------------------------------------------------------------------------


def cpu_slots(
    count: int, host_id: HostId, cores: Sequence[int], slot_memory_mib: int, oversubscribe: bool
) -> tuple[Device, ...]:
    """Slots of as equal size as the cores allow.

    Raises:
        NotThisHost: more slots than cores, without `oversubscribe`.
    """
    if count > len(cores) and not oversubscribe:
        raise NotThisHost(
            f"cpu:{count} asks for more slots than this host has cores ({len(cores)}): ask for at most "
            f"{len(cores)}, or add --oversubscribe (slots then share cores, and times mean little)"
        )
    return tuple(
        Device(
            device_id=DeviceId(f"{host_id}/cpu{slot}"),
            host_id=host_id,
            kind="cpu",
            type="cpu",
            local=str(slot),
            memory_mib=max(1, slot_memory_mib),
            cores=_share(cores, slot, count),
        )
        for slot in range(count)
    )


def _share(cores: Sequence[int], slot: int, count: int) -> tuple[int, ...]:
    if count > len(cores):
        return (cores[slot % len(cores)],)
    return tuple(cores[slot * len(cores) // count : (slot + 1) * len(cores) // count])


# --- CUDA ------------------------------------------------------------------------------------------


def pick(gpus: Sequence[Gpu], picked: Sequence[str]) -> tuple[Gpu, ...]:
    """Those asked for, in NVML's order.

    Raises:
        NotThisHost: one of them is not there.
    """
    known = {str(gpu.index) for gpu in gpus} | {gpu.uuid for gpu in gpus}
    missing = [name for name in picked if name not in known]
    if missing:
        raise NotThisHost(f"no CUDA device {', '.join(missing)} here; there are 0 to {len(gpus) - 1}")
    return tuple(gpu for gpu in gpus if not picked or str(gpu.index) in picked or gpu.uuid in picked)


def cuda_devices(gpus: Sequence[Gpu], host_id: HostId) -> tuple[Device, ...]:
    """The GPUs, and after each that is in MIG mode its instances, which are listed and not offered."""
    parts = [(gpu, instance) for gpu in gpus for instance in gpu.instances]
    names = short_names([gpu.uuid for gpu in gpus])
    part_names = short_names([instance.uuid for _, instance in parts], "mig")
    found: list[Device] = []
    for gpu, name in zip(gpus, names, strict=True):
        found.append(_cuda_device(gpu, host_id, name))
        for (parent, instance), part_name in zip(parts, part_names, strict=True):
            if parent is gpu:
                found.append(
                    Device(
                        device_id=DeviceId(f"{host_id}/{part_name}"),
                        host_id=host_id,
                        kind="cuda",
                        type=_type(instance.name),
                        local=instance.uuid,
                        memory_mib=1,
                        healthy=False,
                        note=f"a MIG instance of {name}: cotenant offers whole GPUs only",
                    )
                )
    return tuple(found)


def _cuda_device(gpu: Gpu, host_id: HostId, name: str) -> Device:
    why = _why_not_offered(gpu)
    return Device(
        device_id=DeviceId(f"{host_id}/{name}"),
        host_id=host_id,
        kind="cuda",
        type=_type(gpu.name),
        local=gpu.uuid,
        memory_mib=max(1, gpu.memory_mib),
        reserve_mib=max(0, min(gpu.reserve_mib, gpu.memory_mib - 1)),
        max_tenants=1 if gpu.compute_mode == EXCLUSIVE_PROCESS else 2,
        state="lost" if gpu.problem else "ok",
        healthy=not why,
        note=why,
    )


def _why_not_offered(gpu: Gpu) -> str:
    if gpu.problem:
        return gpu.problem
    if gpu.mig:
        return "it is in MIG mode, which cotenant does not offer: `nvidia-smi -mig 0` makes it one GPU again"
    if gpu.compute_mode == PROHIBITED:
        return "its compute mode is PROHIBITED: `nvidia-smi -c DEFAULT` (as root) lets programs use it"
    return ""


def _type(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-") or "GPU"


def short_names(uuids: Sequence[str], kind: str = "gpu") -> list[str]:
    """`gpu-1a2b3c`: as many digits of the UUID as tell this host's GPUs apart, and never less than six.

    Stable as long as the host has these GPUs; indices are not (they follow the bus and the driver's mood).
    """
    plain = [
        re.sub(r"[^0-9a-f]", "", uuid.lower().removeprefix("gpu-").removeprefix("mig-")) for uuid in uuids
    ]
    for digits in range(_SHORT_UUID_DIGITS, 33):
        names = [f"{kind}-{text[:digits]}" for text in plain]
        if len(set(names)) == len(names):
            return names
    return [f"{kind}-{text}-{index}" for index, text in enumerate(plain)]


def ask_nvml(timeout_s: float = PROBE_TIMEOUT_S) -> Probe:
    """What NVML says, asked in a child. One that cannot even be killed is left behind."""
    command = [sys.executable, "-m", "cotenant.agent.gpus.nvml"]
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        output, errors = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        child.kill()
        try:
            child.communicate(timeout=KILL_WAIT_S)
        except (
            subprocess.TimeoutExpired
        ):  # It hangs in the kernel: nothing ends it before the driver lets go.
            _left_behind.append(child)
        return Probe(problem=f"NVML did not answer within {timeout_s:.0f} s (is a GPU hung? see `dmesg`)")
    try:
        return msgspec.convert(json.loads(output), Probe)
    except (ValueError, msgspec.ValidationError):
        last = errors.decode(errors="replace").strip().splitlines()[-1:] or [f"exit {child.returncode}"]
        return Probe(problem=f"asking NVML failed: {last[0]}")


_left_behind: list[subprocess.Popen[bytes]] = []


def lock_names(device: Device) -> tuple[str, ...]:
    """What the agent must hold to offer the device: the GPU, or each core of a slot."""
    if device.kind == "cuda":
        return (device.local,)
    return tuple(f"core-{core}" for core in device.cores)
