"""The GPU source and the process behind it: real processes, fake libraries on their path."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cotenant.profiler.indicators.counters import MOVED_S, STUCK, Movement
from cotenant.profiler.indicators.cpu import CpuSource
from cotenant.profiler.indicators.device_process import MIG_HAS_NONE, DeviceProcess, NoIndicators, explain
from cotenant.profiler.indicators.gpu import GpuSource
from cotenant.profiler.indicators.sources import Indicator, Summary, Timed, Wanted, Windows
from tests.building.limits import within_s

HERE = Path(__file__).parent
GPU = "GPU-1"

ANSWER = {
    "source": "gpm", "why": "gpm: it is", "lacks": "no such counter", "offers": ["SMACT", "FP32A"],
    "gauges": [], "samples": [], "problems": [""], "lost": 0,
}  # fmt: skip
SAYS = "import sys, json\nfor n, _ in enumerate(sys.stdin): print({}, flush=True)"


def answer(*values: dict[str, float], **more: object) -> str:
    samples = [[float(at), at + 0.1, 0.1, [known]] for at, known in enumerate(values)]
    return json.dumps({**ANSWER, "samples": samples, **more})


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts the fake libraries on the path of children, with what they are to say."""

    def put(nvml: object = None, dcgm: object = None) -> None:
        monkeypatch.setenv("PYTHONPATH", str(HERE / "fake_nvml"), prepend=os.pathsep)
        monkeypatch.setenv("FAKE_NVML", json.dumps(nvml or {}))
        monkeypatch.setenv("FAKE_DCGM", json.dumps(dcgm or {}))
        monkeypatch.setenv(
            "COTENANT_DCGM_BINDINGS", str(HERE / ("fake_dcgm" if dcgm is not None else "none"))
        )

    return put


@pytest.fixture
def asked() -> Iterator[Callable[..., GpuSource]]:
    made: list[GpuSource] = []

    def source(code: str = "", **more: object) -> GpuSource:
        command = (sys.executable, "-c", code) if code else ()
        made.append(GpuSource((GPU,), CpuSource([], 1), command=command, **more))  # type: ignore[arg-type]
        return made[-1]

    yield source
    for each in made:
        each.close()


def until_some(source: GpuSource, name: Indicator, patience_s: float = within_s(60.0)) -> list[Timed]:
    """The child's samples, once it has some with this indicator."""
    until_s = time.monotonic() + patience_s
    while time.monotonic() < until_s:
        found = [each for each in source.samples() if name in each.values]
        if any(not each.values[name].missing for each in found):
            return found
        assert not source.problem, source.problem
        time.sleep(0.05)
    raise AssertionError(f"no {name} within {patience_s} s")


def means(source: GpuSource) -> dict[Indicator, Summary]:
    windows = Windows()
    for each in source.samples(within_s(60.0)):
        windows.add(each)
    return windows.summaries()


# --- What the process says --------------------------------------------------------------------------


def test_what_the_process_says_is_read_beside_the_hosts_own_values(asked: Callable[..., GpuSource]) -> None:
    first, then = answer(), answer({"SMACT": 0.2}, {"SMACT": 0.3})
    source = asked(SAYS.format(f"{first!r} if n == 0 else {then!r}"))
    assert means(source) == {}, "nothing to compare with"
    two = means(source)
    assert two[Indicator.SMACT].mean == pytest.approx(0.25) and two[Indicator.SMACT].source == "gpm"
    assert two[Indicator.FP32A].count == 0 and two[Indicator.FP32A].source == "gpm"
    assert "turns" in two[Indicator.FP32A].reason and two[Indicator.DRAMA].reason == "no such counter"
    assert two[Indicator.CPU].source == "cpu"
    assert set(two) == set(Indicator) and source.why == "gpm: it is"


def test_each_sample_keeps_the_time_that_it_is_about(asked: Callable[..., GpuSource]) -> None:
    source = asked(SAYS.format(repr(answer({"SMACT": 0.2}, {"SMACT": 0.4}, gauges=["SMACT"]))))
    samples = until_some(source, Indicator.SMACT)
    assert [(each.since_s, round(each.at_s, 3), each.period_s) for each in samples] == [
        (0, 0.1, 0.1),
        (1, 1.1, 0.1),
    ]
    assert all(each.values[Indicator.SMACT].gauge for each in samples)


IN_PIECES = """
import sys
text = {!r}
for _ in sys.stdin:
    for part in (text[:20], text[20:] + chr(10)):
        sys.stdout.write(part)
        sys.stdout.flush()
"""


