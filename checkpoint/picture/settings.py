"""Settings of a process that no object of the script holds: its folder, what torch and numpy were told.

Rule: a new process has those of the script's beginning, so that one that changes in the loop is refused.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Final

import torch

from cotenant.checkpoint.facts import matmul_precision
from cotenant.checkpoint.picture.kinds import NamedKind


class ProcessSettings:
    """Stands for the settings of this process."""


PROCESS: Final = ProcessSettings()


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # It was removed.
        return ""


def _numpy_errors() -> str:
    numpy = sys.modules.get("numpy")
    return "" if numpy is None else str(sorted(numpy.geterr().items()))


_SIGNALS: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
)
_SETTINGS: Final[dict[str, Callable[[], Any]]] = {
    "os.getcwd()": _folder,
    "torch.get_default_dtype()": lambda: str(torch.get_default_dtype()),
    "torch.is_grad_enabled()": torch.is_grad_enabled,
    "torch.is_inference_mode_enabled()": torch.is_inference_mode_enabled,
    "torch.is_anomaly_enabled()": torch.is_anomaly_enabled,
    "torch.is_autocast_enabled()": lambda: (
        torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    ),
    "torch.profiler": torch._C._autograd._profiler_enabled,
    "torch.get_deterministic_debug_mode()": torch.get_deterministic_debug_mode,
    "torch.get_float32_matmul_precision()": matmul_precision,
    "numpy.geterr()": _numpy_errors,
    "sys.getrecursionlimit()": sys.getrecursionlimit,
    "sys.excepthook": lambda: sys.excepthook,
    **{f"signal.{each.name}": functools.partial(signal.getsignal, each) for each in _SIGNALS},
}


class SettingsKind(NamedKind):
    """What is set by functions. A change of one is seen, and not undone."""

    def __init__(self) -> None:
        super().__init__(dict, "{}")

    def read(self, value: Any) -> Any:
        return list(_SETTINGS), [each() for each in _SETTINGS.values()]

    def parts(self, value: Any, state: Any) -> Any:
        return ()

    def put_back(self, value: Any, before: Any) -> None:
        """Nothing is set."""


SETTINGS: Final = SettingsKind()
