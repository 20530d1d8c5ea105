"""What an executor is: it carries out on its hosts what was decided for them, and reports what comes of it.

Rule: it decides nothing. It is given decisions once they are durable, in order, and makes events of what it
hears. What it keeps beside the journal it can lose at any moment.
"""

from __future__ import annotations

from typing import Protocol

from cotenant.controller.store import Decided


class Executor(Protocol):
    """What the controller's loop asks of one. How its hosts speak is its own."""

    def carry_out(self, decided: Decided) -> None:
        """It is durable. Also of hosts that are not this executor's: those it leaves alone."""

    def tick(self) -> None:
        """About twice a second: what is late is said again, silence becomes an event."""

    def rebuilt(self) -> None:
        """The state was read from the journal: believe it."""

    @property
    def undelivered(self) -> int:
        """Commands that no host has confirmed."""
