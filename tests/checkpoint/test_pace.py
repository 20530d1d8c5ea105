"""A rank waits for its part of the time, and for nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.checkpoint.talk.pace import FORMAT, RankPace, pace_of
from cotenant.controller.wire import PACE_FILE as NAME
from cotenant.controller.wire import PACE_KEPT_S as KEPT_S


class Clock:
    """Time that passes only while somebody sleeps, or works."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.then: list[tuple[float, Path, float]] = []
        """(when, file, the pace that is written then)."""

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        for when_s, path, pace in list(self.then):
            if self.now_s >= when_s:
                write(path, pace, self.now_s)
                self.then.remove((when_s, path, pace))


def write(path: Path, pace: float, now_s: float, kept_s: float = 3600.0) -> None:
    with open(path, "r+b" if path.exists() else "wb") as file:  # In place: others have it mapped.
        file.write(FORMAT.pack(pace, now_s + kept_s))


def rank(path: Path, clock: Clock) -> RankPace:
    return RankPace(path, clock, clock.sleep)


@given(pace=st.floats(0.1, 1.0), work_s=st.lists(st.floats(0.001, 0.1), min_size=1, max_size=10))
def test_it_works_for_that_part_of_the_time(
    tmp_path_factory: pytest.TempPathFactory, pace: float, work_s: list[float]
) -> None:
    clock, path = Clock(), tmp_path_factory.mktemp("pace") / NAME
    write(path, pace, clock.now_s)
    waits, began_s = rank(path, clock), clock.now_s
    for seconds in work_s:
        clock.now_s += seconds
        waits.wait()
    assert sum(work_s) / (clock.now_s - began_s) == pytest.approx(pace, rel=1e-3)


def test_without_a_file_nobody_waits(tmp_path: Path) -> None:
    clock = Clock()
    for waits in (rank(tmp_path / "none", clock), RankPace(None, clock, clock.sleep), pace_of({}, "X")):
        clock.now_s += 1.0
        waits.wait()
        assert waits.waited_s == 0.0
    assert clock.now_s == 103.0


def test_a_rest_ends_when_it_is_said_to(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / NAME
    write(path, 0.0, clock.now_s)
    waits = rank(path, clock)
    clock.then.append((clock.now_s + 2.0, path, 1.0))
    waits.wait()
    assert waits.waited_s == pytest.approx(2.0, abs=0.01)


def test_a_pace_that_nobody_renews_counts_no_more(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / NAME
    write(path, 0.0, clock.now_s, kept_s=KEPT_S)
    waits = rank(path, clock)
    waits.wait()
    assert waits.waited_s == pytest.approx(KEPT_S, abs=0.01), "whoever asked for the rest is gone"


@pytest.mark.parametrize("data", [b"", b"x", b"\xff" * 16])
def test_a_file_that_makes_no_sense_harms_nobody(tmp_path: Path, data: bytes) -> None:
    clock, path = Clock(), tmp_path / NAME
    path.write_bytes(data)
    rank(path, clock).wait()
    assert clock.now_s == 100.0
