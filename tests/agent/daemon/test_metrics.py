"""The agent's page: what Prometheus reads of a host whose devices are in every kind of trouble."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from cotenant.agent.daemon.core.edge import DevicesChanged, GpuFault
from cotenant.agent.daemon.core.state import AgentState
from cotenant.agent.daemon.metrics import STALE_S, AgentReading, Edge, sheet_of
from cotenant.agent.daemon.spool import Spool
from cotenant.controller.domain import DeviceId, DeviceReading
from cotenant.controller.system.metrics import Sheet
from tests.agent.daemon.test_edge_parts import runtime_in
from tests.agent.daemon.test_held_memory import GPU, OTHER, REPORT, ended
from tests.agent.daemon.test_state import config, welcomed
from tests.building.limits import within_s

ON_GPU = ("h1", "h1/gpu-a")


def values(sheet: Sheet, name: str) -> dict[tuple[str, ...], float]:
    return sheet.values.get(name, {})


def test_a_device_has_one_state_and_every_series_names_its_host() -> None:
    agent = welcomed(report=REPORT)
    lost = msgspec.structs.replace(GPU, state="lost", healthy=False, note="Xid 79")
    agent.say(DevicesChanged(devices=(lost, OTHER)))
    sheet = sheet_of(agent.state, {}, 0.0)
    states = values(sheet, "cotenant_device_state")
    assert {labels for labels, value in states.items() if value} == {
        (*ON_GPU, "lost"),
        ("h1", "h1/gpu-b", "ok"),
    }
    assert len(states) == 8 and set(states.values()) == {0.0, 1.0}
    assert values(sheet, "cotenant_device_healthy")[ON_GPU] == 0.0
    for name, series in sheet.values.items():
        assert sheet.metrics[name].labels[0] == "host", name
        assert all(labels[0] == "h1" for labels in series), name


def test_memory_that_is_held_is_told() -> None:
    agent, _ = ended()
    held = "cotenant_device_memory_held"
    assert set(values(sheet_of(agent.state, {}, 0.0), held).values()) == {0.0}
    seen = values(sheet_of(agent.state, {}, 0.0, Edge(held=frozenset({GPU.local}))), held)
    assert seen == {ON_GPU: 1.0, ("h1", "h1/gpu-b"): 0.0}


def test_a_daemon_is_told_of_only_where_there_is_to_be_one() -> None:
    agent = welcomed(report=REPORT)
    up = "cotenant_device_mps_up"
    assert values(sheet_of(agent.state, {}, 0.0), up) == {}
    for wrong, value in (("", 1.0), ("it does not answer", 0.0)):
        assert values(sheet_of(agent.state, {}, 0.0, Edge(mps={GPU.local: wrong})), up) == {ON_GPU: value}


def test_a_cpu_slot_has_nothing_of_a_gpus() -> None:
    sheet = sheet_of(welcomed().state, {}, 0.0)
    for name in ("memory_held", "mps_up", "faults_total"):
        assert values(sheet, f"cotenant_device_{name}") == {}
    assert len(values(sheet, "cotenant_device_info")) == 2


@pytest.mark.parametrize(("age_s", "is_shown"), [(1.0, True), (STALE_S + 1.0, False)])
def test_what_was_read_long_ago_is_not_shown_and_its_age_is(age_s: float, is_shown: bool) -> None:
    reading = DeviceReading(
        device_id=GPU.device_id, source="gpm", values={"SMACT": 0.5, "PCITX": 3.0}, memory_used_mib=2.0
    )
    readings = {DeviceId(GPU.device_id): AgentReading(reading, 10.0)}
    sheet = sheet_of(welcomed(report=REPORT).state, readings, 10.0 + age_s)
    assert values(sheet, "cotenant_device_reading_age_seconds") == {ON_GPU: age_s}
    shown = {
        "cotenant_device_active_ratio": {(*ON_GPU, "SMACT", "gpm"): 0.5},
        "cotenant_device_traffic_bytes_per_second": {(*ON_GPU, "PCITX", "gpm"): 3.0},
        "cotenant_device_memory_used_bytes": {ON_GPU: 2.0 * 1024 * 1024},
    }
    for name, series in shown.items():
        assert values(sheet, name) == (series if is_shown else {})


def test_faults_are_counted_from_the_start_of_the_agent_whoever_tells_of_them(tmp_path: Path) -> None:
    async def play() -> None:
        spool = Spool(tmp_path / "spool")
        spool.load()
        runtime = runtime_in(tmp_path, AgentState(config(report=REPORT)), spool)
        running = asyncio.create_task(runtime.run())
        await asyncio.sleep(0)
        faults = "cotenant_device_faults_total"
        assert set(values(runtime._sheet(), faults).values()) == {0.0}, "0 from the start"
        runtime.post(GpuFault(uuids=(GPU.local,), why="Xid 31"))
        runtime.post(GpuFault(uuids=(GPU.local, OTHER.local), why="its MPS server is in FAULT"))
        assert values(runtime._sheet(), faults) == {ON_GPU: 2.0, ("h1", "h1/gpu-b"): 1.0}
        runtime.leave()
        await running

    asyncio.run(asyncio.wait_for(play(), within_s(20)))
