"""The CPU source, against processes whose use is known."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cotenant.profiler.indicators.cpu import CpuSource, Usage
from cotenant.profiler.indicators.sources import Indicator

BURN = """
import sys, time
while time.process_time() < float(sys.argv[1]): pass
print("burnt", flush=True)
sys.stdin.read()
"""
PARENT = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.3: pass"])
print("waited", flush=True)
sys.stdin.read()
"""


@contextmanager
def process(code: str, *arguments: str) -> Iterator[int]:
    """A process that has said its one line and now waits."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline()
        while state_of(child.pid) != "S":  # It has a little to do until it waits.
            assert child.poll() is None
        yield child.pid


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_processor_seconds_are_those_of_the_process() -> None:
    with process(BURN, "0.4") as pid:
        usage = Usage((pid,))
        assert 0.35 < usage.cpu_s() < 0.8, "counted in ticks of 10 ms"
        assert usage.cpu_s() == usage.cpu_s(), "it sleeps now"


def test_children_that_were_waited_for_still_count() -> None:
    with process(PARENT) as pid:
        assert Usage((pid,)).cpu_s() > 0.25


def test_the_time_of_a_process_that_has_gone_stays() -> None:
    with process(BURN, "0.1") as pid:
        usage = Usage((pid,))
        before_s = usage.cpu_s()
    assert usage.cpu_s() == before_s
    assert CpuSource((pid,), core_count=1).samples() == (), "nothing to compare with"


def test_indicators_come_from_the_processes_or_are_missing() -> None:
    clock = iter((0.0, 0.0, 10.0, 10.0, 20.0, 20.0))
    with process(BURN, "0.5") as pid:
        # The clock moves 10 s between readings, and the process burnt its time before the first.
        source = CpuSource((pid,), core_count=2, clock=lambda: next(clock))
        assert source.samples() == (), "nothing to compare with"
        [timed] = source.samples()
        second = timed.values
    assert second[Indicator.CPU].value == pytest.approx(0.0, abs=0.02)
    assert second[Indicator.SMOCC].value == 0.0, "measured, and really zero: it sleeps"
    for name in (Indicator.TENSO, Indicator.DRAMA, Indicator.FP32A, Indicator.PCITX, Indicator.NVLRX):
        assert math.isnan(second[name].value)
        assert second[name].reason
    assert set(second) == set(Indicator)
    assert {reading.source for reading in second.values()} == {"cpu"}


def test_where_there_is_a_control_group_its_count_of_processor_time_is_used_and_named(tmp_path: Path) -> None:
    stat = tmp_path / "cpu.stat"
    now_s = 10.0
    stat.write_text("usage_usec 1000000\nuser_usec 900000\n")
    source = CpuSource([], 2, clock=lambda: now_s, cpu_stat=stat)
    assert source.samples() == ()
    now_s = 12.0
    stat.write_text("usage_usec 4000000\nuser_usec 900000\n")
    second = source.samples()[0].values
    assert second[Indicator.CPU].value == pytest.approx(1.5)
    assert second[Indicator.SMACT].value == pytest.approx(0.75)
    assert second[Indicator.GRACT].value == 1.0
    assert second[Indicator.CPU].source == "cgroup" and second[Indicator.NETTX].source == "cpu"
    stat.unlink()
    now_s = 13.0
    assert source.samples()[0].values[Indicator.CPU].value == 0.0, "time does not run back"


def test_a_group_without_a_count_is_left_alone(tmp_path: Path) -> None:
    clock = iter(range(9))
    source = CpuSource([], 1, clock=lambda: float(next(clock)), cpu_stat=tmp_path / "cpu.stat")
    source.samples()
    assert source.samples()[0].values[Indicator.CPU].source == "cpu"
