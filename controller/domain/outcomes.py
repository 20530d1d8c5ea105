"""How an attempt ends, and what part it had in a fault of its device."""

from __future__ import annotations

from typing import Literal

Outcome = Literal["finished", "user-failed", "infra-failed", "stopped", "never-started"]
"""`stopped`: it left on request, its state (if any was asked for) durable."""


GpuFaultRole = Literal["", "culprit", "suspect", "hit", "device"]
"""culprit: it caused the fault. suspect: it did, or one that shared the device; which is unknown. hit:
another did. device: the device failed by itself."""
