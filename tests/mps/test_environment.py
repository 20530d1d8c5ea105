"""A client's environment says exactly what was planned, in the only format the daemon honours."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.mps.environment import (
    MemoryLimit,
    client_environment,
    drop_mps_variables,
    percentage_text,
)

PIPE = PurePosixPath("/run/cotenant/mps/0a1b2c3d")
UUID = "GPU-11111111-2222-3333-4444-555555555555"
OTHER = "GPU-66666666-2222-3333-4444-555555555555"


def test_without_limits_only_the_pipe_directory_is_set() -> None:
    assert client_environment(PIPE) == {"CUDA_MPS_PIPE_DIRECTORY": str(PIPE)}


def test_all_limits() -> None:
    memory = (
        MemoryLimit(device_uuid=UUID, limit_mib=12288),
        MemoryLimit(device_uuid=OTHER, limit_mib=1500),
    )
    assert client_environment(PIPE, memory, 50) == {
        "CUDA_MPS_PIPE_DIRECTORY": str(PIPE),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=12288M,1=1500M",
    }


def test_a_device_that_a_daemon_counts_otherwise_is_limited_under_both_numbers() -> None:
    def limits(*numbers: int) -> str:
        memory = tuple(
            MemoryLimit(device_uuid=uuid, limit_mib=mib, daemon_number=number)
            for uuid, mib, number in zip((UUID, OTHER), (200, 100), numbers, strict=True)
        )
        return client_environment(PIPE, memory)["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]

    assert limits(2, 7) == "0=200M,1=100M,2=200M,7=100M"
    assert limits(0, 1) == "0=200M,1=100M"
    assert limits(1, 0) == "0=100M,1=100M", "where a number may mean two devices, the smaller limit"


def test_a_pipe_directory_that_cannot_work_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 87"):
        client_environment(PurePosixPath("/" + "x" * 87))


@pytest.mark.parametrize("percentage", [0, -1, 100.1, float("nan")])
def test_percentages_the_daemon_would_ignore_are_refused(percentage: float) -> None:
    with pytest.raises(ValueError, match="active_thread_percentage"):
        client_environment(PIPE, active_thread_percentage=percentage)


@pytest.mark.parametrize("device", ["0", "GPU-1", "gpu-" + UUID[4:], UUID + "=", ""])
def test_a_memory_limit_is_planned_for_a_device_by_uuid(device: str) -> None:
    with pytest.raises(ValueError, match="no device UUID"):
        MemoryLimit(device_uuid=device, limit_mib=1)


def test_a_memory_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 MiB"):
        MemoryLimit(device_uuid=UUID, limit_mib=0)


def test_two_limits_for_one_device_are_refused() -> None:
    twice = (MemoryLimit(device_uuid=UUID, limit_mib=1), MemoryLimit(device_uuid=UUID, limit_mib=2))
    with pytest.raises(ValueError, match="two memory limits"):
        client_environment(PIPE, twice)


def test_the_submitters_mps_variables_are_dropped() -> None:
    shell = {"PATH": "/bin", "CUDA_MPS_PIPE_DIRECTORY": "/tmp/stale", "CUDA_VISIBLE_DEVICES": "0"}
    assert drop_mps_variables(shell) == {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0"}


@given(st.floats(min_value=1e-12, max_value=100, exclude_min=False))
def test_a_percentage_is_written_in_plain_decimals_and_never_as_none(percentage: float) -> None:
    text = percentage_text(percentage)
    assert re.fullmatch(r"\d{1,3}(\.\d{1,3})?", text)
    assert 0 < float(text) <= 100
    assert abs(float(text) - percentage) <= 1e-3
