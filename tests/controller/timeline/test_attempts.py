"""From attempts to a timeline: phases on devices, loads for nothing, waits, whom a preemption was for, and
nothing outside the window.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
from msgspec import structs

from cotenant.controller.timeline import (
    AttemptTimes,
    DeviceRow,
    JobTimes,
    Timeline,
    TimeWindow,
    attempt_times,
    chrome_trace,
    render,
    timeline_of,
)
from cotenant.controller.timeline.layout import (
    DEVICES_MAX,
    SEGMENTS_MAX,
    WAIT_LANES_MAX,
    job_colours,
    lay_out,
)
from tests.controller.cli import replies

CPU0, CPU1 = "h/cpu0", "h/cpu1"


def job(
    name: str, submitted_s: float, known_to_s: float, *attempts: AttemptTimes, ended: bool = True
) -> JobTimes:
    return JobTimes(name, f"train-{name}", submitted_s, known_to_s, ended, attempts)


def attempt(
    number: int, at: tuple[float, float | None, float | None, float | None], *devices: str, **more: Any
) -> AttemptTimes:
    return AttemptTimes(number, devices or (CPU0,), *at, **more)


LONG = job(
    "1",
    10.0,
    40.0,
    attempt(1, (10.0, 12.0, 20.0, 22.0), CPU0, CPU1, preempted=True),
    attempt(2, (24.0, None, 26.0, 27.0), CPU0, CPU1, preempted=True, resumed_from_step=57),
    attempt(3, (30.0, 33.0, None, 40.0), CPU0, CPU1, resumed_from_step=57, accumulation_steps=2),
)
SHORT = job("2", 20.0, 24.0, attempt(1, (22.0, 22.5, None, 24.0)))
NEXT = job("3", 26.0, 30.0, attempt(1, (27.0, 28.0, None, 30.0)))


def drawn(*jobs: JobTimes, **more: Any) -> Timeline:
    rows = [DeviceRow(device=CPU0), DeviceRow(device=CPU1)]
    return timeline_of(jobs, rows, more.pop("policies", [(0.0, "srtf")]), title="t", **more)


def test_a_load_that_ended_in_a_preemption_was_for_nothing() -> None:
    second = [
        (s.phase, s.start_s, s.end_s)
        for s in drawn(LONG, SHORT, NEXT).segments
        if (s.job, s.attempt, s.device) == ("1", 2, CPU1)
    ]
    assert second == [("futile", 14.0, 16.0), ("checkpointing", 16.0, 17.0)]


def test_a_preemption_says_for_whom() -> None:
    found = [(p.at_s, p.victim, p.newcomer) for p in drawn(LONG, SHORT, NEXT).preemptions]
    assert found == [(10.0, "1", "2"), (16.0, "1", "3")]


def left(cause: str, reason: str = "") -> AttemptTimes:
    """As the controller tells it."""
    view = structs.replace(replies.attempt(), cause=cause, reason=reason, outcome="preempted")
    (told,) = attempt_times([view])
    return attempt(1, (10.0, 12.0, 20.0, 22.0), preempted=told.preempted, why=told.why)


AGAIN = attempt(2, (25.0, 26.0, None, 40.0))


@pytest.mark.parametrize(
    ("attempts", "others", "said"),
    [
        (
            (left("by-hand", "preempted by ann; saved and stopped at step 75"), AGAIN),
            (),
            "train-1 saves: preempted by ann, by hand",
        ),
        ((left("by-hand", "preempted by ann"), AGAIN), (SHORT,), "train-1 saves: preempted by ann, by hand"),
        ((left("preempted"), AGAIN), (SHORT,), "train-1 saves and makes room for train-2"),
        ((left("parted", "parted from 7"), AGAIN), (), "train-1 saves: parted from 7"),
        ((left(""), AGAIN), (), "train-1 saves and leaves"),
        ((left("preempted"),), (), "train-1 saves and leaves"),
    ],
)
def test_nobody_makes_room_for_itself(
    attempts: Sequence[AttemptTimes], others: Sequence[JobTimes], said: str
) -> None:
    seen = drawn(job("1", 10.0, 40.0, *attempts), *others)
    notes = [note.content for row in lay_out(seen).rows for _, note, _ in row.markers if note]
    assert notes == [said]
    names = [event["name"] for event in chrome_trace(seen)["traceEvents"]]
    assert said.replace("train-1", "1 train-1").replace("train-2", "2 train-2") in names


def test_jobs_of_one_name_are_told_apart() -> None:
    first = JobTimes("1", "sweep", 10.0, 40.0, True, (left("preempted"),))
    second = JobTimes("2", "sweep", 20.0, 40.0, True, (attempt(1, (23.0, 24.0, None, 40.0)),))
    notes = [note.content for row in lay_out(drawn(first, second)).rows for _, note, _ in row.markers if note]
    assert notes == ["job 1 sweep saves and makes room for job 2 sweep"]


def test_a_window_shows_what_lies_in_it_and_nothing_else() -> None:
    policies = [(5.0, "fifo"), (18.0, "srtf"), (23.0, "castor"), (90.0, "sjf")]
    seen = drawn(LONG, SHORT, NEXT, window=TimeWindow(20.0, 25.0), policies=policies)
    assert {(s.job, s.attempt) for s in seen.segments} == {("1", 1), ("1", 2), ("2", 1)}
    assert all(0.0 <= s.start_s < s.end_s <= 5.0 for s in seen.segments)
    assert [(w.job, w.start_s, w.end_s) for w in seen.waits] == [("1", 2.0, 4.0), ("2", 0.0, 2.0)]
    assert [(p.at_s, p.policy) for p in seen.policies] == [(0.0, "srtf"), (3.0, "castor")]
    assert (seen.end_s, seen.local_zero_s) == (5.0, None)


def test_who_has_not_ended_waits_until_now() -> None:
    waiting = job("9", 3.0, 50.0, ended=False)
    assert [(w.start_s, w.end_s) for w in drawn(waiting).waits] == [(0.0, 47.0)]


def test_a_device_that_is_gone_has_a_row() -> None:
    gone = job("4", 0.0, 9.0, attempt(1, (1.0, 2.0, None, 9.0), "old/gpu0"))
    assert [row.device for row in drawn(gone).devices] == [CPU0, CPU1, "old/gpu0"]


def test_too_much_is_left_out_and_counted() -> None:
    many = [
        job(str(n), 0.0, 9.0 + n, attempt(1, (1.0 + n, 1.4 + n, None, 2.0 + n), f"h/gpu{n % 100}"))
        for n in range(2 * SEGMENTS_MAX)
    ]
    layout = lay_out(timeline_of(many, [], [], title="t"))
    bars = sum(bar.look != "waiting" for row in layout.rows for bar in row.bars)
    assert 0 < bars <= SEGMENTS_MAX
    assert len(layout.rows) == DEVICES_MAX + 1
    assert f"{100 - DEVICES_MAX} more devices" in layout.left_out
    waiting = drawn(*(job(str(n), 0.0, 50.0, ended=False) for n in range(10_000)))
    layout = lay_out(waiting)
    assert sum(len(row.bars) for row in layout.rows) == WAIT_LANES_MAX
    more = f"{10_000 - WAIT_LANES_MAX:,} more that wait at the same time"
    assert layout.left_out == f"not in the picture: {more}"
    assert layout.left_out in render(waiting)


def test_an_axis_with_the_time_of_day_stands_at_round_times() -> None:
    nine = 1_763_629_200.0  # 2025-11-20T09:00:00Z
    seen = drawn(LONG, window=TimeWindow(nine - 90.0, nine + 3600.0), local_utc_offset_s=7200.0)
    assert all(f">{hour}<" in render(seen) for hour in ("11:00", "11:30", "12:00"))


def test_jobs_that_meet_on_a_device_have_different_colours() -> None:
    """Also where there are more jobs than colours: 0 and 10 would have the same in turn."""
    first = job("0", 0.0, 9.0, attempt(1, (0.0, 0.5, None, 9.0)))
    others = [
        job(str(n), 10.0, 20.0 + n, attempt(1, (10.0 + n, 10.5 + n, None, 11.0 + n), CPU1))
        for n in range(1, 10)
    ]
    late = job("10", 0.0, 30.0, attempt(1, (5.0, 6.0, None, 30.0)))
    colours = job_colours(drawn(first, *others, late))
    assert len({colours[str(n)] for n in range(10)}) == 10
    assert colours["10"] != colours["0"]


# --- For Perfetto ------------------------------------------------------------------------------------


def test_the_trace_holds_every_phase_once_and_nothing_overlaps_in_a_lane() -> None:
    timeline = drawn(LONG, SHORT, NEXT)
    document = json.loads(json.dumps(chrome_trace(timeline)))
    slices = [e for e in document["traceEvents"] if e["ph"] == "X"]
    assert {e["ph"] for e in document["traceEvents"]} == {"X", "M", "i"}
    assert all(isinstance(e["ts"], int) and e["dur"] >= 0 for e in slices)
    phases = [e for e in slices if e["cat"] == "phase"]
    assert sum(e["dur"] for e in phases) == round(1e6 * sum(s.end_s - s.start_s for s in timeline.segments))
    for category in ("phase", "attempt", "wait"):
        for a, b in combinations([e for e in slices if e["cat"] == category], 2):
            apart = a["ts"] + a["dur"] <= b["ts"] or b["ts"] + b["dur"] <= a["ts"]
            assert apart or (a["pid"], a["tid"]) != (b["pid"], b["tid"])
    for phase in phases:
        assert any(
            (a["pid"], a["tid"]) == (phase["pid"], phase["tid"])
            and a["ts"] <= phase["ts"]
            and phase["ts"] + phase["dur"] <= a["ts"] + a["dur"]
            for a in slices
            if a["cat"] == "attempt"
        ), "a phase lies in its attempt"


def test_devices_are_processes_and_two_tenants_are_two_threads() -> None:
    beside = job("5", 0.0, 30.0, attempt(1, (11.0, 12.0, None, 19.0)))
    events = chrome_trace(drawn(LONG, beside))["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert set(names.values()) == {"policy", "waiting", CPU0, CPU1}
    threads = {(names[e["pid"]], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    assert threads == {(CPU0, "tenant 1"), (CPU0, "tenant 2"), (CPU1, "tenant 1")}
    assert {e["args"]["beside"] for e in events if e.get("cat") == "phase"} == {None, "1", "5"}
    said = [e["name"] for e in events if e.get("cat") == "preemption"]
    assert said[0] == "1 train-1 makes room for 5 train-5" or len(said) == 2
