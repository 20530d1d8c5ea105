"""What the agent reads of its devices: slots from /proc/stat, GPUs by a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from cotenant.agent.host.indicators import RETRY_S, STARTING, Gpus, IndicatorReader, SlotUse, reading_of
from cotenant.controller.domain import Device, DeviceId, DeviceReading
from cotenant.profiler.indicators.device_process import DeviceAnswer
from cotenant.profiler.indicators.sources import Wanted
from tests.building.hosts import cpu, gpu


def device(local: str = "0", kind: str = "cpu", cores: tuple[int, ...] = (0, 1)) -> Device:
    return cpu(f"h1/cpu{local}", cores=cores) if kind == "cpu" else gpu(f"h1/{local.lower()}", local)


def stat(*cores: tuple[int, int, int]) -> str:
    """/proc/stat of cores with (user, idle, steal) ticks."""
    lines = [f"cpu{n} {user} 0 0 {idle} 0 0 0 {steal} 0 0" for n, (user, idle, steal) in enumerate(cores)]
    return "\n".join(["cpu  1 2 3 4 5 6 7 8 9 10", *lines, "intr 12 0 9", "ctxt 1"])


def use(*texts: str) -> SlotUse:
    left, clock = list(texts), iter(range(100))
    found = SlotUse(read=lambda: left.pop(0), clock=lambda: float(next(clock)))
    for _ in texts:
        found.look()
    return found


def test_a_slot_is_as_busy_as_its_cores() -> None:
    slots = use(stat((0, 0, 0), (0, 0, 0), (0, 0, 0)), stat((75, 25, 0), (25, 75, 0), (100, 0, 0)))
    assert slots.values(device()) == pytest.approx({"SMACT": 0.5, "CPU": 1.0, "GRACT": 1.0})
    assert slots.values(device(cores=(1,))) == pytest.approx({"SMACT": 0.25, "CPU": 0.25, "GRACT": 0.25})
    assert slots.lasted_s == 1.0


def test_time_that_a_hypervisor_took_was_not_used() -> None:
    slots = use(stat((0, 0, 0)), stat((50, 0, 50)))
    assert slots.values(device(cores=(0,)))["SMACT"] == 0.5


@pytest.mark.parametrize(
    "texts",
    [
        (stat((5, 5, 0)),),
        (stat((5, 5, 0)), stat((5, 5, 0))),
        (stat((5, 5, 0)), stat((1, 1, 0))),
        (stat((5, 5, 0)), "nonsense\ncpu0 x"),
        (stat((5, 5, 0)), ""),
    ],
    ids=("nothing before", "no time passed", "counters went back", "not /proc/stat", "the core is gone"),
)
def test_what_cannot_be_compared_is_missing(texts: tuple[str, ...]) -> None:
    assert use(*texts).values(device(cores=(0,))) == {}


def test_this_machines_own_file_is_understood() -> None:
    slots = SlotUse()
    slots.look()
    sum(range(3_000_000))
    until = Path("/proc/stat").read_text()
    while Path("/proc/stat").read_text() == until:
        pass
    slots.look()
    core = min(os.sched_getaffinity(0))
    values = slots.values(device(cores=(core,)))
    assert not values or 0.0 <= values["SMACT"] <= 1.0


# --- GPUs -------------------------------------------------------------------------------------------

SAYS = {
    "source": "gpm", "why": "gpm: it works", "lacks": "none", "offers": ["SMACT", "DRAMA"], "gauges": [],
    "samples": [[1.0, 1.1, 0.1, [{"SMACT": 0.2, "DRAMA": 0.5}, {}]], [1.1, 1.2, 0.1, [{"SMACT": 0.4}, {}]]],
    "problems": ["", "NVML: GPU is lost"], "lost": 0,
}  # fmt: skip
ANSWERS = f"import sys\nfor _ in sys.stdin: print({json.dumps(SAYS)!r}, flush=True)"
FAKE_NVML = Path(__file__).parents[2] / "profiler" / "fake_nvml"
TWO = [device("GPU-1", "cuda"), device("GPU-2", "cuda")]


def until_told(gpus: Gpus) -> list[DeviceReading]:
    async def ask() -> list[DeviceReading]:
        for _ in range(500):
            readings = await gpus.read(TWO)
            if readings and readings[0].why != STARTING:
                return readings
        raise AssertionError("the child never answered")

    return asyncio.run(ask())


def test_each_gpu_has_its_own_values_and_its_own_trouble() -> None:
    gpus = Gpus(Wanted(), (sys.executable, "-c", ANSWERS))
    try:
        one, two = until_told(gpus)
    finally:
        gpus.close()
    assert one.values == pytest.approx({"SMACT": 0.3, "DRAMA": 0.5}) and one.source == "gpm"
    assert one.lasted_s == pytest.approx(0.2)
    assert two.values == {} and two.source == "" and two.why == "NVML: GPU is lost"


def test_the_real_child_reads_each_gpu_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a fake library on its path: plain NVML on one GPU, and one that has fallen off the bus."""
    monkeypatch.setenv("PYTHONPATH", str(FAKE_NVML), prepend=os.pathsep)
    monkeypatch.setenv("FAKE_NVML", json.dumps({"lost": ["GPU-2"]}))
    monkeypatch.setenv("COTENANT_DCGM_BINDINGS", "/nonexistent")
    gpus = Gpus(Wanted())

    async def until_measured() -> list[DeviceReading]:
        for _ in range(100_000):
            readings = await gpus.read(TWO)
            if readings and readings[0].values:
                return readings
        raise AssertionError("the child never answered")

    try:
        one, two = asyncio.run(until_measured())
    finally:
        gpus.close()
    assert one.source == "nvml" and one.values["GRACT"] == 0.4 and "SMACT" not in one.values
    assert "not gpm" in one.why and "no SMACT" in one.why
    assert two.values == {} and "fallen off the bus" in two.why


