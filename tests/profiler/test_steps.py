"""Step times: which reports count, and what a stranger's bytes may do (nothing)."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.wire import job
from cotenant.profiler.steps import LibraryHello, StepReport, StepSchedule, StepTimes, alternating, parse


def report(step: int, count: int, elapsed_s: float, s: int) -> StepReport:
    return StepReport(rank=0, step=step, count=count, elapsed_s=elapsed_s, accumulation_steps=s)


@given(st.permutations([1, 2, 4]), st.integers(1, 20), st.integers(1, 20))
def test_alternating_visits_every_s_in_turn(turns: list[int], first_steps: int, phases: int) -> None:
    schedule = alternating(turns, first_steps, phases)
    assert schedule.starts[0] == 0
    assert schedule.accumulation_steps == tuple(turns[i % 3] for i in range(phases))
    lengths = [b - a for a, b in zip(schedule.starts, schedule.starts[1:], strict=False)]
    assert lengths == sorted(lengths)
    assert all(length >= first_steps for length in lengths)


def test_a_schedule_reads_as_the_protocol_wants_it() -> None:
    assert str(alternating((2, 1), 6, 4)) == "0:2,6:1,12:2,24:1"


def test_a_schedule_must_start_at_step_0() -> None:
    with pytest.raises(ValueError, match="starts at step 0"):
        StepSchedule(starts=(3,), accumulation_steps=(1,))


CASES = {
    "steps of one phase count": (report(6, 3, 0.3, 2), True),
    "warm-up does not": (report(2, 1, 9.0, 2), False),
    "nor a report that began in it": (report(6, 5, 9.0, 2), False),
    "another s warms up as well": (report(12, 1, 9.0, 1), False),
    "nor does a report across two phases": (report(13, 6, 9.0, 1), False),
    "after it the steps count": (report(13, 1, 0.2, 1), True),
    "back at an s, one step settles it": (report(31, 1, 9.0, 2), False),
    "and the next one counts": (report(32, 1, 0.3, 2), True),
}


@pytest.mark.parametrize(("said", "counts"), CASES.values(), ids=CASES.keys())
def test_which_reports_count(said: StepReport, counts: bool) -> None:
    times = StepTimes(StepSchedule(starts=(0, 10, 30), accumulation_steps=(2, 1, 2)), warm_up_steps=2)
    assert times.add(said) is counts
    assert times.steps(said.accumulation_steps) == (said.count if counts else 0)


def test_a_step_time_is_the_median_over_reports() -> None:
    times = StepTimes(StepSchedule(starts=(0,), accumulation_steps=(1,)), warm_up_steps=0)
    assert math.isnan(times.step_s(1)), "nothing measured yet"
    for step, elapsed_s in ((3, 0.2), (5, 0.4), (7, 20.0)):
        times.add(report(step, 2, elapsed_s, 1))
    assert times.step_s(1) == pytest.approx(0.2)


def datagram(**changes: object) -> bytes:
    whole = {"v": 1, "m": job.STEP, "rank": 0, "step": 4, "count": 2, "elapsed_s": 0.5, "s": 2, "loss": None}
    return json.dumps(whole | changes).encode()


def test_a_step_report_is_understood() -> None:
    assert parse(datagram()) == report(4, 2, 0.5, 2)
    assert parse(datagram(later="field")) == report(4, 2, 0.5, 2)
    hello = datagram(m=job.HELLO, accumulates=True, resumable=True, world_size=1)
    assert parse(hello) == LibraryHello(rank=0, accumulates=True)


BAD = {
    "not JSON": b"\xff\x00",
    "not an object": b"[1]",
    "another version": datagram(v=2),
    "an unknown name": datagram(m="dance"),
    "no steps": datagram(count=0),
    "more steps than there were": datagram(count=9),
    "no time": datagram(elapsed_s=0.0),
    "a time without end": datagram(elapsed_s=math.inf),
    "not a number": datagram(elapsed_s=math.nan),
    "a word for a number": datagram(step="four"),
    "s of zero": datagram(s=0),
    "too long": datagram(padding="x" * job.DATAGRAM_BYTES_MAX),
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD.keys())
def test_a_bad_datagram_is_dropped(content: bytes) -> None:
    assert parse(content) is None


@given(st.binary(max_size=200))
def test_no_bytes_can_harm(content: bytes) -> None:
    assert parse(content) is None


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=5), st.lists, max_leaves=5))
def test_no_value_can_harm(value: object) -> None:
    for field in ("v", "m", "rank", "step", "count", "elapsed_s", "s"):
        parse(datagram(**{field: value}))
