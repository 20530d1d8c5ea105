"""Devices on which one program after another fails as soon as it starts. Pure.

Rule: a device that fails everything at once would get the whole queue. Such ends only ask for a try of CUDA
there, whose answer takes the device out: anybody can write jobs that fail at once, so by themselves they
never do, whoever's they are and however many.
"""

from __future__ import annotations

from typing import Final

from cotenant.agent.daemon.core.remembered import Attempt
from cotenant.agent.daemon.core.tenants import Live
from cotenant.agent.ipc.records import Result
from cotenant.controller.domain import DeviceId

QUICK_S: Final = 60.0
ASKS_AFTER: Final = 3
"""So many programs, each another one: a script that fails a thousand times counts once."""


class QuickFailures:
    def __init__(self) -> None:
        self._programs: dict[DeviceId, set[tuple[str, ...]]] = {}
        """What has failed on a device since something went well there."""

    def note_end(self, attempt: Attempt, live: Live, result: Result, now_s: float) -> bool:
        """Whether CUDA is to be tried on an attempt's devices, after this end of it."""
        outcome = result.verdict.outcome
        if outcome in ("stopped", "never-started"):
            return False
        ran_s = now_s - live.started_s if live.started_s is not None else 0.0
        went_well = outcome == "finished" or ran_s > QUICK_S or result.status.first_step is not None
        for device_id in attempt.devices:
            before = self._programs.get(device_id, set())
            self._programs[device_id] = set() if went_well else before | {live.argv}
        asking = [each for each in attempt.devices if len(self._programs[each]) >= ASKS_AFTER]
        self._programs.update((device_id, set()) for device_id in asking)
        return bool(asking)
