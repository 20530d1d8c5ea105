"""When a supervisor's status is told, and when written down: facts at once, progress about once a second.

Rule: what an agent that comes back late must know (a step was agreed on, a save is durable) is on disk before
anything else happens; the count of steps is only written now and then.
"""

from __future__ import annotations

from math import inf
from typing import Final

from cotenant.agent.ipc.records import Status
from cotenant.agent.supervisor.core.edge import Publish

PUBLISH_PERIOD_S: Final = 1.0
KEEP_PERIOD_S: Final = 15.0


class Publishing:
    def __init__(self) -> None:
        self._is_news = False
        self._is_important = False
        self._published_s = -inf
        self._kept_s = -inf

    @property
    def next_alarm_s(self) -> float:
        return self._published_s + PUBLISH_PERIOD_S if self._is_news else inf

    def progressed(self, changed: bool) -> None:
        self._is_news |= changed

    def changed(self, changed: bool) -> None:
        """A fact."""
        self._is_news |= changed
        self._is_important |= changed

    def due(self, status: Status, now_s: float) -> list[Publish]:
        """What to tell now, if anything."""
        if not self._is_news or (not self._is_important and now_s < self._published_s + PUBLISH_PERIOD_S):
            return []
        keep = self._is_important or now_s >= self._kept_s + KEEP_PERIOD_S
        self._published_s = now_s
        self._kept_s = now_s if keep else self._kept_s
        self._is_news, self._is_important = False, False
        return [Publish(status=status, keep=keep)]
