"""Executors: they carry out decisions on their hosts, and report what happens there.

Rule: an executor decides nothing. It gets decisions once they are durable, in order, and turns reports into
events. It can lose at any moment what it keeps beside the journal.
"""

from __future__ import annotations

from typing import Protocol

from cotenant.controller.store import Decided


class Executor(Protocol):
    """What the controller's loop asks of an executor. How it talks to its hosts is its own affair."""

    def carry_out(self, decided: Decided) -> None:
        """Carry out a decision that is durable. Commands for hosts of other executors are left to those."""

    def tick(self) -> None:
        """Called about twice a second: repeat what is late, and turn silence into an event."""

    def rebuilt(self) -> None:
        """The state was read from the journal: start from it."""

    @property
    def undelivered(self) -> int:
        """Commands that no host has confirmed."""
