"""Fits forecasters of demand, and judges them on demand that was kept out."""

# fmt: off
from cotenant.controller.training.forecast.evaluate import (
    MODELS, Aggregation, Answers, ForecastEvaluation, Judged, TooFewHours, evaluate,
)
from cotenant.controller.training.forecast.reading import DemandFile, NoHolidays, days_of, read
from cotenant.controller.training.forecast.train import Effort, train

__all__ = [
    "MODELS", "Aggregation", "Answers", "DemandFile", "Effort", "ForecastEvaluation", "Judged", "NoHolidays",
    "TooFewHours", "days_of", "evaluate", "read", "train",
]
# fmt: on
