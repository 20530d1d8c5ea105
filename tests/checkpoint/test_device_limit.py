"""A process takes no more of its device than was planned, whether or not the driver knows; torch is fake."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cotenant.checkpoint import device_limit
from cotenant.checkpoint.device_limit import (
    ENV_MPS_LIMIT,
    DeviceLimits,
    DeviceShare,
    SharedLimits,
    limit_memory,
    limits_of,
    mps_limit_bytes,
)
from cotenant.checkpoint.talk.memory import memory_in_use_mib
from cotenant.checkpoint.talk.protocol import JobEnvironment
from cotenant.mps.environment import PINNED_DEVICE_MEM_LIMIT
from tests.building.limits import within_s

GIB = 1 << 30
CONTEXT = GIB // 2
SUPERVISED = {"COTENANT_SOCKET": "/run/supervisor.sock"}


OLD, NEW = "2.8.0+cu128", "2.13.0+cu130"


class Gpus:
    """FAKE. What torch says of devices of 80 and 40 GiB that this process uses alone, and what it is told.
    An old torch opens the device whose limit is set; so does one that does not use its own allocator."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fractions: dict[int, float] = {}
        self.opened: set[int] = set()
        self.told = threading.Condition()
        self.free = self.total = 80 * GIB
        self.wholes = [80 * GIB, 40 * GIB]
        self.reserved = 0
        self.backend = "native"
        self.opens = False
        self._patch = monkeypatch
        cuda = {
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "device_count": lambda: len(self.wholes),
            "current_device": lambda: 0,
            "mem_get_info": self._info,
            "get_device_properties": lambda no=0: SimpleNamespace(total_memory=self.wholes[no]),
            "memory_reserved": lambda no: self.reserved,
            "max_memory_allocated": lambda no: self.reserved,
            "memory_allocated": lambda no: 0,
            "set_per_process_memory_fraction": self.set,
        }
        for name, value in cuda.items():
            monkeypatch.setattr(torch.cuda, name, value)
        known = lambda no: self.fractions.get(no, 1.0)  # noqa: E731
        monkeypatch.setattr(torch.cuda.memory, "get_per_process_memory_fraction", known)
        monkeypatch.setattr(torch.cuda.memory, "get_allocator_backend", lambda: self.backend)
        has = lambda no: no in self.opened  # noqa: E731
        monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", has, raising=False)
        self.is_torch(NEW)

    def is_torch(self, version: str) -> None:
        self._patch.setattr(torch, "__version__", version)
        self.opens = version == OLD

    def _info(self, no: int = 0) -> tuple[int, int]:
        self.opened.add(no)
        return self.free, self.total if no == 0 else self.wholes[no]

    def set(self, fraction: float, device: Any = None) -> None:
        with self.told:
            no = 0 if device is None else torch.device(device).index if isinstance(device, str) else device
            if not isinstance(fraction, float):
                raise TypeError("Invalid type for fraction argument, must be `float`")
            if self.opens or self.backend != "native":
                self.opened.add(no)
            self.fractions[no] = fraction
            self.told.notify_all()

    def wait_for(self, **fractions: float) -> None:
        wanted = {int(name[3:]): value for name, value in fractions.items()}
        with self.told:
            assert self.told.wait_for(lambda: self.fractions == wanted, timeout=within_s(60)), self.fractions


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpus]:
    monkeypatch.delenv(ENV_MPS_LIMIT, raising=False)
    device_limit._LIMITS.clear()  # The process's own: at most one.
    gpus = Gpus(monkeypatch)
    yield gpus
    gpus.opened = {0, 1}  # Whoever still waits for them ends.
    for thread in threading.enumerate():
        if thread.name == device_limit.THREAD:
            thread.join(timeout=within_s(60))
    device_limit._LIMITS.clear()


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


def begun(**words: str) -> DeviceLimits:
    limits = limits_of(words)
    assert limits is not None
    limits.begin()
    return limits


PLANNED = {"COTENANT_MEMORY_MIB": str(20 * 1024)}


def test_mib_become_the_fraction_of_each_device_and_none_is_opened(gpu: Gpus) -> None:
    begun(**PLANNED)
    assert gpu.fractions == {0: 0.25, 1: 0.5}
    assert gpu.opened == set()


def test_where_setting_a_limit_opens_the_device_only_those_that_the_process_has_opened_get_theirs(
    gpu: Gpus,
) -> None:
    gpu.is_torch(OLD)
    begun(**PLANNED)
    gpu.opened.add(1)
    gpu.wait_for(gpu1=0.5)
    assert gpu.opened == {1}
    gpu.opened.add(0)
    gpu.wait_for(gpu0=0.25, gpu1=0.5)


def test_an_allocator_that_opens_what_it_limits_is_treated_as_an_old_torch(gpu: Gpus) -> None:
    gpu.backend = "cudaMallocAsync"
    begun(**PLANNED)
    gpu.opened.add(1)
    gpu.wait_for(gpu1=0.5)
    assert gpu.opened == {1}


@pytest.mark.parametrize("version", [OLD, NEW])
def test_who_started_without_a_limit_is_held_to_its_room_where_it_is_and_only_for_as_long(
    gpu: Gpus, version: str
) -> None:
    gpu.is_torch(version)
    gpu.opened.add(1)
    room = SharedLimits()
    room.keep_to(20 * 1024)
    assert gpu.fractions == {1: 0.5}
    room.keep_to(10 * 1024)
    room.keep_to(None)
    assert (gpu.fractions, gpu.opened) == ({1: 1.0}, {1})


