"""When a model of hp demand is trained anew: once a day per device type, on the controller's own hours.

Rule: a `Compute` action asks for it, a `Computed` event with the whole model answers: both are in the
journal, so that a restart loses neither the model nor a training that is under way. One at a time. An answer
without a model leaves the one before in force, and says why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from cotenant.controller.domain import Compute, because
from cotenant.controller.policies.gfs.demand import DemandHistory
from cotenant.controller.policies.gfs.parameters import GfsParameters

if TYPE_CHECKING:
    from cotenant.controller.models.forecast import Demand

REASON: Final = "forecast-training"
FIRST_REQUEST: Final = 1_000_000_000
"""A policy below counts its own requests upwards from 1. To this the second is added, so that a policy that
is set anew does not take an answer to the one before for its own."""
HOURS_MIN: Final = 336
"""As `models.forecast.HOURS_MIN`, which brings numpy."""


class Retraining(msgspec.Struct, kw_only=True):
    """By device type. A value."""

    requests: int = 0
    """The number of the last request."""
    pending: int = 0
    """The number of the request that is not answered yet; 0: none."""
    pending_type: str = ""
    asked_hour: dict[str, int] = {}
    """Type -> hour of its last request."""
    failed: dict[str, str] = {}
    """Why the last training gave no model."""

    def due(self, history: DemandHistory, every_h: int) -> str | None:
        """The device type whose training is due."""
        if self.pending or not every_h:
            return None
        for type in sorted(history.hours):
            last = self.asked_hour.get(type)
            is_due = last is None or history.hour - last >= every_h
            if is_due and known_hours(history, type) >= HOURS_MIN:
                return type
        return None

    def request(
        self, history: DemandHistory, began_hour: int, now_s: float, parameters: GfsParameters
    ) -> Compute | None:
        """The request to make now, if any."""
        type = self.due(history, parameters.retrain_h)
        if type is None:
            return None
        from cotenant.controller.models.forecast import RETRAINING_KIND, asked

        demand = demand_of(history, type, began_hour)
        payload = asked(
            demand,
            horizon_h=parameters.hours + 1,
            levels=parameters.levels,
            trainer=parameters.trainer,
            country=parameters.holidays,
        )
        number = max(self.requests + 1, FIRST_REQUEST + int(now_s))
        reason = because(REASON, parameters.trainer, type, demand.hours)
        return Compute(request_id=number, kind=RETRAINING_KIND, payload=payload, reason=reason)

    def was_asked(self, action: Compute, type: str, hour: int) -> None:
        self.requests = self.pending = action.request_id
        self.pending_type = type
        self.asked_hour[type] = hour

    def was_answered(self, why_not: str) -> None:
        """Notes an answer. An empty text: it gave a model."""
        if why_not:
            self.failed[self.pending_type] = why_not
        else:
            self.failed.pop(self.pending_type, None)
        self.pending, self.pending_type = 0, ""

    def note(self, history: DemandHistory, type: str, parameters: GfsParameters) -> str:
        """What people should know of trainings; empty: nothing."""
        if why := self.failed.get(type):
            return f"the last training gave no model: {why}"
        if not parameters.retrain_h:
            return "no trainings are asked for (retrain_h=0)"
        if (known := known_hours(history, type)) < HOURS_MIN:
            return f"{known} of {HOURS_MIN} hours of demand are known that a training needs"
        return "its training is under way" if self.pending_type == type else ""


def known_hours(history: DemandHistory, type: str) -> int:
    return max(map(len, history.hours.get(type, {}).values()), default=0)


def demand_of(history: DemandHistory, type: str, began_hour: int) -> Demand:
    """All whole hours that are known; with dates if the date of the journal's beginning is known."""
    import numpy as np  # For those who use it.

    from cotenant.controller.models.forecast import Demand

    series = history.hours[type]
    names = tuple(sorted(series))
    values = np.array([series[name] for name in names], np.float64)
    first_hour = began_hour + history.hour - values.shape[1]
    return Demand(names=names, values=values, first_hour=first_hour, dated=began_hour > 0)
