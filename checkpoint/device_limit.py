"""How much of its CUDA device this process may have, and how much of it is in use.

Rule: a limit is set twice. Nothing tells a client of MPS whether the driver enforces the limit it was given
(a spelling that it does not like is dropped without a word), so torch's allocator is held to the same number.
Where both work the driver's is met first, since it counts more than torch does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

import torch

from cotenant.checkpoint.protocol import Environment

ENV_MPS_LIMIT: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
"""MPS's own variable: `0=4096M`, by the number of the device as this process counts them."""
_LIMIT: Final = re.compile(r"[^=,]+=(\d+)M")
_MIB: Final = 1024 * 1024


def mps_limit_bytes(environ: Mapping[str, str]) -> int | None:
    """The smallest limit that the agent gave this client of MPS; None where there is none."""
    found = [int(number) for number in _LIMIT.findall(environ.get(ENV_MPS_LIMIT, ""))]
    return min(found) * _MIB if found else None


def limit_memory(env: Environment, device: torch.device | None = None) -> None:
    """Have torch take no more of the device than was planned for this process.

    Args:
        device: where it trains; None: torch's current one.
    """
    if not torch.cuda.is_available():
        return
    fraction = env.memory_fraction
    if fraction is None:
        limit = mps_limit_bytes(os.environ) if env.socket is not None else None
        if limit is None:
            return
        where = torch.cuda.current_device() if device is None else device
        # A client may be shown the limit as its device's whole memory, and torch multiplies what it is shown.
        shown = min(torch.cuda.mem_get_info(where)[1], torch.cuda.get_device_properties(where).total_memory)
        fraction = min(1.0, limit / shown)
    torch.cuda.set_per_process_memory_fraction(fraction, device)


def used_bytes() -> int:
    """In use on the current device, whoever uses it. A client of MPS may be shown what is free of its limit
    beside the total of the whole device: then what it does not have is not in use.
    """
    free, total = torch.cuda.mem_get_info()
    limit = mps_limit_bytes(os.environ)
    if limit is not None and limit < total and limit - free >= torch.cuda.memory_reserved():
        return int(limit - free)
    return int(total - free)
