"""Pipe directories are short, stable and different for each device."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.mps.environment import (
    PIPE_DIRECTORY_BYTES_MAX,
    check_directory,
    log_directory,
    pipe_directory,
)

UUID = "GPU-11111111-2222-3333-4444-555555555555"
OTHER = "GPU-11111111-2222-3333-4444-555555555556"


def test_the_default_places_are_far_from_the_limit() -> None:
    for runtime in ("/run/cotenant", "/run/user/4294967294/cotenant"):
        assert len(bytes(pipe_directory(PurePosixPath(runtime), UUID))) < PIPE_DIRECTORY_BYTES_MAX // 2 + 8


def test_a_device_keeps_its_directory_and_shares_it_with_none() -> None:
    runtime = PurePosixPath("/run/cotenant")
    assert pipe_directory(runtime, UUID) == pipe_directory(runtime, UUID)
    assert pipe_directory(runtime, UUID) != pipe_directory(runtime, OTHER)


def test_logs_may_live_deeper() -> None:
    deep = PurePosixPath("/", "x" * 200)
    assert log_directory(deep, UUID).is_relative_to(deep)


def test_the_longest_directory_that_works_is_87_bytes() -> None:
    longest = PurePosixPath("/" + "x" * 86)
    assert check_directory(longest) == longest
    with pytest.raises(ValueError, match=r"88 bytes.*at most 87.*mps.runtime_dir to a shorter folder"):
        check_directory(PurePosixPath("/" + "x" * 87))


def test_bytes_count_not_letters() -> None:
    with pytest.raises(ValueError, match="at most 87"):
        check_directory(PurePosixPath("/" + "ü" * 44))


def test_a_relative_directory_is_refused() -> None:
    with pytest.raises(ValueError, match="absolute"):
        pipe_directory(PurePosixPath("run"), UUID)


@given(st.text("abc/.", min_size=1, max_size=120))
def test_no_directory_beyond_the_limit_is_ever_returned(text: str) -> None:
    runtime = PurePosixPath("/" + text)
    try:
        directory = pipe_directory(runtime, UUID)
    except ValueError:
        assert len(bytes(runtime)) > PIPE_DIRECTORY_BYTES_MAX - len("/mps/12345678")
    else:
        assert len(bytes(directory)) <= PIPE_DIRECTORY_BYTES_MAX