def test_an_answer_may_come_in_pieces(asked: Callable[..., GpuSource]) -> None:
    source = asked(IN_PIECES.format(answer({"SMACT": 0.5})))
    assert [means(source)[Indicator.SMACT].mean for _ in range(20)] == [pytest.approx(0.5)] * 20


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (SAYS.format("""'{"problem": "no driver"}'"""), "no driver"),
        (SAYS.format("'what?'"), "asking the driver failed"),
        (SAYS.format(repr(answer({"SMACT": 0.5}, source="guessed"))), "asking the driver failed"),
        ("pass", "failed: exit 0"),
        ("import sys; [None for _ in sys.stdin]", "did not answer within"),
    ],
)
def test_a_process_that_says_nothing_sensible_is_left_behind_with_the_reason(
    code: str, why: str, asked: Callable[..., GpuSource]
) -> None:
    source = asked(code, **({"start_s_max": 0.3} if "did not answer" in why else {}))
    for _ in range(2):
        assert Indicator.SMACT not in means(source) and why in source.problem
    assert source._child.child is None


def test_asking_does_not_wait_for_a_process_that_starts() -> None:
    child = DeviceProcess([sys.executable, "-c", "import sys; [None for _ in sys.stdin]"])
    try:
        assert child.ask(0.0) is None and child.ask(0.0) is None and not child.has_answered
    finally:
        child.close()
    with pytest.raises(NoIndicators, match="closed"):
        child.ask(0.0)


# --- The process itself, and its choice -------------------------------------------------------------


def test_without_a_driver_every_source_is_named_with_its_reason(libraries: Callable[..., None]) -> None:
    libraries(nvml={"driver": False})
    found = explain([GPU])
    assert found.chosen is None
    assert re.findall(r"not (\w+): ", found.why) == ["gpm", "dcgm", "exporter", "nvml"]
    assert (
        "not gpm: NVML: the NVIDIA driver is not loaded" in found.why and "no DCGM bindings in" in found.why
    )
    assert "no profiler.exporter is set" in found.why


def test_gpm_comes_first_where_it_works(
    libraries: Callable[..., None], asked: Callable[..., GpuSource]
) -> None:
    libraries(nvml={"gpm": True}, dcgm={"gpus": {"0": GPU}, "values": {"1002": 0.7}})
    source = asked()
    samples = until_some(source, Indicator.SMACT)
    assert source.name == "gpm" and source.why.startswith("gpm: NVML's GPM counters, every 0.11 s")
    known = next(each for each in samples if Indicator.SMACT in each.values)
    assert known.values[Indicator.SMACT].value == 0.5 and known.period_s == 0.11
    assert known.at_s - known.since_s > 0.1


def test_gpm_that_may_not_be_read_gives_way_to_dcgm(
    libraries: Callable[..., None], asked: Callable[..., GpuSource]
) -> None:
    says = {"gpus": {"3": GPU}, "values": {"1002": 0.7, "1004": 0.1, "252": 1000, "250": 16000}}
    libraries(nvml={"gpm": "forbidden"}, dcgm={**says, "blanks": 2, "turns": [1004], "refuses": [1016]})
    source = asked()
    samples = until_some(source, Indicator.SMACT)
    assert source.name == "dcgm" and "not gpm: NVML: this user may not talk" in source.why
    reading = next(
        each.values[Indicator.SMACT] for each in samples if not each.values[Indicator.SMACT].missing
    )
    assert reading.value == 0.7 and reading.source == "dcgm" and reading.gauge
    assert samples[0].values[Indicator.FP16A].missing, "the engine took the basic fields only"


def test_an_engine_is_asked_for_what_its_gpus_can_measure(
    libraries: Callable[..., None], asked: Callable[..., GpuSource]
) -> None:
    """A GPU without NVLink: a group with one field too many is refused as a whole."""
    values = {"1002": 0.7, "1007": 0.2, "1012": 5.0}
    measures = [1001, 1002, 1003, 1004, 1005, 1007, 1009, 1010]
    libraries(
        nvml={}, dcgm={"gpus": {"0": GPU}, "values": values, "measures": measures, "refuses": [1011, 1012]}
    )
    source = asked(wanted=Wanted(source="dcgm"))
    values_of = until_some(source, Indicator.FP32A)[-1].values
    assert values_of[Indicator.SMACT].value == 0.7 and values_of[Indicator.NVLRX].missing


def test_what_a_library_prints_is_no_answer(
    libraries: Callable[..., None], asked: Callable[..., GpuSource]
) -> None:
    says = {"gpus": {"0": GPU}, "values": {"1002": 0.7}, "prints": "libdcgm: hello\n"}
    libraries(nvml={}, dcgm=says)
    assert until_some(asked(wanted=Wanted(source="dcgm")), Indicator.SMACT)
    assert explain([GPU], Wanted(source="dcgm")).chosen is not None


