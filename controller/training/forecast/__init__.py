"""Fits forecasters of demand, and judges them on demand that was kept out."""

# fmt: off
from cotenant.controller.training.forecast import trees
from cotenant.controller.training.forecast.evaluate import (
    MODELS, Aggregation, Answers, ForecastEvaluation, Judged, TooFewHours, evaluate,
)
from cotenant.controller.training.forecast.holiday_dates import NoHolidays, days_of
from cotenant.controller.training.forecast.reading import DemandFile, read

__all__ = [
    "MODELS", "Aggregation", "Answers", "DemandFile", "ForecastEvaluation", "Judged", "NoHolidays",
    "TooFewHours", "days_of", "evaluate", "read", "trees",
]
# fmt: on
