"""What stands in for a policy that the journal names and this machine no longer has.

Rule: a controller starts whatever became of its policy, since jobs run that need it. Under a stand-in nothing
new starts, every waiting job says why, and `cotenant policy set` ends it. It keeps the absent one's state, so
that the policy goes on where it was once its package is back.
"""

from __future__ import annotations

from cotenant.controller.domain.actions import NOTHING, Decision
from cotenant.controller.domain.events import AnyEvent
from cotenant.controller.domain.job import Job
from cotenant.controller.domain.reasons import Reason, because
from cotenant.controller.domain.view import View
from cotenant.controller.policies import registry
from cotenant.controller.policies.base import Parameters, Policy


class MissingPolicy:
    """Starts nothing."""

    def __init__(self, name: str, why: str) -> None:
        self.name = name
        self._why = why
        self._state = b""

    def queue_key(self, job: Job) -> tuple[float, ...]:
        return ()

    def decide(self, view: View, event: AnyEvent) -> Decision:
        return NOTHING

    def observe(self, view: View, event: AnyEvent, decision: Decision) -> None:
        pass

    def explain(self, view: View, job: Job) -> Reason:
        return because("policy-absent", self.name, self._why)

    def save(self) -> bytes:
        return self._state

    def load(self, state: bytes) -> None:
        self._state = state


def make_or_stand_in(name: str, parameters: Parameters) -> Policy:
    """The policy; a stand-in that says why where it cannot be made."""
    try:
        return registry.make(name, parameters)
    except ValueError as error:
        return MissingPolicy(name, str(error))
