"""EXCLUSIVE_PROCESS mode while a daemon runs, where the operator wants it and the driver permits it.

Rule: the mode before is on disk before a device's mode is changed, and is restored when the daemon is
stopped, and by the next owner after a crash. In this mode only the MPS server can open the device, so a
job that fails to attach fails, instead of time-slicing unnoticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cotenant.mps.ownership import Ownership

DEFAULT = 0
EXCLUSIVE_PROCESS = 3


class ModeRefused(Exception):
    """The driver does not tell or change the mode: usually, since only root may. One line."""


class Modes(Protocol):
    """How compute modes are read and set: NVML, in a child process of the agent."""

    def mode(self, uuid: str) -> int:
        """Raises ModeRefused."""

    def set_mode(self, uuid: str, mode: int) -> None:
        """Raises ModeRefused."""


def make_exclusive(ownership: Ownership, modes: Modes, uuids: Sequence[str]) -> str:
    """Why not, for a person; empty if all of them are. What was changed before a refusal is restored."""
    try:
        before = {uuid: modes.mode(uuid) for uuid in uuids}
        known = ownership.record.compute_modes
        changed = {uuid: mode for uuid, mode in before.items() if mode != EXCLUSIVE_PROCESS}
        if changed:
            ownership.keep(compute_modes={**known, **changed})
        for uuid in changed:
            modes.set_mode(uuid, EXCLUSIVE_PROCESS)
    except ModeRefused as refused:
        left = restore(ownership, modes)
        return f"EXCLUSIVE_PROCESS mode is not used: {refused}{f'; {left}' if left else ''}"
    return ""


def restore(ownership: Ownership, modes: Modes) -> str:
    """Give every device its mode back; which could not, for a person. Those stay in the record."""
    left: dict[str, int] = {}
    said = []
    for uuid, mode in ownership.record.compute_modes.items():
        try:
            modes.set_mode(uuid, mode)
        except ModeRefused as refused:
            left[uuid] = mode
            said.append(f"{uuid} could not be given back its compute mode {mode}: {refused}")
    if left != ownership.record.compute_modes:
        ownership.keep(compute_modes=left)
    return "; ".join(said)
