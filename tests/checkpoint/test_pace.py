"""A rank waits for its part of the time, and for its place in a co-tenant's step, and for nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.checkpoint.talk.pace import BEAT, FORMAT, LATE_STEPS, Allowance, RankPace
from cotenant.checkpoint.talk.protocol import BEAT_BESIDE_FILE, BEAT_FILE, PACE_FILE, PACE_KEPT_S

STEP_S = 0.1


class Clock:
    """Time that passes only while somebody sleeps, or works."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.then: list[tuple[float, Callable[[], None]]] = []
        """What happens, and when."""

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.then and self.then[0][0] <= until_s:
            self.now_s, happen = self.then.pop(0)
            happen()
        self.now_s = until_s


def put(path: Path, data: bytes) -> None:
    with open(path, "r+b" if path.exists() else "wb") as file:  # In place: others have it mapped.
        file.write(data)


def write(folder: Path, pace: Allowance, now_s: float, kept_s: float = 3600.0) -> None:
    data = FORMAT.pack(pace.share, now_s + kept_s, pace.window, pace.phase, pace.step_s)
    put(folder / PACE_FILE, data)


def rank(folder: Path | None, clock: Clock) -> RankPace:
    return RankPace(folder, clock, clock.sleep)


@given(pace=st.floats(0.1, 1.0), work_s=st.lists(st.floats(0.001, 0.1), min_size=1, max_size=10))
def test_it_works_for_that_part_of_the_time(
    tmp_path_factory: pytest.TempPathFactory, pace: float, work_s: list[float]
) -> None:
    clock, folder = Clock(), tmp_path_factory.mktemp("pace")
    write(folder, Allowance(pace), clock.now_s)
    waits, began_s = rank(folder, clock), clock.now_s
    for seconds in work_s:
        clock.now_s += seconds
        waits.wait()
    assert sum(work_s) / (clock.now_s - began_s) == pytest.approx(pace, rel=1e-3)


def test_without_a_file_nobody_waits(tmp_path: Path) -> None:
    clock = Clock()
    for waits in (rank(tmp_path / "none", clock), rank(None, clock)):
        waits.speak_for_host()
        clock.now_s += 1.0
        waits.end_step()
        assert waits.waited_s == 0.0
    assert clock.now_s == 102.0


def test_a_rest_ends_when_it_is_said_to(tmp_path: Path) -> None:
    clock = Clock()
    write(tmp_path, Allowance(0.0), clock.now_s)
    waits = rank(tmp_path, clock)
    clock.then.append((clock.now_s + 2.0, lambda: write(tmp_path, Allowance(), clock.now_s)))
    waits.wait()
    assert waits.waited_s == pytest.approx(2.0, abs=0.01)


def test_a_pace_that_nobody_renews_counts_no_more(tmp_path: Path) -> None:
    clock = Clock()
    write(tmp_path, Allowance(0.0), clock.now_s, kept_s=PACE_KEPT_S)
    waits = rank(tmp_path, clock)
    waits.wait()
    assert waits.waited_s == pytest.approx(PACE_KEPT_S, abs=0.01), "whoever asked for the rest is gone"


@pytest.mark.parametrize("data", [b"", b"x", b"\xff" * FORMAT.size])
def test_a_file_that_makes_no_sense_harms_nobody(tmp_path: Path, data: bytes) -> None:
    clock = Clock()
    (tmp_path / PACE_FILE).write_bytes(data)
    rank(tmp_path, clock).wait()
    assert clock.now_s == 100.0


# --- A place in the co-tenant's step ---------------------------------------------------------------


class CoTenant:
    """Ends a step every `STEP_S` of the clock's time, and says so in its file."""

    def __init__(self, folder: Path, clock: Clock, steps: int) -> None:
        folder.mkdir(exist_ok=True)
        (folder / BEAT_FILE).write_bytes(BEAT.pack(0.0))
        self.pace, self.ended_s = rank(folder, clock), [clock.now_s + STEP_S * each for each in range(steps)]
        self.pace.speak_for_host()
        clock.then += [(ended_s, lambda: self.pace.end_step()) for ended_s in self.ended_s]


@given(
    work_s=st.lists(st.floats(0.001, 0.25), min_size=1, max_size=8),
    phase=st.sampled_from([0.0, 0.25, 0.5, 0.75]),
    window=st.floats(0.1, 0.9),
)
def test_a_micro_batch_begins_only_in_its_part_of_the_co_tenants_step(
    tmp_path_factory: pytest.TempPathFactory, work_s: list[float], phase: float, window: float
) -> None:
    clock, folder = Clock(), tmp_path_factory.mktemp("pace")
    beside = CoTenant(folder / "beside", clock, 80)
    (folder / BEAT_BESIDE_FILE).hardlink_to(folder / "beside" / BEAT_FILE)
    write(folder, Allowance(1.0, window, phase, STEP_S), clock.now_s)
    clock.sleep(0.0)
    waits = rank(folder, clock)
    for seconds in work_s:
        clock.sleep(seconds)
        waits.wait()
        since_s = clock.now_s - max(each for each in beside.ended_s if each <= clock.now_s)
        place = (since_s / STEP_S - phase) % 1.0
        assert min(place, abs(place - 1.0)) <= window + 0.06, (since_s, phase, window)
        assert waits.waited_s <= len(work_s) * 1.1 * STEP_S, "it comes at least once a step"


