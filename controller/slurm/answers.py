"""Counts and GPUs as Slurm's programs write them. Pure."""

from __future__ import annotations

import re
from typing import Final

from cotenant.controller.domain import texts

_GPUS: Final = re.compile(r"\bgpu(?::([^:,(=]+))?(?::no_consume)?[:=]([0-9]+)")


def count_in(text: str) -> int:
    """Reads a count as `4`, or as `2-4`, which asks for at least so many; 0 for anything else."""
    first = text.partition("-")[0]
    return int(first) if texts.is_whole_number(first) else 0


def gpus_in(text: str, type: str = "") -> int:
    """Counts the GPUs in `gres:gpu:2`, `gpu:a100:4(S:0-1)`, `gres/gpu:3`; of several types all, or those of
    `type`."""
    found = _GPUS.findall(text)
    return sum(int(count) for kind, count in found if not type or kind.lower() == type.lower())
