"""A process takes no more of its device than was planned, whether or not the driver knows; torch is fake."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from cotenant.checkpoint import peak
from cotenant.checkpoint.device_limit import ENV_MPS_LIMIT, limit_memory, mps_limit_bytes
from cotenant.checkpoint.protocol import Environment
from cotenant.mps.environment import PINNED_DEVICE_MEM_LIMIT

GIB = 1 << 30
CONTEXT = GIB // 2
SUPERVISED = {"COTENANT_SOCKET": "/run/supervisor.sock"}


class Gpu:
    """FAKE. What torch says of a device of 80 GiB that this process uses alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fraction: tuple[float, object] | None = None
        self.free = self.total = self.whole = 80 * GIB
        self.reserved = 0
        for name, value in {
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "current_device": lambda: 0,
            "mem_get_info": lambda device=None: (self.free, self.total),
            "get_device_properties": lambda device=None: SimpleNamespace(total_memory=self.whole),
            "memory_reserved": lambda: self.reserved,
            "max_memory_allocated": lambda: self.reserved,
            "set_per_process_memory_fraction": self._set,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)

    def _set(self, fraction: float, device: object = None) -> None:
        self.fraction = (fraction, device)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    monkeypatch.delenv(ENV_MPS_LIMIT, raising=False)
    return Gpu(monkeypatch)


def test_the_name_is_that_of_mps() -> None:
    assert ENV_MPS_LIMIT == PINNED_DEVICE_MEM_LIMIT


@pytest.mark.parametrize(
    ("text", "limit_mib"),
    [("0=4096M", 4096), ("0=4096M,1=2048M", 2048), ("", None), ("0=4G", None), ("nonsense", None)],
)
def test_what_a_limit_says(text: str, limit_mib: int | None) -> None:
    """The agent writes MiB; what it did not write is none of ours."""
    found = mps_limit_bytes({ENV_MPS_LIMIT: text})
    assert found == (None if limit_mib is None else limit_mib << 20)


def test_a_planned_fraction_is_set_on_the_device_that_trains(gpu: Gpu) -> None:
    device = torch.device("cuda", 1)
    limit_memory(Environment.read({"COTENANT_MEMORY_FRACTION": "0.25"}), device)
    assert gpu.fraction == (0.25, device)


def test_without_a_limit_nothing_is_set(gpu: Gpu) -> None:
    limit_memory(Environment.read(SUPERVISED))
    assert gpu.fraction is None


def test_torch_is_held_to_the_limit_of_mps_as_well(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_MPS_LIMIT, f"0={20 * 1024}M")
    limit_memory(Environment.read(SUPERVISED))
    assert gpu.fraction == (0.25, None)


def test_a_client_that_is_shown_its_limit_as_the_whole_device_gets_all_of_that(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_MPS_LIMIT, f"0={20 * 1024}M")
    gpu.free = gpu.total = 20 * GIB
    limit_memory(Environment.read(SUPERVISED))
    assert gpu.fraction == (1.0, None)


def test_a_limit_of_the_users_own_shell_is_left_to_mps(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_MPS_LIMIT, "0=1024M")
    limit_memory(Environment.read({}))
    assert gpu.fraction is None


@pytest.mark.parametrize("counts_context", [True, False])
@pytest.mark.parametrize("in_force", [True, False])
@pytest.mark.parametrize("limit_gib", [None, 20, 60])
@pytest.mark.parametrize("reserved_gib", [1, 15])
def test_the_peak_is_what_is_used_whatever_a_limit_makes_of_the_free_memory(
    gpu: Gpu,
    monkeypatch: pytest.MonkeyPatch,
    reserved_gib: int,
    limit_gib: int | None,
    in_force: bool,
    counts_context: bool,
) -> None:
    """A client may be shown what is free of its limit beside the total of the whole device."""
    gpu.reserved = reserved_gib * GIB
    used = gpu.reserved + CONTEXT
    gpu.free = gpu.total - used
    expected = used
    if limit_gib is not None:
        monkeypatch.setenv(ENV_MPS_LIMIT, f"0={limit_gib * 1024}M")
        if in_force:
            expected = used if counts_context else gpu.reserved
            gpu.free = limit_gib * GIB - expected
    assert peak.Peak().read_mib() == expected / (1 << 20)
