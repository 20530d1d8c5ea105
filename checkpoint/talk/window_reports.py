"""Stretches of steps with one s: each is told of when it is over.

Rule: a window lies between two turns of s, and its peak of memory is its own: it is measured anew from
there. A supervisor that is slow has less of a profile; training does not wait for it.
"""

from __future__ import annotations

from cotenant.checkpoint.peak import Peak
from cotenant.checkpoint.talk import protocol
from cotenant.checkpoint.talk.channel import SupervisorChannel


class WindowReports:
    def __init__(self) -> None:
        self._peak = Peak()
        self._first = 0
        """The step after which the present one began."""

    def begin_at(self, step: int) -> None:
        """Training goes on from here, not from step 0."""
        self._first = step

    def over(self, channel: SupervisorChannel, step: int, steps_used: int) -> None:
        """A turn begins or ends after this step; `steps_used`: s until here."""
        channel.report(
            protocol.STRETCH, first=self._first, step=step, s=steps_used, memory_mib=self._peak.read_mib()
        )
        self._first = step
        self._peak.restart()
