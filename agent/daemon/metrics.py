"""The agent's sheet for Prometheus: this host's devices, and how the agent itself is doing. Pure.

Rule: an indicator is shown with its source, and one that is missing has no series. Of a reading older than
`STALE_S` the sheet shows only the age.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple, get_args

from cotenant.agent.daemon.core.state import AgentState
from cotenant.controller.domain import Device, DeviceId, DeviceReading, DeviceState, HostId
from cotenant.controller.system.metrics import AGENT, RATES, SHARES, Sheet

MIB: Final = 1024 * 1024
STALE_S: Final = 120.0
"""An exporter may collect every 30 s."""
STATES: Final[tuple[DeviceState, ...]] = get_args(DeviceState)


class AgentReading(NamedTuple):
    reading: DeviceReading
    at_s: float


class Edge(NamedTuple):
    """What the agent's edge knows beside its state; devices by UUID."""

    notes_waiting: int = 0
    """Notes that the disk has refused."""
    faults: Mapping[str, int] = {}
    """How many each GPU had since this agent started."""
    held: frozenset[str] = frozenset()
    """GPUs whose memory is held by a process that cannot be seen."""
    mps: Mapping[str, str] = {}
    """GPUs that have a daemon: what is wrong with it, empty if nothing is."""


def sheet_of(
    state: AgentState, readings: Mapping[DeviceId, AgentReading], now_s: float, edge: Edge | None = None
) -> Sheet:
    edge = edge if edge is not None else Edge()
    sheet = Sheet(AGENT)
    report = state.config.report
    host = report.host_id
    tenants = Counter(device_id for attempt in state.running for device_id in attempt.devices)
    sheet.put("cotenant_agent_info", 1, host, report.version)
    sheet.put("cotenant_agent_connected", float(state.registration.welcomed), host)
    sheet.put("cotenant_agent_attempts", len(state.running), host)
    sheet.put("cotenant_agent_reports_waiting", len(state.memory.pending), host)
    sheet.put("cotenant_agent_notes_waiting", edge.notes_waiting, host)
    for device in report.devices:
        name = device.device_id
        sheet.put("cotenant_device_info", 1, host, name, device.kind, device.type, device.sharing)
        for each in STATES:
            sheet.put("cotenant_device_state", each == device.state, host, name, each)
        sheet.put("cotenant_device_healthy", float(device.healthy), host, name)
        sheet.put("cotenant_device_tenants", tenants[name], host, name)
        sheet.put("cotenant_device_memory_bytes", device.memory_mib * MIB, host, name)
        if device.kind == "cuda":
            _put_gpu(sheet, host, device, edge, held=device.local in edge.held)
        if name in readings:
            _put_reading(sheet, host, readings[name], now_s)
    return sheet.end_with("cotenant_agent_series_left_out", host)


def _put_gpu(sheet: Sheet, host: HostId, device: Device, edge: Edge, *, held: bool) -> None:
    name, uuid = device.device_id, device.local
    sheet.put("cotenant_device_faults_total", edge.faults.get(uuid, 0), host, name)
    sheet.put("cotenant_device_memory_held", float(held), host, name)
    if uuid in edge.mps:
        sheet.put("cotenant_device_mps_up", float(not edge.mps[uuid]), host, name)


def _put_reading(sheet: Sheet, host: HostId, read: AgentReading, now_s: float) -> None:
    reading, name, source = read.reading, read.reading.device_id, read.reading.source
    age_s = max(0.0, now_s - read.at_s) + reading.age_s
    sheet.put("cotenant_device_reading_age_seconds", age_s, host, name)
    if age_s > STALE_S:
        return
    if reading.memory_used_mib is not None:
        sheet.put("cotenant_device_memory_used_bytes", reading.memory_used_mib * MIB, host, name)
    for indicator, value in reading.values.items():
        if indicator in SHARES:
            sheet.put("cotenant_device_active_ratio", value, host, name, indicator, source)
        elif indicator in RATES:
            sheet.put("cotenant_device_traffic_bytes_per_second", value, host, name, indicator, source)
        elif indicator == "CPU":
            sheet.put("cotenant_device_cpu_cores", value, host, name, source)
