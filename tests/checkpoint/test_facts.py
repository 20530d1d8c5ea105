"""Which facts of a process make a resume equivalent, and how they are read."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cotenant.checkpoint.facts import cuda_notes, facts_now, matmul_precision, unequal_facts

WHOLE: dict[str, Any] = {
    "sub_batch": 32, "accumulation_steps": 1, "device": "NVIDIA H200", "multiprocessors": 132,
    "driver": "580.95.05 (CUDA 13.0)", "cudnn": 91002, "cublas_workspace": ":4096:8",
    "sums": "4 workers on the first host",
}  # fmt: skip


@pytest.mark.parametrize(
    ("then", "differences"),
    [
        ({}, []),
        ({"sub_batch": None}, []),
        ({"sub_batch": 16}, ["sub-batch size: 16 then, 32 now"]),
        ({"accumulation_steps": 2}, ["accumulation steps: 2 then, 1 now"]),
        ({"multiprocessors": 66}, ["multiprocessors (an MPS percentage changes them): 66 then, 132 now"]),
        (
            {"driver": "570.86.15 (CUDA 12.8)"},
            ["driver: 570.86.15 (CUDA 12.8) then, 580.95.05 (CUDA 13.0) now"],
        ),
        ({"cudnn": 90800}, ["cuDNN: 90800 then, 91002 now"]),
        ({"cublas_workspace": None}, ["CUBLAS_WORKSPACE_CONFIG: not known then, :4096:8 now"]),
        (
            {"sums": "2 workers on the first host"},
            ["order of NCCL's sums: 2 workers on the first host then, 4 workers on the first host now"],
        ),
    ],
)
def test_what_differs_is_named(then: dict[str, Any], differences: list[str]) -> None:
    assert unequal_facts({**WHOLE, **then}, WHOLE) == differences


def test_a_checkpoint_of_a_version_that_saved_fewer_facts_is_read_and_not_called_exact() -> None:
    old = {key: WHOLE[key] for key in ("sub_batch", "accumulation_steps", "device", "sums")}
    assert [each.partition(":")[0] for each in unequal_facts(old, WHOLE)] == [
        "multiprocessors (an MPS percentage changes them)", "driver", "cuDNN", "CUBLAS_WORKSPACE_CONFIG",
    ]  # fmt: skip
    known = {"world_size": 1, "sub_batch": 8, "accumulation_steps": 1}
    now = facts_now(rank=0, cuda=False, **known)
    assert unequal_facts(now, now) == [] and now["device"] == "cpu" and "multiprocessors" not in now


def test_a_rank_behind_the_first_has_no_word_on_the_order_of_sums() -> None:
    assert unequal_facts(WHOLE, {key: WHOLE[key] for key in WHOLE if key != "sums"}) == []


def test_on_cuda_the_device_its_driver_and_its_libraries_are_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    h200 = SimpleNamespace(name="NVIDIA H200", multi_processor_count=66)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", {0: h200}.__getitem__)
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: 12080, raising=False)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    found = [
        facts_now(rank=rank, world_size=ranks, sub_batch=8, accumulation_steps=1, cuda=True)
        for rank, ranks in ((0, 4), (1, 4), (0, 2))
    ]
    assert (found[0]["device"], found[0]["multiprocessors"]) == ("NVIDIA H200", 66)
    assert found[0]["driver"].endswith("(CUDA 12.8)") and found[0]["cublas_workspace"] == ":16:8"
    sums = [each.get("sums") for each in found]
    assert sums == ["4 workers on the first host, without peer-to-peer", None, None], "of two there is none"


@pytest.fixture
def restored() -> Iterator[None]:
    backends: Any = torch.backends
    before = backends.cuda.matmul.fp32_precision
    yield
    backends.cuda.matmul.fp32_precision = before
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = False


@pytest.mark.skipif(
    not hasattr(torch._C, "_get_fp32_precision_getter"), reason="this torch has no fp32_precision"
)
@pytest.mark.usefixtures("restored")
def test_a_precision_that_a_script_set_by_its_newer_name_can_be_read() -> None:
    backends: Any = torch.backends
    backends.cuda.matmul.fp32_precision = "tf32"
    assert matmul_precision().startswith("tf32, ")


@pytest.mark.usefixtures("restored")
def test_kernels_that_are_chosen_by_their_time_need_not_be_the_same_again() -> None:
    assert [each.partition(" (")[0] for each in cuda_notes()] == ["CUDA kernels are not deterministic here"]
    torch.use_deterministic_algorithms(True)
    assert cuda_notes() == []
    torch.backends.cudnn.benchmark = True
    assert "benchmark = False" in cuda_notes()[0]
