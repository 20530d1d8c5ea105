"""Fits forecasters of demand, and judges them on demand that was kept out."""

# fmt: off
from cotenant.controller.training.forecast import trees
from cotenant.controller.training.forecast.effort import Effort
from cotenant.controller.training.forecast.evaluate import (
    MODELS, Aggregation, Answers, ForecastEvaluation, Judged, TooFewHours, evaluate,
)
from cotenant.controller.training.forecast.holiday_dates import NoHolidays, days_of
from cotenant.controller.training.forecast.reading import DemandFile, read
from cotenant.controller.training.forecast.train import train

__all__ = [
    "MODELS", "Aggregation", "Answers", "DemandFile", "Effort", "ForecastEvaluation", "Judged", "NoHolidays",
    "TooFewHours", "days_of", "evaluate", "read", "train", "trees",
]
# fmt: on
