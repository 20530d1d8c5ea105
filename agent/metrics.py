"""The agent's sheet for Prometheus: this host's devices, and how the agent itself is doing. Pure.

Rule: an indicator is shown with its source, and one that is missing has no series. A reading that is older
than `STALE_S` is not shown as if it were of now; its age is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from cotenant.agent.state import AgentState
from cotenant.controller.domain.ids import DeviceId
from cotenant.controller.domain.indicators import DeviceReading
from cotenant.controller.metrics.sheet import Sheet
from cotenant.controller.metrics.table import AGENT, RATES, SHARES

MIB: Final = 1024 * 1024
STALE_S: Final = 120.0
"""An exporter may collect every 30 s."""


class Read(NamedTuple):
    reading: DeviceReading
    at_s: float


def sheet_of(state: AgentState, readings: Mapping[DeviceId, Read], now_s: float) -> Sheet:
    sheet = Sheet(AGENT)
    report = state.config.report
    tenants = Counter(device_id for attempt in state.running for device_id in attempt.devices)
    sheet.put("cotenant_agent_info", 1, report.host_id, report.version)
    sheet.put("cotenant_agent_connected", float(state.standing.welcomed))
    sheet.put("cotenant_agent_attempts", len(state.running))
    sheet.put("cotenant_agent_reports_waiting", len(state.memory.pending))
    for device in report.devices:
        name = device.device_id
        sheet.put("cotenant_device_info", 1, name, device.kind, device.type, device.sharing, device.state)
        sheet.put("cotenant_device_healthy", float(device.healthy), name)
        sheet.put("cotenant_device_tenants", tenants[name], name)
        sheet.put("cotenant_device_memory_bytes", device.memory_mib * MIB, name)
        if name in readings:
            _put_reading(sheet, readings[name], now_s)
    return sheet


def _put_reading(sheet: Sheet, read: Read, now_s: float) -> None:
    reading, name = read.reading, read.reading.device_id
    age_s = max(0.0, now_s - read.at_s) + reading.age_s
    sheet.put("cotenant_device_reading_age_seconds", age_s, name)
    if age_s > STALE_S:
        return
    if reading.memory_used_mib is not None:
        sheet.put("cotenant_device_memory_used_bytes", reading.memory_used_mib * MIB, name)
    for indicator, value in reading.values.items():
        if indicator in SHARES:
            sheet.put("cotenant_device_active_ratio", value, name, indicator, reading.source)
        elif indicator in RATES:
            sheet.put("cotenant_device_traffic_bytes_per_second", value, name, indicator, reading.source)
        elif indicator == "CPU":
            sheet.put("cotenant_device_cpu_cores", value, name, reading.source)
