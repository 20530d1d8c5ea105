"""Tables of hourly demand: what is read, and what is said of one that cannot be."""

from __future__ import annotations

import gzip
import math
from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.papers.gfs.forecast import Demand
from cotenant.controller.sim import TraceProblem
from experiments.gfs.training.demand_file import read


def text(demand: Demand) -> list[list[float | None]]:
    return [[None if math.isnan(v) else v for v in row] for row in demand.values.tolist()]


def test_gaps_other_columns_and_any_order() -> None:
    data = b"hour,gpus_active_a,jobs,gpus_active_b,gpus_active_requested\n5,1,9,,3\n2,4,9,7.5,11\n3,,9,1,1\n"
    found = read(data, "d.csv")
    assert found.demand.names == ("a", "b")
    assert found.demand.first_hour == 2
    assert text(found.demand) == [[4.0, None, None, 1.0], [7.5, 1.0, None, None]]
    assert (found.ignored, found.missing) == (("jobs", "gpus_active_requested"), 3)
    assert not found.demand.dated
    assert text(read(gzip.compress(data), "d.csv.gz").demand) == text(found.demand)


def test_a_total_alone_is_a_series() -> None:
    assert read(b"hour,gpus_active_requested\n0,1\n", "d.csv").demand.names == ("requested",)


def test_columns_can_be_named() -> None:
    found = read(b"hour,used,gpus_active_a\n0,1,5\n1,2,6\n", "d.csv", columns=("used",))
    assert (found.demand.names, text(found.demand)) == (("used",), [[1.0, 2.0]])


@pytest.mark.parametrize(
    "stamps",
    [("2024-10-01T00:00", "2024-10-01T02:00"), ("2024-10-01T08:00+08:00", "2024-10-01 10:00:00+08:00")],
)
def test_times_have_dates(stamps: tuple[str, str]) -> None:
    found = read(f"time,gpus_active_a\n{stamps[0]},1\n{stamps[1]},2\n".encode(), "d.csv").demand
    assert (found.dated, found.first_hour, text(found)) == (True, 19_997 * 24, [[1.0, None, 2.0]])


def test_a_start_gives_dates_to_hours() -> None:
    found = read(b"hour,gpus_active_a\n3,1\n4,2\n", "d.csv", start=date(2024, 10, 1)).demand
    assert (found.dated, found.first_hour) == (True, 19_997 * 24 + 3)


BAD = {
    "empty": ("", "is empty"),
    "no hour": ("day,gpus_active_a\n1,2\n", "has no column hour or time"),
    "no demand": ("hour,gpus\n1,2\n", "has no column gpus_active_NAME"),
    "no rows": ("hour,gpus_active_a\n", "has no rows"),
    "negative": ("hour,gpus_active_a\n0,1\n1,-4\n", "d.csv:3: column gpus_active_a: '-4' is negative"),
    "words": ("hour,gpus_active_a\n0,many\n", "d.csv:2: column gpus_active_a: 'many' is not a number"),
    "nothing at all": ("hour,gpus_active_a,gpus_active_b\n0,,1\n", "gpus_active_a: holds no value at all"),
    "half an hour": ("hour,gpus_active_a\n0.5,1\n", "d.csv:2: column hour: '0.5' is no whole hour"),
    "no hour given": ("hour,gpus_active_a\n,1\n", "'' is no whole hour"),
    "twice": ("hour,gpus_active_a\n7,1\n7,2\n", "d.csv:3: column hour: hour '7' is there twice, first in"),
    "seconds": ("hour,gpus_active_a\n0,1\n99999999,1\n", "spans 100000000 hours"),
    "a time off the hour": ("time,gpus_active_a\n2024-10-01T00:30,1\n", "is not a time on the hour"),
    "no time": ("time,gpus_active_a\nyesterday,1\n", "'yesterday' is not a time on the hour"),
    "cut off": ("hour,gpus_active_a\n0,1\n1\n", "d.csv:3: has 1 fields, the header has 2"),
    "two alike": ("hour,gpus_active_a,a,gpus_active_total\n0,1,1,2\n", "named alike, or total"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "says"), BAD.values(), ids=BAD.keys())
def test_a_bad_file_is_told_where_and_what(data: str, says: str) -> None:
    with pytest.raises(TraceProblem) as caught:
        read(data.encode(), "d.csv")
    assert says in caught.value.message


def test_an_unknown_column_is_told_with_what_was_meant() -> None:
    with pytest.raises(TraceProblem) as caught:
        read(b"hour,gpus_active_vision\n0,1\n", "d.csv", columns=("gpus_active_vison",))
    assert caught.value.hint == "did you mean gpus_active_vision?"


@settings(max_examples=150)
@given(
    st.binary(max_size=60),
    st.sampled_from((b"", b"hour,gpus_active_a\n0,1\n", b"time,gpus_active_a\n", b"\x1f\x8b")),
)
def test_whatever_the_bytes_nothing_else_is_raised(data: bytes, head: bytes) -> None:
    try:
        found = read(head + data, "d.csv")
    except TraceProblem:
        return
    assert found.demand.hours > 0
