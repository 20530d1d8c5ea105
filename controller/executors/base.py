"""What an executor is: it carries out decisions on its hosts, and reports what happens there. Rule: it
decides nothing. It gets decisions once they are durable, in order, and turns reports into events. What it
keeps beside the journal it can lose at any moment.
"""

from __future__ import annotations

from typing import Protocol

from cotenant.controller.store import Decided


class Executor(Protocol):
    """What the controller's loop asks of one. How its hosts speak is its own."""

    def carry_out(self, decided: Decided) -> None:
        """It is durable. Also of hosts that are not this executor's: those it leaves alone."""

    def tick(self) -> None:
        """About twice a second: repeat what is late, and turn silence into an event."""

    def rebuilt(self) -> None:
        """The state was read from the journal: believe it."""

    @property
    def undelivered(self) -> int:
        """Commands that no host has confirmed."""