def test_a_co_tenant_that_makes_no_steps_is_not_waited_for(tmp_path: Path) -> None:
    clock = Clock()
    CoTenant(tmp_path / "beside", clock, 1)
    write(tmp_path, Allowance(1.0, 0.1, 0.0, STEP_S), clock.now_s)
    clock.sleep(0.0)
    waits = rank(tmp_path, clock)
    clock.sleep(0.05)
    waits.wait()
    assert waits.waited_s == 0.0, "no file says when its steps end"
    (tmp_path / BEAT_BESIDE_FILE).hardlink_to(tmp_path / "beside" / BEAT_FILE)
    waits.wait()
    assert waits.waited_s == pytest.approx((LATE_STEPS - 0.5) * STEP_S, abs=0.01), "it validates, say"
    waits.wait()
    assert waits.waited_s == pytest.approx((LATE_STEPS - 0.5) * STEP_S, abs=0.01)


def test_a_co_tenant_that_says_it_ends_a_step_all_the_time_holds_nobody_for_ever(tmp_path: Path) -> None:
    clock = Clock()
    beside = CoTenant(tmp_path / "beside", clock, 1)
    (tmp_path / BEAT_BESIDE_FILE).hardlink_to(tmp_path / "beside" / BEAT_FILE)
    write(tmp_path, Allowance(1.0, 0.1, 0.5, STEP_S), clock.now_s)
    clock.then += [(clock.now_s + 0.001 * each, beside.pace.end_step) for each in range(5_000)]
    clock.sleep(0.0)
    waits = rank(tmp_path, clock)
    waits.wait()
    assert waits.waited_s == pytest.approx(LATE_STEPS * STEP_S, abs=0.01)


def test_a_file_that_a_co_tenant_cuts_short_or_replaces_harms_nobody(tmp_path: Path) -> None:
    """Its owner can: mapped, it would end this process with a bus error."""
    clock = Clock()
    CoTenant(tmp_path / "beside", clock, 1)
    (tmp_path / BEAT_BESIDE_FILE).hardlink_to(tmp_path / "beside" / BEAT_FILE)
    write(tmp_path, Allowance(1.0, 0.1, 0.0, STEP_S), clock.now_s)
    clock.sleep(0.0)
    waits = rank(tmp_path, clock)
    waits.wait()
    os.truncate(tmp_path / "beside" / BEAT_FILE, 0)
    waits.wait()
    (tmp_path / BEAT_BESIDE_FILE).unlink()
    os.mkfifo(tmp_path / BEAT_BESIDE_FILE)
    waits.wait()
    assert waits.waited_s == 0.0


def test_another_co_tenants_steps_are_found_when_it_takes_the_place_of_the_first(tmp_path: Path) -> None:
    clock = Clock()
    CoTenant(tmp_path / "first", clock, 1)
    (tmp_path / BEAT_BESIDE_FILE).hardlink_to(tmp_path / "first" / BEAT_FILE)
    write(tmp_path, Allowance(1.0, 0.1, 0.0, STEP_S), clock.now_s)
    clock.sleep(0.0)
    waits = rank(tmp_path, clock)
    waits.wait()
    clock.sleep(1.0)
    CoTenant(tmp_path / "second", clock, 20)
    (tmp_path / BEAT_BESIDE_FILE).unlink()
    (tmp_path / BEAT_BESIDE_FILE).hardlink_to(tmp_path / "second" / BEAT_FILE)
    clock.sleep(0.05)
    began_s = clock.now_s
    waits.wait()
    assert clock.now_s - began_s == pytest.approx(0.05, abs=0.002)


def test_a_step_that_is_late_is_waited_for_and_a_place_in_the_step_before_is_not_lost() -> None:
    pace = Allowance(1.0, 0.2, 0.0, STEP_S)
    assert pace.opens_in_s(0.01) == 0.0
    assert pace.opens_in_s(0.05) == pytest.approx(0.05)
    assert 0.0 < pace.opens_in_s(1.3 * STEP_S) < 0.001, "until it ends"
    late = Allowance(1.0, 0.5, 0.75, STEP_S)
    assert late.opens_in_s(0.02) == 0.0, "the window began at the end of the step before"
    assert late.opens_in_s(0.03) == pytest.approx(0.045)
    assert pace.opens_in_s(inf) == 0.0 and Allowance(1.0, 0.2, 0.0, 0.0).opens_in_s(0.05) == 0.0


# --- What is told of steps -------------------------------------------------------------------------


def test_the_longest_step_is_told_without_waits_for_others_and_without_what_was_no_step(
    tmp_path: Path,
) -> None:
    clock = Clock()
    write(tmp_path, Allowance(0.5), clock.now_s)
    steps = rank(tmp_path, clock)
    for worked_s in (1.0, 0.3, 0.4):  # The first end of a step begins the second.
        clock.sleep(worked_s)
        steps.end_step()
    waited_s, longest_s = steps.take()
    assert longest_s == pytest.approx(0.4) and waited_s == pytest.approx(1.7)
    clock.sleep(5.0)
    steps.leave_out()  # A save.
    clock.sleep(0.2)
    steps.end_step()
    assert steps.take()[1] == 0.0
