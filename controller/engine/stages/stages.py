"""The stages around a policy: who may wait before it is asked, what changes its decision, what follows.

    admit    fair share   ranks jobs by what their users have had: first, so that limits let in by that rank
             limits       let the first of that order into the queue
             lateness     marks the jobs in the queue whose turn it is: last, since only those can start
    guard    parts        puts jobs that ask for a part of a device beside others: first, so that the stages
                          after it see the devices that those jobs get
             lending      puts jobs beside idle ones that lend their devices, and asks for these back
             priorities   keeps devices for jobs of greater priority
             promises     keeps devices for promised ends: a promise goes before every priority
             bookings     puts owners' jobs on what they have reserved, and keeps others off: last, since
                          nothing goes before that
    settle   fair share   charges users for devices that have changed hands
             budgets      counts what jobs with a budget train, and ends those that have used theirs; also
                          before the policy is asked
             promises     judges which promises were kept
             bookings     sees when the next reservation is due

Rule: nothing else changes a decision between the policy and the ledger. A guard is called once some job has
asked for what it looks after; a fifo controller without settings has no stage to pay for.
"""

from __future__ import annotations

from typing import Final, Protocol

from cotenant.controller.domain import Decision, Job
from cotenant.controller.domain import events as ev
from cotenant.controller.engine.state.phases import RareWish

UNASKED: Final = frozenset(
    (
        ev.EpochBegan,
        ev.EtasTold,
        ev.OutputSeen,
        ev.ShadowChanged,
        ev.AllocationQueueChanged,
        ev.AllocationChanged,
    )
)
"""Events about which no policy is asked."""


class AdmissionStage(Protocol):
    """Decides who may wait for devices, and in which order."""

    def admit(self, event: ev.AnyEvent, changed: list[Job]) -> None:
        """Decides who may wait after the event. `changed`: the jobs whose phase this event has changed so
        far; what a stage changes joins them."""


class DecisionStage(Protocol):
    """May change what the policy has decided."""

    @property
    def serves(self) -> RareWish:
        """The wish that it looks after: as long as no job has had it, it is not called."""

    @property
    def remembers(self) -> bool:
        """Whether it keeps something of each decision: then it sees recorded ones, and changes nothing."""

    def revise(self, event: ev.AnyEvent, decision: Decision) -> Decision:
        """The decision that goes on to the next stage."""


class SettlingStage(Protocol):
    """Takes in what was carried out."""

    @property
    def serves(self) -> RareWish | None:
        """The wish that it looks after, as of a guard; None: it is called after every event."""

    def settle(self) -> None:
        """Called after each event, when its decision has been carried out."""