def test_a_child_that_fails_is_said_and_started_again_later() -> None:
    clock = [0.0]
    code = 'import sys; sys.stdin.readline(); print(\'{"problem": "no driver"}\')'
    gpus = Gpus(Wanted(), (sys.executable, "-c", code), clock=lambda: clock[0])
    try:
        assert [each.why for each in until_told(gpus)] == ["no driver"] * 2
        assert gpus._child is None
        clock[0] = RETRY_S - 1
        assert [each.why for each in asyncio.run(gpus.read(TWO))] == ["no driver"] * 2
        assert gpus._child is None
        clock[0] = RETRY_S + 1
        until_told(gpus)
        assert gpus._again_s == RETRY_S + 1 + 2 * RETRY_S, "it was, failed again, and waits longer now"
    finally:
        gpus.close()


def test_after_one_that_died_without_a_word_plain_nvml_is_tried() -> None:
    gpus = Gpus(Wanted(), (sys.executable, "-c", "pass"))
    try:
        assert "failed: exit 0" in until_told(gpus)[0].why
        assert gpus._wanted == Wanted(source="nvml")
    finally:
        gpus.close()


@pytest.mark.parametrize("source", ["exporter", "nvml"])
def test_a_source_that_has_nothing_new_says_nothing(source: str) -> None:
    known = {**SAYS, "source": source, "samples": (), "problems": ("", "")}
    answer = DeviceAnswer(**known)  # type: ignore[arg-type]
    assert reading_of(answer, 0, TWO[0], 5.0) is None


def test_slots_and_their_tenants_memory_are_read_again_and_again() -> None:
    posted: list[tuple[DeviceReading, ...]] = []

    async def run() -> None:
        enough = asyncio.Event()

        def post(readings: tuple[DeviceReading, ...]) -> None:
            posted.append(readings)
            if len(posted) == 3:
                enough.set()

        indicators = IndicatorReader(
            lambda: [device(cores=(0,))],
            lambda: {DeviceId("h1/cpu0"): 77.0},
            post,
            wanted=Wanted(),
            every_s=0.05,
        )
        task = asyncio.create_task(indicators.run())
        await enough.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    assert all(reading.memory_used_mib == 77.0 and reading.why for (reading,) in posted)


@pytest.mark.parametrize(
    "more",
    [
        {"values": {"SMACT": float("nan")}},
        {"values": {"X": -1.0}},
        {"memory_used_mib": float("inf")},
        {"why": "x" * 500},
    ],
)
def test_a_reading_that_makes_no_sense_is_none(more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="h1/cpu0"):
        DeviceReading(device_id=DeviceId("h1/cpu0"), **more)
