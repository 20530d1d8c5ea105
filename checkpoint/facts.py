"""Facts that decide the bits of what a process computes, saved with each checkpoint and compared at a resume.

Rule: reading them imports and initialises nothing: CUDA is asked only where the job's own tensors are on it.
A fact that only one of two processes knows is a difference.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import Any, Final

import torch

LABELS: Final = {
    "world_size": "world size",
    "sub_batch": "sub-batch size",
    "accumulation_steps": "accumulation steps",
    "threads": "threads per process",
    "torch": "torch build",
    "processor": "processor",
    "device": "device type",
    "multiprocessors": "multiprocessors (an MPS percentage changes them)",
    "driver": "driver",
    "cudnn": "cuDNN",
    "cublas_workspace": "CUBLAS_WORKSPACE_CONFIG",
    "sums": "order of NCCL's sums",
    "matmul_precision": "matmul precision",
    "deterministic": "deterministic algorithms",
}
CUDA_NOTE: Final = (
    "CUDA kernels are not deterministic here (torch.use_deterministic_algorithms(True) makes a resume exact)"
)
TIMED_NOTE: Final = (
    "cuDNN chooses kernels by their time (torch.backends.cudnn.benchmark = False makes a resume exact)"
)


def facts_now(
    *, rank: int, world_size: int, sub_batch: int | None, accumulation_steps: int | None, cuda: bool
) -> dict[str, Any]:
    """Facts about this process, plain values only. None where something is not known, or does not matter."""
    return {
        "world_size": world_size,
        "sub_batch": sub_batch,
        "accumulation_steps": accumulation_steps,
        "threads": torch.get_num_threads(),
        "torch": f"{torch.__version__} {torch.version.git_version or ''}".strip(),
        "processor": f"{_processor()}, {torch.backends.cpu.get_cpu_capability()}",
        "device": "cpu",
        "matmul_precision": matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        **(_cuda_facts(rank, world_size) if cuda else {}),
    }


def _cuda_facts(rank: int, world_size: int) -> dict[str, Any]:
    """Facts about the current device and its libraries, in a process that computes on it."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    library: Any = torch._C
    api = library._cuda_getDriverVersion()  # Of libcuda, which may be newer than the kernel module.
    cudnn = getattr(library, "_cudnn", None)
    facts = {
        "device": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "driver": f"{_text('/sys/module/nvidia/version').strip()} (CUDA {api // 1000}.{api % 1000 // 10})",
        "cudnn": cudnn.getVersionInt() if cudnn is not None else None,
        "cublas_workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    }
    if world_size > 2 and rank == 0:  # The sum of two has no order. Other ranks may be on smaller hosts.
        direct = "" if os.environ.get("NCCL_P2P_DISABLE", "0") == "0" else ", without peer-to-peer"
        facts["sums"] = f"{os.environ.get('LOCAL_WORLD_SIZE')} workers on the first host{direct}"
    return facts


def unequal_facts(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The differences in what this process has a word on, one phrase each: `thing: old then, new now`."""
    found = []
    for key in (each for each in LABELS if each in now):
        is_learned = key == "sub_batch" and None in (then.get(key), now[key])  # A batch's size, in time.
        if then.get(key) != now[key] and not is_learned:
            found.append(f"{LABELS[key]}: {_fact_text(then.get(key))} then, {_fact_text(now[key])} now")
    return found


def cuda_notes() -> list[str]:
    """Why kernels on CUDA need not give the same bits twice, even where all facts are equal."""
    if not torch.are_deterministic_algorithms_enabled():
        return [CUDA_NOTE]
    return [TIMED_NOTE] if torch.backends.cudnn.benchmark else []


def matmul_precision() -> str:
    """Reads what may round the factors of a float32 product."""
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:  # Scripts that set `fp32_precision` (torch 2.9) must not be asked by the old name.
        backends: Any = torch.backends
        return f"{backends.cuda.matmul.fp32_precision}, {backends.mkldnn.matmul.fp32_precision} on the CPU"


def _fact_text(value: Any) -> str:
    return "not known" if value is None else str(value)


def _processor() -> str:
    """Reads the model of the processor: kernels are chosen by it, so another processor may round
    differently."""
    lines = _text("/proc/cpuinfo").splitlines()
    named = (line for line in lines if line.startswith(("model name", "Model")))
    return next(named, "").partition(":")[2].strip() or platform.processor() or platform.machine()


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
