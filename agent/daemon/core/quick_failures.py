"""Devices on which one program after another fails as soon as it starts. Pure.

Rule: a device that fails everything at once would get the whole queue. Here such ends only ask for a try of
CUDA on the device: anybody can write jobs that fail at once, so they never take a device out by themselves,
whoever's they are and however many. What the try finds does.
"""

from __future__ import annotations

from typing import Final

from cotenant.agent.daemon.core.remembered import Attempt
from cotenant.agent.ipc import Result
from cotenant.controller.domain import DeviceId

QUICK_S: Final = 60.0
ASKS_AFTER: Final = 3
"""So many programs, each another one; of a script that fails a thousand times only the first counts."""


class QuickFailures:
    def __init__(self) -> None:
        self._programs: dict[DeviceId, set[tuple[str, ...]]] = {}
        """What has failed on a device since something went well there."""

    def note_end(self, attempt: Attempt, result: Result, argv: tuple[str, ...], ran_s: float) -> bool:
        """Whether CUDA is to be tried on an attempt's devices, after this end of it."""
        outcome = result.verdict.outcome
        if outcome in ("stopped", "never-started"):
            return False
        if outcome == "finished" or ran_s > QUICK_S or attempt.first_step or result.status.first_step:
            for device_id in attempt.devices:
                self._programs.pop(device_id, None)
            return False
        for device_id in attempt.devices:
            self._programs.setdefault(device_id, set()).add(argv)
        asking = [each for each in attempt.devices if len(self._programs[each]) >= ASKS_AFTER]
        for device_id in asking:
            del self._programs[device_id]
        return bool(asking)
