"""The policy that decides now, and what it has said of itself.

Rule: whatever the engine asks of a policy beyond deciding is asked here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cotenant.controller.domain import ClassReport, Job
from cotenant.controller.planning import View
from cotenant.controller.policies import base

MakePolicy = Callable[[str, base.Parameters], base.Policy]
EARLY_S: Final = 3600.0
"""A run that is preempted before counts as an early one under policies that promise no time of their own."""


class CurrentPolicy:
    """Changes only with `change`, at a `PolicyChanged` event."""

    policy: base.Policy
    traits: base.Traits
    learns: bool
    """It keeps something between decisions, so it has to `observe` them."""

    def __init__(self, make: MakePolicy, name: str) -> None:
        self.name = name
        self.parameters: base.Parameters = {}
        self._make = make
        self._install(make(name, {}))

    def change(self, name: str, parameters: base.Parameters) -> None:
        """Puts another policy in force; it may go on with what the one before it has observed."""
        before = base.unwrap(self.policy)
        self._install(self._make(name, parameters))
        self.name, self.parameters = name, parameters
        if isinstance(self._inner, base.TakesOver):
            self._inner.take_over(before)

    def _install(self, policy: base.Policy) -> None:
        self.policy, self._inner = policy, base.unwrap(policy)
        self.traits, self.learns = policy.traits, base.learns(policy)
        self._holds_back = self._inner if isinstance(self._inner, base.HoldsBack) else None

    @property
    def run_promised_s(self) -> float:
        """A spot job that is preempted earlier than this in its run is preempted early."""
        promised_s = self.traits.promised_s
        return EARLY_S if promised_s is None else promised_s

    def holds_back(self, view: View, job: Job) -> bool:
        """Whether a rule of the policy, such as a quota, keeps a job from devices on which it fits."""
        return self._holds_back is not None and self._holds_back.holds_back(view, job)

    def classes(self, view: View) -> ClassReport | None:
        """What the policy reports on its classes and their quota; None: it has none."""
        return self._inner.report(view) if isinstance(self._inner, base.ReportsClasses) else None

    def state_in_words(self, view: View) -> dict[str, str]:
        """What the policy has learned, or how far it is, for people; empty: nothing that they ask for."""
        return self._inner.state_in_words(view) if isinstance(self._inner, base.TellsState) else {}
