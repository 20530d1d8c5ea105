"""Counts, times and GPUs as Slurm's programs write them. Pure."""

from __future__ import annotations

import re
from typing import Final

from cotenant.controller.domain import texts

_GPUS: Final = re.compile(r"\bgpu(?::([^:,(=]+))?(?::no_consume)?[:=]([0-9]+)")
_TIME: Final = re.compile(r"(?:([0-9]+)-)?([0-9]+)(?::([0-9]+))?(?::([0-9]+))?")


def count_in(text: str) -> int:
    """Reads a count as `4`, or as `2-4`, which asks for at least so many; 0 for anything else."""
    first = text.partition("-")[0]
    return int(first) if texts.is_whole_number(first) else 0


def gpus_in(text: str, type: str = "") -> int:
    """Counts the GPUs in `gres:gpu:2`, `gpu:a100:4(S:0-1)`, `gres/gpu:3`; of several types all, or those of
    `type`."""
    found = _GPUS.findall(text)
    return sum(int(count) for kind, count in found if not type or kind.lower() == type.lower())


def seconds_in(text: str) -> float | None:
    """Reads `1-02:00:00`, `1-02`, `02:00:00`, `30:00`, or `30` for minutes; None for a word (`UNLIMITED`)."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    days, first, second, third = (None if each is None else int(each) for each in found.groups())
    assert first is not None, "the pattern requires it"
    if days is None and third is None:
        return first * 60.0 + (second or 0)
    return (((days or 0) * 24 + first) * 60 + (second or 0)) * 60.0 + (third or 0)