def test_a_smaller_fraction_of_the_scripts_own_outlives_a_room(gpu: Gpus) -> None:
    gpu.opened.add(0)
    gpu.fractions[0] = 0.3
    room = SharedLimits()
    room.keep_to(40 * 1024)
    assert gpu.fractions == {0: 0.3}
    room.keep_to(8 * 1024)
    assert gpu.fractions == {0: 0.1}
    room.keep_to(None)
    assert gpu.fractions == {0: 0.3}


def test_a_process_that_does_not_use_cuda_stays_away_from_it(
    gpu: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    gpu.opened.add(0)
    SharedLimits().keep_to(1)
    assert gpu.fractions == {}


@pytest.mark.parametrize("version", [OLD, NEW])
def test_the_only_device_is_limited_before_anything_is_taken_of_it(gpu: Gpus, version: str) -> None:
    gpu.is_torch(version)
    gpu.wholes = [80 * GIB]
    begun(**PLANNED)
    assert gpu.fractions == {0: 0.25}


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("device", [1, "cuda:1", torch.device("cuda", 1)], ids=str)
def test_a_script_s_own_fraction_wins_if_it_is_smaller(gpu: Gpus, version: str, device: Any) -> None:
    gpu.is_torch(version)
    limits = begun(**PLANNED)
    assert limits.note_asked(0.9, device) == 0.5
    assert limits.note_asked(0.1, device) == 0.1
    limits.hold(1)
    assert gpu.fractions[1] == 0.1


def test_a_smaller_fraction_of_the_allocator_s_settings_stays(gpu: Gpus) -> None:
    gpu.fractions = {0: 0.125, 1: 0.125}
    begun(**PLANNED)
    assert gpu.fractions == {0: 0.125, 1: 0.125}


def test_what_is_no_fraction_is_torch_s_to_refuse(gpu: Gpus) -> None:
    assert begun(**PLANNED).note_asked("much") == "much"


def test_a_session_and_the_hook_set_the_same_limit(gpu: Gpus) -> None:
    begun(**PLANNED)
    limit_memory(JobEnvironment.read(PLANNED), torch.device("cuda", 1))
    assert gpu.fractions == {0: 0.25, 1: 0.5}


def test_a_session_limits_its_device_where_no_hook_does(gpu: Gpus) -> None:
    limit_memory(JobEnvironment.read(PLANNED), torch.device("cuda", 1))
    assert gpu.fractions == {1: 0.5}


@pytest.mark.parametrize("version", [OLD, NEW])
def test_a_planned_fraction_is_set_on_the_device_that_trains(gpu: Gpus, version: str) -> None:
    gpu.is_torch(version)
    limit_memory(JobEnvironment.read({"COTENANT_MEMORY_FRACTION": "0.25"}), torch.device("cuda", 1))
    assert gpu.fractions == {1: 0.25}


def test_without_a_limit_nothing_is_set(gpu: Gpus) -> None:
    limit_memory(JobEnvironment.read(SUPERVISED))
    assert limits_of(SUPERVISED) is None
    assert gpu.fractions == {}


def test_torch_is_held_to_the_limit_of_mps_as_well(gpu: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_MPS_LIMIT, f"0={20 * 1024}M")
    limit_memory(JobEnvironment.read(SUPERVISED))
    assert gpu.fractions == {0: 0.25}


@pytest.mark.parametrize(("version", "fraction"), [(OLD, 1.0), (NEW, 0.25)])
def test_a_client_that_is_shown_its_limit_as_the_whole_device_gets_all_of_that(
    gpu: Gpus, version: str, fraction: float
) -> None:
    """The fraction is of what this torch multiplies."""
    gpu.is_torch(version)
    gpu.free = gpu.total = 20 * GIB
    limit_memory(JobEnvironment.read(PLANNED))
    assert gpu.fractions == {0: fraction}


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 40))
def test_a_share_is_never_more_than_what_was_planned_nor_than_the_device(mib: int, total_bytes: int) -> None:
    fraction = DeviceShare(size_bytes=mib << 20).fraction_of(total_bytes)
    assert 0 < fraction <= 1
    assert fraction * total_bytes <= (mib << 20) * (1 + 1e-12)


def test_a_limit_of_the_users_own_shell_is_left_to_mps(gpu: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_MPS_LIMIT, "0=1024M")
    limit_memory(JobEnvironment.read({}))
    assert gpu.fractions == {}


@pytest.mark.parametrize("counts_context", [True, False])
@pytest.mark.parametrize("in_force", [True, False])
@pytest.mark.parametrize("limit_gib", [None, 20, 60])
@pytest.mark.parametrize("reserved_gib", [1, 15])
def test_the_peak_is_what_is_used_whatever_a_limit_makes_of_the_free_memory(
    gpu: Gpus,
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
    peak_mib, static_mib = memory_in_use_mib()
    assert (peak_mib, static_mib) == (expected / (1 << 20), (expected - gpu.reserved) / (1 << 20))


@pytest.mark.parametrize(("opened", "peak_gib"), [({0}, 20), ({1}, 30), ({0, 1}, 30), (set(), 20)], ids=str)
def test_the_peak_of_a_process_with_two_devices_is_that_of_the_fuller_one_it_has_opened(
    gpu: Gpus, monkeypatch: pytest.MonkeyPatch, opened: set[int], peak_gib: int
) -> None:
    used = {0: 20 * GIB, 1: 30 * GIB}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda no: (gpu.wholes[no] - used[no], gpu.wholes[no]))
    gpu.opened = set(opened)
    assert memory_in_use_mib() == (peak_gib * 1024, peak_gib * 1024)
