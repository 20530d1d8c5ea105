"""The training that a controller asks for once a day: a policy's question -> a packed model document.

Rule: runs in the computing child, on one thread. Errors are its answer; the policy goes on as before.
"""

from __future__ import annotations

from typing import Final

from cotenant.controller.models.forecast import packed, question_in
from cotenant.controller.training.forecast.effort import FULL, Effort
from cotenant.controller.training.forecast.holiday_dates import days_of
from cotenant.controller.training.forecast.train import train
from cotenant.controller.wire import ComputeResult, Payload

SEED: Final = 0
ERRORS_MAX: Final = 100_000
"""In the document, over all series: what is kept of errors grows with the organisations."""


def answer(payload: Payload, effort: Effort = FULL) -> ComputeResult:
    """
    Raises:
        ValueError: the payload is no question.
        NoXGBoost, ImportError: a library is missing.
        NoHolidays: holidays were asked for that nobody knows.
        ForecastModelProblem: the model is too large.
    """
    question = question_in(payload)
    demand = question.demand
    days = days_of(question.country, demand) if question.country else ()
    model = train(
        demand,
        question.horizon_h,
        SEED,
        kind=question.trainer,
        levels=tuple(question.levels),
        holidays=days,
        effort=effort,
        errors_max=ERRORS_MAX,
    )
    return ComputeResult(document=packed(model))
