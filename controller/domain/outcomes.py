"""How an attempt ends, and what part it had in a fault of its device."""

from __future__ import annotations

from typing import Literal

import msgspec

Outcome = Literal["finished", "user-failed", "infra-failed", "stopped", "never-started"]
"""`stopped`: it left on request, its state (if any was asked for) durable."""


GpuFaultRole = Literal["", "culprit", "suspect", "hit", "device"]
"""culprit: it caused the fault. suspect: it did, or one that shared the device; which is unknown. hit:
another did. device: the device failed by itself."""


class ExitVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt ended on one host, and why, as its supervisor judges it."""

    outcome: Outcome
    exit_code: int | None = None
    detail: str = ""
    """One line for a person: the exit code's meaning, the signal, the first error line."""
    workdir_missing: bool = False
    out_of_memory: bool = False
    """It ended because it got no more memory on its device."""
    cuda_fault: bool = False
    """Its own words are those of a fatal error on the device: under MPS that ends all clients."""
    host_fault: bool = False
    """The host itself failed it, before anything of the job's had run: no process could be started, no file
    of ours be written."""
