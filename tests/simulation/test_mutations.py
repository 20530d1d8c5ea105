"""The seeds find mistakes that are planted in the controller's loop: each of these breaks a promise that
`cluster.py` checks, within a few seeds. One that no seed finds would mean that the simulation does not look
there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from cotenant.controller.loop import ControllerLoop
from cotenant.controller.store import Effect, StorageError, let_follow
from tests.simulation.cluster import Broken, Cluster

SEEDS = 40


def nothing(*_: Any) -> None:
    """Carries out no decision."""


class CarriesOutBeforeItIsDurable(ControllerLoop):
    def _settle(self) -> None:
        decided = self.core.take_decided()
        self._edges.take_note(decided)
        for each in decided:
            self._carry_out(each)


class PassesNothingOn(ControllerLoop):
    def _settle(self) -> None:
        pass


class CarriesOutForNobody(ControllerLoop):
    def durable(self, effects: Sequence[Effect]) -> None:
        let_follow(effects, nothing)


class CarriesOutOnlyTheLast(ControllerLoop):
    def durable(self, effects: Sequence[Effect]) -> None:
        super().durable(effects[-1:])


class SealsNothing(ControllerLoop):
    def seal(self) -> None:
        pass


class KeepsWhatCouldNotBeWritten(ControllerLoop):
    def commit_failed(self, error: StorageError) -> None:
        pass


class NeverWritesAgain(ControllerLoop):
    def write_again(self) -> None:
        pass


class LooksAfterNobody(ControllerLoop):
    def tick(self) -> None:
        pass


class SetsNoAlarm(ControllerLoop):
    def set_alarm(self) -> None:
        pass


class RingsWithoutAnEvent(ControllerLoop):
    def ring(self) -> None:
        self._alarm_s = None
        self.core.ring()
        self.set_alarm()


class WakesADayLate(ControllerLoop):
    def set_alarm(self) -> None:
        alarm_s = self.core.state.engine.next_alarm_s
        self._edges.wake_at(None if alarm_s is None else alarm_s + 86_400.0)


@pytest.mark.parametrize("mutation", ControllerLoop.__subclasses__(), ids=lambda kind: kind.__name__)
def test_a_mutation_of_the_loop_is_found(mutation: type[ControllerLoop]) -> None:
    for seed in range(SEEDS):
        try:
            Cluster(seed, make_loop=mutation).run()
        except (Broken, AssertionError) as found:
            print(f"seed {seed}: {str(found).splitlines()[0]}")
            return
    raise AssertionError(f"no seed below {SEEDS} finds {mutation.__name__}")
