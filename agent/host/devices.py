"""The devices of this host: GPUs by way of NVML, or CPU slots that stand in for them.

Rule: a device is never silently absent. Where `auto` finds no GPU it offers CPU slots and says why; a GPU
that cannot be used is listed with the reason. NVML is asked in a child process with a time limit
(`profiler/driver/`), for it can hang, and its library would be most of the agent's memory.

    auto        every CUDA device, else one CPU slot per core, at most 8 (each with its share of the cores)
    cpu:N       N CPU slots
    cpu:2-3/4   slots 2 and 3 of 4: with `cpu:0-1/4` of another agent one machine plays two hosts
    cuda        every CUDA device
    cuda:0,2    these, by index (nvidia-smi's order) or by UUID

A GPU in MIG mode is no device itself; its instances are, or those of them that are named by UUID.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec

from cotenant.agent.host import gpu_offers
from cotenant.controller.domain import Device, DeviceId, HostId, texts
from cotenant.profiler.driver.facts import COMPUTE_EXCLUSIVE_PROCESS, DriverFacts, GpuFacts, add_advice
from cotenant.profiler.driver.probe_client import driver_facts, gpus_on_the_bus

AUTO_SLOTS_MAX: Final = 8
SLOTS_MAX: Final = 1024
_SHORT_UUID_DIGITS: Final = 6


class BadDevices(ValueError):
    """A choice of devices that makes no sense; the text says what would."""


class NotThisHost(Exception):
    """A choice that makes sense, and that this host can never offer."""


class DeviceChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The choice of devices that `--devices` says."""

    kind: Literal["auto", "cpu", "cuda"]
    slots: int = 0
    """Into how many the cores and the memory are divided."""
    first: int = 0
    last: int | None = None
    """Which slots are this agent's, from 0 on; None: to the last one."""
    picked: tuple[str, ...] = ()
    """Indices or UUIDs; empty = all."""


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    devices: tuple[Device, ...]
    gpus: tuple[GpuFacts, ...] = ()
    """What NVML said of those that are GPUs."""
    note: str = ""
    """Why these are not what one might expect."""
    busy: tuple[str, ...] = ()
    """UUIDs of GPUs on which a process computes; the watchers find out whose it is."""


def parse(text: str) -> DeviceChoice:
    """Parses the text of `--devices`. Raises BadDevices."""
    kind, colon, rest = text.strip().partition(":")
    if kind == "auto" and not colon:
        return DeviceChoice(kind="auto")
    if kind == "cuda" and (not colon or re.fullmatch(r"[\w-]+(,[\w-]+)*", rest)):
        return DeviceChoice(kind="cuda", picked=tuple(dict.fromkeys(rest.split(","))) if rest else ())
    if kind == "cpu" and texts.is_whole_number(rest) and 1 <= int(rest) <= SLOTS_MAX:
        return DeviceChoice(kind="cpu", slots=int(rest))
    if kind == "cpu" and (some := re.fullmatch(r"([0-9]{1,4})-([0-9]{1,4})/([0-9]{1,4})", rest)):
        first, last, slots = map(int, some.groups())
        if first <= last < slots <= SLOTS_MAX:
            return DeviceChoice(kind="cpu", slots=slots, first=first, last=last)
    raise BadDevices(
        f"--devices {text!r} is not one of auto, cpu:N (1 to {SLOTS_MAX}), cpu:0-1/4 (slots 0 and 1 of 4), "
        "cuda, cuda:0,2"
    )


def find(
    choice: DeviceChoice,
    host_id: HostId,
    cores: Sequence[int],
    memory_mib: int,
    *,
    slot_memory_mib: int = 0,
    oversubscribe: bool = False,
    stand_in: bool = True,
    whole_host: bool = True,
    driver: Callable[[], DriverFacts] = driver_facts,
    bus: Callable[[], Sequence[str] | None] = gpus_on_the_bus,
) -> Inventory:
    """The devices of this host. Without `stand_in`, CPU slots do not stand in for GPUs that are on the bus.
    Without `whole_host` (in a container, or a part of the host) not all that is on the bus is ours.

    Raises:
        NotThisHost: more slots than cores, or a GPU that is not there.
    """
    note = ""
    if choice.kind != "cpu":
        facts = driver()
        if facts.gpus:
            gpus = pick(facts.gpus, choice.picked)
            if whole_host and not choice.picked:
                gpus += gpu_offers.gpus_only_on_the_bus(gpus, bus() or ())
            busy = tuple(
                each.uuid for gpu in gpus for each in (gpu, *gpu.instances) if gpu_offers.is_busy(each)
            )
            found = cuda_devices(gpus, host_id, memory_mib)
            gaps = ((gpu.index, *gpu_offers.find_gap(gpu)) for gpu in gpus)
            note = "; ".join(
                f"GPU {index}: {said}" for index, said, tenants_max in gaps if said and tenants_max
            )
            return Inventory(devices=found, gpus=gpus, busy=busy, note=note)
        why = add_advice(facts.problem, facts.problem_code) or "the driver reports none"
        note = f"no CUDA devices: {why}"
        if choice.kind == "cuda":
            raise NotThisHost(f"--devices cuda: {note}; use --devices auto or cpu:N")
        on_the_bus = () if stand_in else bus()
        if on_the_bus:
            raise NotThisHost(
                f"{len(on_the_bus)} NVIDIA GPUs are on the bus, but {note}. In a cluster CPU slots do not "
                "stand in for them: `cotenant doctor` says what to do; agent.devices = cpu:N leaves them out"
            )
    count = choice.slots or min(len(cores), AUTO_SLOTS_MAX)
    slots = cpu_slots(count, host_id, cores, slot_memory_mib or memory_mib // count, oversubscribe)
    slots = slots[choice.first : None if choice.last is None else choice.last + 1]
    count = len(slots)
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
            divides=len(_share(cores, slot, count)) > 1,
        )
        for slot in range(count)
    )


