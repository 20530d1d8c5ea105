"""Hosts and their devices, in as few words as the test needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cotenant.agent.daemon.core.edge import AgentConfig
from cotenant.controller.domain import Device, DeviceId, HostId, HostReport
from cotenant.controller.system.sections import AgentSettings


def cpu(device_id: str, **more: Any) -> Device:
    """A slot, such as `h/cpu0`: its host and its local name are those of its id."""
    host, _, slot = device_id.partition("/")
    plain = {"kind": "cpu", "type": "cpu", "local": slot.removeprefix("cpu"), "memory_mib": 1000}
    return Device(device_id=DeviceId(device_id), host_id=HostId(host), **{**plain, **more})


def gpu(device_id: str, uuid: str, **more: Any) -> Device:
    plain = {"kind": "cuda", "type": "H200", "local": uuid, "memory_mib": 80_000}
    return cpu(device_id, **{**plain, **more})


def host(name: str, *devices: Device, **more: Any) -> HostReport:
    return HostReport(host_id=HostId(name), devices=devices, **more)


def report(
    name: str = "a",
    devices: int = 1,
    *,
    kind: str = "cpu",
    device: dict[str, Any] | None = None,
    type: str = "cpu",
    memory_mib: int = 1000,
    **more: Any,
) -> HostReport:
    """A host with some devices of one type, reachable by other hosts."""
    local = "cpu" if kind == "cpu" else ""
    said = {"kind": kind, "type": type, "memory_mib": memory_mib, **(device or {})}
    made = (cpu(f"{name}/{local}{number}", **said) for number in range(devices))
    return host(name, *made, **{"cpus": 8, "address": "10.0.0.1", **more})


def agent_config(devices: Sequence[Device] = (), **changes: Any) -> AgentConfig:
    """Of the agent of the devices' host."""
    name = devices[0].host_id if devices else HostId("h")
    own = {each: changes.pop(each) for each in [*changes] if each in AgentSettings.__struct_fields__}
    plain = {"session": "s", "uid": 1000, "checkpoint_root": "/ckpt", "jobside_path": "/jobside"}
    changes = {"report": host(name, *devices), "settings": AgentSettings(**own), **plain, **changes}
    return AgentConfig(**changes)
