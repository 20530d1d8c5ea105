"""The loss that a script keeps in a variable of its own, read where its steps are reported.

Rule: as everywhere in this folder, nothing of the script runs, and no device is waited for. A variable counts
by its name alone: what a script calls `loss` is its loss.
"""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Iterable
from typing import Any, Final

from cotenant.checkpoint.progress.expressions import Names

NAMES: Final = ("loss", "train_loss", "batch_loss", "total_loss")


def loss_variable(frames: Iterable[types.FrameType]) -> Any:
    """What the innermost of these frames that has such a variable keeps in it; None where none has."""
    for frame in frames:
        names = Names(frame)
        try:
            found = next((names.local[name] for name in NAMES if names.local.get(name) is not None), None)
        finally:
            names.release()
        if found is not None:
            return found
    return None


def loss_number(loss: Any) -> float | None:
    """A number, or a tensor of main memory with one. Others are not known: reading them would wait for a
    device, or for other ranks."""
    torch = sys.modules.get("torch")
    if torch is not None and type(loss) is torch.Tensor:
        if loss.numel() != 1 or loss.device.type != "cpu":
            return None
        loss = loss.detach().item()
    if issubclass(type(loss), (int, float)) and not issubclass(type(loss), bool) and math.isfinite(loss):
        return float(loss)
    return None
