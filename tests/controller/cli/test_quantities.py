"""Durations, sizes, indices: what people write, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.present.problem import Problem
from cotenant.controller.submission import quantities as q
from cotenant.controller.submission.settings import setting

DURATIONS = {
    "90s": 90, "10m": 600, "2h": 7200, "1d": 86_400, "1h30m": 5400, "1.5h": 5400,
    "90": 5400, "1:30": 90, "2:00:00": 7200, "1-12": 129_600, "1-0:30": 88_200, "0-00:00:05": 5,
}  # fmt: skip


@pytest.mark.parametrize(("text", "seconds"), DURATIONS.items())
def test_durations(text: str, seconds: float) -> None:
    assert q.duration_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "x", "-5", "1:2:3:4", "5w", "0", "0s", "1e3", "inf", "nan", "400d", "1--2", "٣", "٣m"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        q.duration_s(text)


@given(st.integers(0, 30), st.integers(0, 23), st.integers(0, 59), st.integers(1, 59))
def test_slurms_longest_form_adds_up(days: int, hours: int, minutes: int, seconds: int) -> None:
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    assert q.duration_s(f"{days}-{hours:02d}:{minutes:02d}:{seconds:02d}") == total


SLURMS = {"30": 1800, "5:00": 300, "2:00:00": 7200, "1-00:00:00": 86_400, "1-12": 129_600}


@pytest.mark.parametrize(("text", "seconds"), {**SLURMS, "UNLIMITED": None, "Partition_Limit": None}.items())
def test_times_of_slurms_programs(text: str, seconds: float | None) -> None:
    assert q.slurm_duration_s(text) == seconds


def test_a_time_limit_may_be_none() -> None:
    assert q.time_limit_s("unlimited") is None
    assert q.time_limit_s("INFINITE") is None
    assert q.time_limit_s("10") == 600


SIZES = {
    "8G": 8192,
    "512M": 512,
    "512": 512,
    "1.5GiB": 1536,
    "2T": 2_097_152,
    "1024K": 1,
    "1K": 1,
    "8gb": 8192,
}


@pytest.mark.parametrize(("text", "mib"), SIZES.items())
def test_sizes(text: str, mib: int) -> None:
    assert q.size_mib(text) == mib


@pytest.mark.parametrize("text", ["", "G", "-1G", "0", "8X", "8 G B", "1e9", "٣G", "8\u212a"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        q.size_mib(text)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "two", "", "99999999999999999999", "0x10", "٣", "²"])
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        q.count(text)


@pytest.mark.parametrize("text", ["٣", "²", "1_0", "high", ""])
def test_what_is_no_priority(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be a whole number"):
        q.priority(text)


ARRAYS = {"0-3": (0, 1, 2, 3), "7": (7,), "5,1,3": (1, 3, 5), "0-10:5": (0, 5, 10), "1-2,2-3": (1, 2, 3)}


@pytest.mark.parametrize(("text", "indices"), ARRAYS.items())
def test_arrays(text: str, indices: tuple[int, ...]) -> None:
    assert q.array_tasks(text) == (indices, 0)
    assert q.array_tasks(f"{text}%3") == (indices, 3)


@pytest.mark.parametrize(
    "text",
    ["", "a", "3-1", "0-9:0", "1,,2", "0-9%", "0-9%0", "0-9%x", "0-100000", "0-99999999999", "1-1001"],
)
def test_what_is_no_array(text: str) -> None:
    with pytest.raises(ValueError, match=r"must|empty|may have"):
        q.array_tasks(text)


@pytest.mark.parametrize(("text", "value"), [("gpus=4", 4), ("gpus=0.5", 0.5), ("time=60", 3600.0)])
def test_what_set_says_is_a_value_that_can_be_set(text: str, value: float) -> None:
    assert setting(text) == (text.partition("=")[0], value)


def test_a_range_of_gpus_cannot_be_set_later() -> None:
    with pytest.raises(Problem, match="gpus cannot be set later"):
        setting("gpus=1-4")