def test_counters_that_take_turns_are_counted_when_it_is_their_turn(
    libraries: Callable[..., None], asked: Callable[..., GpuSource]
) -> None:
    libraries(nvml={}, dcgm={"gpus": {"0": GPU}, "values": {"1002": 0.7, "1004": 0.1}, "turns": [1004]})
    source = asked(wanted=Wanted(source="dcgm"))
    seen: list[tuple[bool, bool]] = []
    while len(seen) < 6:
        values = [each.values for each in until_some(source, Indicator.SMACT)]
        seen += [(each[Indicator.SMACT].missing, each[Indicator.TENSO].missing) for each in values]
    smact, tenso = (sum(not blank[at] for blank in seen) for at in (0, 1))
    assert 0 < tenso < smact


def test_counters_that_stay_0_on_a_busy_gpu_are_no_measurement(libraries: Callable[..., None]) -> None:
    still = {"1001": 0.0, "1002": 0.0}
    libraries(nvml={}, dcgm={"gpus": {"0": GPU}, "values": {**still, "203": 100}})
    found = explain([GPU])
    assert found.chosen == "nvml"
    assert f"not dcgm: {STUCK}" in found.why
    libraries(nvml={}, dcgm={"gpus": {"0": GPU}, "values": {**still, "203": 10}})
    found = explain([GPU])
    assert found.chosen == "dcgm", "an idle GPU reads 0 as well"


def test_an_idle_moment_of_a_busy_gpu_is_measured() -> None:
    movement = Movement()
    seen = [movement.is_stuck(gract, 90.0, at_s) for at_s, gract in enumerate((0.0, 0.4, 0.0, 0.0, math.nan))]
    assert seen == [True, False, False, False, False]
    assert movement.is_stuck(0.0, 90.0, 1.0 + MOVED_S + 0.1) and not movement.is_stuck(0.0, math.nan, 99.0)


def test_dcgm_whose_values_stay_blank_gives_way_to_nvml(libraries: Callable[..., None]) -> None:
    libraries(nvml={"nvlink": 100}, dcgm={"gpus": {"0": GPU}, "values": {}})
    found = explain([GPU])
    assert found.chosen == "nvml"
    assert "stay blank" in found.why and "they came with Hopper" in found.why


def test_a_gpu_that_is_gone_does_not_cost_the_others_their_best_source(
    libraries: Callable[..., None],
) -> None:
    libraries(nvml={"gpm": True, "gone": ["GPU-2"]})
    found = explain([GPU, "GPU-2"])
    assert found.chosen == "gpm"
    assert "1 of 2 without: NVML: NVML error 6" in found.why


def test_a_source_of_all_devices_is_taken_before_a_better_one_of_some(libraries: Callable[..., None]) -> None:
    libraries(nvml={"gpm": [GPU]}, dcgm={"gpus": {"0": GPU, "1": "GPU-2"}, "values": {"1002": 0.5}})
    found = explain([GPU, "GPU-2"])
    assert found.chosen == "dcgm"
    assert "not gpm: not of all devices" in found.why and "GPU-2 has no GPM counters" in found.why


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (Wanted(source="dcgm", dcgm="10.0.0.1"), "write the path of the engine's Unix socket, or 127.0.0.1"),
        (Wanted(source="dcgm", dcgm="127.0.0.1:7777"), "connection invalid"),
        (Wanted(source="exporter", exporter="localhost:9400"), "write http://HOST:PORT/metrics"),
    ],
)
def test_what_cannot_be_reached_is_said(libraries: Callable[..., None], wanted: Wanted, why: str) -> None:
    libraries(nvml={}, dcgm={"gpus": {"0": GPU}})
    found = explain([GPU], wanted)
    assert found.chosen is None and why in found.why


def test_the_engine_is_also_found_by_its_unix_socket(libraries: Callable[..., None]) -> None:
    says = {"gpus": {"0": GPU}, "values": {"1002": 0.5}, "listens": ["/run/dcgm.sock"]}
    libraries(nvml={}, dcgm=says)
    found = explain([GPU], Wanted(source="dcgm", dcgm="/run/dcgm.sock"))
    assert found.why == "dcgm: DCGM's host engine, every 0.1 s"


def test_an_engine_that_hangs_does_not_take_anybody_with_it(libraries: Callable[..., None]) -> None:
    libraries(nvml={}, dcgm={"gpus": {"0": GPU}, "hangs": True})
    assert (
        "the driver did not answer within 0.5 s" in explain([GPU], Wanted(source="dcgm"), timeout_s=0.5).why
    )


def test_a_mig_instance_has_no_counters_and_no_source_is_tried(libraries: Callable[..., None]) -> None:
    libraries(nvml={"gpm": True})
    assert explain(["MIG-77aa"]).why == MIG_HAS_NONE


def test_a_host_without_gpus_needs_no_choice() -> None:
    assert "CPU slot" in explain([]).why