def _share(cores: Sequence[int], slot: int, count: int) -> tuple[int, ...]:
    if count > len(cores):
        return (cores[slot % len(cores)],)
    return tuple(cores[slot * len(cores) // count : (slot + 1) * len(cores) // count])


# --- CUDA ------------------------------------------------------------------------------------------


def pick(gpus: Sequence[GpuFacts], picked: Sequence[str]) -> tuple[GpuFacts, ...]:
    """Returns the GPUs that were asked for, in NVML's order.

    Raises:
        NotThisHost: one of them is not there.
    """
    parts = {part.uuid for gpu in gpus for part in gpu.instances}
    known = {str(gpu.index) for gpu in gpus} | {gpu.uuid for gpu in gpus} | parts
    missing = [name for name in picked if name not in known]
    if missing:
        raise NotThisHost(f"no CUDA device {', '.join(missing)} here; there are 0 to {len(gpus) - 1}")
    chosen = []
    for gpu in gpus:
        instances = tuple(part for part in gpu.instances if part.uuid in picked)
        if not picked or str(gpu.index) in picked or gpu.uuid in picked:
            chosen.append(gpu)
        elif instances:
            chosen.append(msgspec.structs.replace(gpu, instances=instances))
    return tuple(chosen)


def cuda_devices(gpus: Sequence[GpuFacts], host_id: HostId, host_memory_mib: int = 0) -> tuple[Device, ...]:
    """The GPUs, and after each that is in MIG mode, which is listed and not offered, its instances."""
    parts = [part.uuid for gpu in gpus for part in gpu.instances]
    part_names = dict(zip(parts, short_names(parts, "mig"), strict=True))
    found: list[Device] = []
    for gpu, name in zip(gpus, short_names([_local(gpu) for gpu in gpus]), strict=True):
        found.append(_cuda_device(gpu, host_id, name, host_memory_mib))
        for part in gpu.instances:
            whole = _cuda_device(part, host_id, f"{name}-{part_names[part.uuid]}", host_memory_mib)
            found.append(
                msgspec.structs.replace(
                    whole,
                    type=gpu_offers.mig_type(part),
                    max_tenants=1,
                    sharing_note=f"a MIG instance of {name}, which one job has to itself",
                    parent=gpu.uuid,
                )
            )
    return tuple(found)


def _cuda_device(gpu: GpuFacts, host_id: HostId, name: str, host_memory_mib: int) -> Device:
    """`host_memory_mib`: that of a GPU that has none of its own."""
    said, tenants_max = gpu_offers.find_gap(gpu)
    memory_mib = max(1, (host_memory_mib if gpu.shared_memory else gpu.memory_mib) or 0)
    return Device(
        device_id=DeviceId(f"{host_id}/{name}"),
        host_id=host_id,
        kind="cuda",
        type=gpu_offers.type_of(gpu.name),
        local=_local(gpu),
        memory_mib=memory_mib,
        reserve_mib=0 if gpu.shared_memory else max(0, min(gpu_offers.reserve_mib(gpu), memory_mib - 1)),
        max_tenants=1 if gpu.compute_mode == COMPUTE_EXCLUSIVE_PROCESS else tenants_max or 2,
        state="lost" if gpu.problem else "ok",
        healthy=bool(tenants_max),
        note="" if tenants_max else said,
        sharing_note=said if tenants_max == 1 else "",
    )


def _local(gpu: GpuFacts) -> str:
    """Returns the local name of a GPU: one that is lost may not even say its UUID."""
    return gpu.uuid or f"lost-{gpu.index}"


def short_names(uuids: Sequence[str], kind: str = "gpu") -> list[str]:
    """Returns names like `gpu-1a2b3c`: as many digits of the UUID as tell this host's GPUs apart, and never
    less than six.

    A name is stable as long as the host has these GPUs; indices are not (they follow the bus and the driver's
    mood).
    """
    plain = [
        re.sub(r"[^0-9a-f]", "", uuid.lower().removeprefix("gpu-").removeprefix("mig-")) for uuid in uuids
    ]
    for digits in range(_SHORT_UUID_DIGITS, 33):
        names = [f"{kind}-{text[:digits]}" for text in plain]
        if len(set(names)) == len(names):
            return names
    return [f"{kind}-{text}-{index}" for index, text in enumerate(plain)]


def lock_names(device: Device) -> tuple[str, ...]:
    """What the agent must hold to offer the device: the GPU, or each core of a slot."""
    if device.kind == "cuda":
        return (device.local,)
    return tuple(f"core-{core}" for core in device.cores)
