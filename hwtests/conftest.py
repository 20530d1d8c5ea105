"""The hardware suite: `pytest hwtests`, on a machine with a CUDA device.

Rule: opt-in, and honest about what is missing. Each skip names the one thing that this machine lacks.
"""

from __future__ import annotations

import importlib.util

import pytest


def _missing() -> str:
    """The first thing that keeps the suite from running, or an empty string."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed: pip install 'cotenant[train]'"
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA device"
    if importlib.util.find_spec("pynvml") is None:
        return "nvidia-ml-py is not installed"
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return f"NVML does not answer: {error}"
    pynvml.nvmlShutdown()
    return ""


@pytest.fixture(scope="session")
def cuda_uuid() -> str:
    """The UUID of the first CUDA device; skips where there is none."""
    missing = _missing()
    if missing:
        pytest.skip(missing)
    import pynvml

    pynvml.nvmlInit()
    try:
        return str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0)))
    finally:
        pynvml.nvmlShutdown()
