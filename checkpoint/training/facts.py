"""What must be equal for a resume to be exact, recorded with every checkpoint and compared on load.

Rule: a difference is named, in words a user understands, and the resume is then called equivalent.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any, Final

import torch

_LABELS: Final = {
    "world_size": "world size",
    "sub_batch": "sub-batch size",
    "accumulation_steps": "accumulation steps",
    "threads": "threads per process",
    "torch": "torch build",
    "processor": "processor",
    "device": "device type",
    "matmul_precision": "matmul precision",
    "deterministic": "deterministic algorithms",
}

CUDA_NOTE: Final = (
    "CUDA kernels are not deterministic here (torch.use_deterministic_algorithms(True) makes a resume exact)"
)


def current(
    *, world_size: int, sub_batch: int | None, accumulation_steps: int | None, cuda: bool
) -> dict[str, Any]:
    """Facts about this process, plain values only. None where something is not known."""
    return {
        "world_size": world_size,
        "sub_batch": sub_batch,
        "accumulation_steps": accumulation_steps,
        "threads": torch.get_num_threads(),
        "torch": f"{torch.__version__} {torch.version.git_version or ''}".strip(),
        "processor": f"{_processor()}, {torch.backends.cpu.get_cpu_capability()}",
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One phrase per difference, `thing: old then, new now`."""
    found = []
    for key, label in _LABELS.items():
        if then.get(key) != now.get(key):
            found.append(f"{label}: {_said(then.get(key))} then, {_said(now.get(key))} now")
    return found


def _said(value: Any) -> str:
    return "not known" if value is None else str(value)


def _processor() -> str:
    """The processor's model: kernels are chosen by it, so another one may round differently."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith(("model name", "Model")):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
